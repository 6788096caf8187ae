/** Texts of the page for states, times, sizes and errors. */

import { el } from "./dom.js";

export const LIVE = [
  "TASK_STATE_INPUT_REQUIRED",
  "TASK_STATE_AUTH_REQUIRED",
  "TASK_STATE_WORKING",
  "TASK_STATE_SUBMITTED",
];
export const PAUSED = LIVE.slice(0, 2);

const STATES = {
  TASK_STATE_SUBMITTED: ["Submitted", "The task waits for a worker."],
  TASK_STATE_WORKING: ["Working", "The agent is working."],
  TASK_STATE_INPUT_REQUIRED: ["Needs an answer", "The agent has asked a question."],
  TASK_STATE_AUTH_REQUIRED: ["Needs authorization", "The agent needs an authorization to continue."],
  TASK_STATE_COMPLETED: ["Completed", "The agent has completed the task."],
  TASK_STATE_FAILED: ["Failed", "The task ended with an error."],
  TASK_STATE_CANCELED: ["Canceled", "A client, an operator or the agent canceled the task."],
  TASK_STATE_REJECTED: ["Rejected", "The task was not accepted."],
};

/** All task states. */
export const ALL = Object.keys(STATES);

export const isPaused = (state) => PAUSED.includes(state);
export const isEnded = (state) => state in STATES && !LIVE.includes(state);

/** Returns the word for a state. An unknown state is returned unchanged. */
export const wordFor = (state) => STATES[state]?.[0] ?? String(state ?? "Unknown");

/** Returns a badge with the word and the colour of a state. `showState` changes the state of a badge. */
export function badge(state) {
  return showState(el("span", { class: "badge" }), state);
}

export function showState(element, state) {
  if (element.dataset.state === state) return element;
  element.dataset.state = state ?? "";
  element.textContent = wordFor(state);
  element.title = STATES[state]?.[1] ?? "";
  return element;
}

/** Words for the states of a webhook. */
export const DELIVERY_STATES = { delivered: "Up to date", waiting: "Waiting", failing: "Failing", dead: "Given up" };

/** Words for the outcomes of a post to a webhook. */
export const OUTCOMES = { delivered: "Delivered", failed: "Failed", gone: "Gone", refused: "Not sent" };

const STEPS = [
  [60, 1, "s"],
  [3600, 60, "min"],
  [86400, 3600, "h"],
  [Infinity, 86400, "d"],
];

/** Returns a time relative to the browser's clock, such as "5 s ago". A time in the future is "now". */
export function ago(when, now = Date.now()) {
  const seconds = Math.max(0, Math.floor((now - when) / 1000));
  if (seconds < 2) return "now";
  const [, unit, name] = STEPS.find(([below]) => seconds < below);
  return `${Math.floor(seconds / unit)} ${name} ago`;
}

/** Returns an element with a relative time. Its title is the exact time. `showTimes` updates all such elements. */
export function time(timestamp) {
  return showTime(el("time"), timestamp);
}

export function showTime(element, timestamp) {
  const when = Date.parse(timestamp ?? "");
  if (Number.isNaN(when)) {
    element.removeAttribute("datetime");
    element.textContent = "";
    return element;
  }
  const exact = new Date(when).toISOString();
  if (element.getAttribute("datetime") !== exact) {
    element.setAttribute("datetime", exact);
    element.title = `${new Date(when).toLocaleString()} (${exact})`;
  }
  const said = ago(when);
  if (element.textContent !== said) element.textContent = said;
  return element;
}

export function showTimes(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) showTime(element, element.getAttribute("datetime"));
}

/** Returns the local time of an event with milliseconds, for a log, or "" for an unknown time. */
export function clock(timestamp) {
  const when = new Date(timestamp ?? NaN);
  if (Number.isNaN(when.getTime())) return "";
  const two = (number, digits = 2) => String(number).padStart(digits, "0");
  return `${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}.${two(when.getMilliseconds(), 3)}`;
}

/** Returns a duration in seconds as text with a single unit. */
export function seconds(value) {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  const [, unit, name] = STEPS.find(([below]) => value < below);
  return `${Math.floor(value / unit)} ${name}`;
}

export function bytes(size) {
  if (size < 1000) return `${size} bytes`;
  if (size < 1e6) return `${(size / 1e3).toFixed(1)} kB`;
  return size < 1e9 ? `${(size / 1e6).toFixed(1)} MB` : `${(size / 1e9).toFixed(1)} GB`;
}

const REASONS = {
  TASK_NOT_FOUND: "This task does not exist, or it belongs to another caller.",
  TASK_NOT_CANCELABLE: "The task has already ended, so it cannot be canceled.",
  UNSUPPORTED_OPERATION: "This agent does not support this operation.",
  PUSH_NOTIFICATION_NOT_SUPPORTED: "This agent does not support push notifications.",
  CONTENT_TYPE_NOT_SUPPORTED: "This agent does not accept this type of content.",
  INVALID_AGENT_RESPONSE: "The agent’s response is not valid A2A.",
  EXTENSION_SUPPORT_REQUIRED: "This agent requires an extension that this page does not support.",
  VERSION_NOT_SUPPORTED: "This agent uses another version of A2A.",
  METHOD_NOT_FOUND: "This agent does not support this operation.",
  SERVICE_UNAVAILABLE: "The service is unavailable. Try again in a moment.",
  REQUEST_TOO_LARGE: "The message is too large for this agent.",
  INTERNAL_ERROR: "An error occurred on the server.",
};

const STATUSES = {
  0: "The server cannot be reached.",
  401: "The server requires a token or an API key. Sign in first.",
  403: "Your credentials do not permit this.",
  404: "The server has nothing at this address.",
  413: "The message is too large.",
  429: "The server has received too many requests. Try again later.",
  502: "The proxy received no response from the server.",
  503: "The service is unavailable. Try again in a moment.",
  504: "The server did not respond in time.",
};

/** Returns one sentence for an error. `details` returns the other information that the server sent. */
export function explain(error) {
  const said = REASONS[error.reason] ?? STATUSES[error.status];
  if (said) return said;
  return error.violations?.length ? "The server refused the request." : error.message || "The request failed.";
}

/** Returns the information in an error as pairs of a name and a text. */
export function details(error) {
  const found = [];
  if (error.message && error.message !== explain(error)) found.push(["Message", error.message]);
  for (const { field, description } of error.violations ?? []) found.push([field || "Request", description ?? ""]);
  if (error.reason) found.push(["Reason", error.reason]);
  for (const [name, value] of Object.entries(error.metadata ?? {})) found.push([name, String(value)]);
  if (error.retryAfter) found.push(["Try again in", `${error.retryAfter} s`]);
  if (error.code) found.push(["Code", String(error.code)]);
  for (const other of error.others ?? []) found.push([other["@type"] ?? "Detail", JSON.stringify(other, null, 2)]);
  return found;
}
