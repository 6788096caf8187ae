/** Texts of the page for states, times, sizes and errors. */

import { el } from "./dom.js";

export const LIVE_STATES = [
  "TASK_STATE_INPUT_REQUIRED",
  "TASK_STATE_AUTH_REQUIRED",
  "TASK_STATE_WORKING",
  "TASK_STATE_SUBMITTED",
];
export const INTERRUPTED_STATES = LIVE_STATES.slice(0, 2);

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

export const ALL_STATES = Object.keys(STATES);

export const isInterrupted = (state) => INTERRUPTED_STATES.includes(state);
export const isTerminal = (state) => state in STATES && !LIVE_STATES.includes(state);

/** Return the name of a state. An unknown state is returned unchanged. */
export const stateName = (state) => STATES[state]?.[0] ?? String(state ?? "Unknown");

/** Return a badge with the name and the colour of a state. `showState` changes the state of a badge. */
export function badge(state) {
  return showState(el("span", { class: "badge" }), state);
}

export function showState(element, state) {
  if (element.dataset.state === state) return element;
  element.dataset.state = state ?? "";
  element.textContent = stateName(state);
  element.title = STATES[state]?.[1] ?? "";
  return element;
}

/** Names of the reasons for which a task is failed, rejected or canceled. */
export const END_REASONS = {
  exception: "Exception",
  invalid_response: "Invalid response",
  lost: "Worker lost",
  time_limit: "Time limit",
  no_answer: "No answer",
  blobs_unreachable: "Store for large parts unreachable",
  not_published: "Not published",
  expired: "Not begun in time",
  unknown_agent: "Unknown agent",
  unreadable: "Unreadable message",
  refused: "Refused",
  agent: "Ended by the agent",
  client: "By the client",
  operator: "By an operator",
  parent: "With its parent",
};

/** Names of the states of a webhook. */
export const DELIVERY_STATES = { delivered: "Up to date", waiting: "Waiting", failing: "Failing", dead: "Given up" };

/** Names of the outcomes of a post to a webhook. */
export const OUTCOMES = { delivered: "Delivered", failed: "Failed", gone: "Gone", refused: "Not sent" };

const TIME_UNITS = [
  [60, 1, "s"],
  [3600, 60, "min"],
  [86400, 3600, "h"],
  [Infinity, 86400, "d"],
];

/** Return a time relative to the browser's clock, such as "5 s ago". A time in the future is "now". */
export function relativeTime(date, now = Date.now()) {
  const age = Math.max(0, Math.floor((now - date) / 1000));
  if (age < 2) return "now";
  const [, unit, name] = TIME_UNITS.find(([limit]) => age < limit);
  return `${Math.floor(age / unit)} ${name} ago`;
}

/** Return an element with a relative time. Its title is the exact time. `updateTimes` updates all such elements. */
export function timeElement(timestamp) {
  return showTime(el("time"), timestamp);
}

export function showTime(element, timestamp) {
  const date = Date.parse(timestamp ?? "");
  if (Number.isNaN(date)) {
    element.removeAttribute("datetime");
    element.textContent = "";
    return element;
  }
  const exact = new Date(date).toISOString();
  if (element.getAttribute("datetime") !== exact) {
    element.setAttribute("datetime", exact);
    element.title = `${new Date(date).toLocaleString()} (${exact})`;
  }
  const text = relativeTime(date);
  if (element.textContent !== text) element.textContent = text;
  return element;
}

export function updateTimes(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) showTime(element, element.getAttribute("datetime"));
}

/** Return the local time of an event with milliseconds, for a log, or "" for an unknown time. */
export function formatClock(timestamp) {
  const date = new Date(timestamp ?? NaN);
  if (Number.isNaN(date.getTime())) return "";
  const pad = (number, digits = 2) => String(number).padStart(digits, "0");
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)}`;
}

/** Return a duration in seconds as text with a single unit. */
export function formatDuration(value) {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  const [, unit, name] = TIME_UNITS.find(([limit]) => value < limit);
  return `${Math.floor(value / unit)} ${name}`;
}

export function formatBytes(size) {
  if (size < 1000) return `${size} bytes`;
  if (size < 1e6) return `${(size / 1e3).toFixed(1)} kB`;
  return size < 1e9 ? `${(size / 1e6).toFixed(1)} MB` : `${(size / 1e9).toFixed(1)} GB`;
}

/** Prefix of the metadata of this package. Some of its metadata also have a copy without the prefix. */
const NAMESPACE = "a2a_celery/";

/** Return a value as JSON, with only one of two equal values whose keys differ only in `NAMESPACE`. */
export function jsonText(value, indent) {
  const isCopy = (object, key) => NAMESPACE + key in object && JSON.stringify(object[NAMESPACE + key]) === JSON.stringify(object[key]);
  const withoutCopies = (_, inner) =>
    inner !== null && typeof inner === "object" && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).filter(([key]) => !isCopy(inner, key)))
      : inner;
  return JSON.stringify(value, withoutCopies, indent);
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

/** Return one sentence for an error. `errorDetails` returns the other information that the server sent. */
export function explain(error) {
  const sentence = REASONS[error.reason] ?? STATUSES[error.status];
  if (sentence) return sentence;
  return error.violations?.length ? "The server refused the request." : error.message || "The request failed.";
}

/** Return the information in an error as pairs of a name and a text. */
export function errorDetails(error) {
  const pairs = [];
  if (error.message && error.message !== explain(error)) pairs.push(["Message", error.message]);
  for (const { field, description } of error.violations ?? []) pairs.push([field || "Request", description ?? ""]);
  if (error.reason) pairs.push(["Reason", error.reason]);
  for (const [name, value] of Object.entries(error.metadata ?? {})) pairs.push([name, String(value)]);
  if (error.retryAfter) pairs.push(["Try again in", `${error.retryAfter} s`]);
  if (error.code) pairs.push(["Code", String(error.code)]);
  for (const detail of error.otherDetails ?? []) pairs.push([detail["@type"] ?? "Detail", JSON.stringify(detail, null, 2)]);
  return pairs;
}
