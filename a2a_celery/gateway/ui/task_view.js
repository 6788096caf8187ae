/** What is shown of one task: its state, what it asks, what was made and said. Draws a task, and knows no server. */

import { isSchemaPart, schemaOf } from "./answer_form.js";
import { copier, el, keyed, say } from "./dom.js";
import { summary } from "./fold.js";
import { Parts, partsOf } from "./parts.js";
import { badge, isEnded, isPaused, showState, showTime, time } from "./words.js";

const MESSAGES = 50;
/** How many messages are shown at once. */

export class TaskView {
  #many = MESSAGES;

  /** `answer` is the element to answer in; `asked(…)` is called by buttons, "cancel" and "redraw", and with "question" and
   * the schema of the answer (null for none) when another question is shown. */
  constructor(answer, asked) {
    this.asked = asked;
    this.state = badge("");
    this.when = time("");
    this.title = el("h2", { dir: "auto", tabindex: "-1" });
    this.link = el("span", { class: "connection", role: "status" });
    this.ids = el("div", { class: "ids" });
    this.cancel = el("button", { type: "button", class: "danger" }, "Cancel …");
    this.cancel.addEventListener("click", () => asked("cancel"));
    this.question = el("div", { class: "asked" });
    this.box = el("section", { class: "question", hidden: true, "aria-label": "The agent’s question" }, el("h3", {}), this.question, answer);
    this.artifacts = el("div", { class: "artifacts" });
    this.messages = el("div", { class: "messages" });
    this.earlier = el("button", { type: "button", class: "quiet small", hidden: true });
    this.earlier.addEventListener("click", () => {
      this.#many += MESSAGES;
      asked("redraw");
    });
    this.made = el("section", { class: "block" }, el("h3", {}, "Artifacts"), this.artifacts);
    this.talk = el("section", { class: "block" }, el("h3", {}, "Conversation"), this.earlier, this.messages);
    this.log = el("div");
    this.element = el(
      "div",
      { class: "body", hidden: true },
      el("header", { class: "task-head" }, el("div", { class: "title" }, this.title, this.cancel), el("div", { class: "line-up" }, this.state, this.when, this.link), this.ids),
      this.box,
      el("div", { class: "columns" }, el("div", {}, this.made, this.talk), this.log),
    );
  }

  /** Nothing of the last task stays; `log` is the element of the next one's. */
  reset(log) {
    this.#many = MESSAGES;
    this.log.replaceChildren(log);
    for (const made of this.artifacts.children) made.parts.reset();
    this.artifacts.replaceChildren();
    this.messages.replaceChildren();
    this.question.dataset.key = "";
    this.cancel.disabled = false;
    say(this.cancel, "Cancel …");
  }

  /** How the page hears of the task: "live", "looking", "lost" or "ended", and in words. */
  connected(kind, text) {
    this.link.dataset.kind = kind;
    say(this.link, text);
  }

  draw(task) {
    const { state, timestamp, message } = task.status ?? {};
    const title = summary(task.history.find(({ role }) => role === "ROLE_USER"), 80) || "A task";
    showState(this.state, state);
    showTime(this.when, timestamp);
    say(this.title, title);
    document.title = `${this.state.textContent} · ${title}`;
    this.cancel.hidden = isEnded(state);
    this.#drawIds(task);
    this.#drawQuestion(state, message);
    this.#drawArtifacts(task.artifacts, isEnded(state));
    this.#drawMessages(message && !isPaused(state) ? [...task.history, message] : task.history);
  }

  #drawIds({ id, contextId }) {
    if (this.ids.dataset.id === id) return;
    this.ids.dataset.id = id;
    const shown = [["Task", id], ["Context", contextId]].filter(([, value]) => value);
    this.ids.replaceChildren(
      ...shown.map(([name, value]) => el("span", {}, `${name} `, el("code", {}, value), " ", copier(value, `Copy the id of the ${name.toLowerCase()}`))),
    );
  }

  #drawQuestion(state, message) {
    const asks = isPaused(state);
    this.box.hidden = !asks;
    if (!asks) {
      this.question.dataset.key = "";
      return;
    }
    const key = `${state} ${message?.messageId ?? ""} ${summary(message)}`;
    if (this.question.dataset.key === key) return;
    this.question.dataset.key = key;
    const auth = state === "TASK_STATE_AUTH_REQUIRED";
    say(this.box.firstChild, auth ? "The agent needs an authorization" : "The agent asks");
    this.asked("question", schemaOf(message));
    this.question.replaceChildren(message ? partsOf({ parts: (message.parts ?? []).filter((part) => !isSchemaPart(part)) }) : el("p", { class: "hint" }, "It has not said what."));
  }

  #drawArtifacts(artifacts, ended) {
    this.made.hidden = artifacts.length === 0;
    keyed(
      this.artifacts,
      artifacts,
      ({ artifactId }) => String(artifactId),
      () => {
        const parts = new Parts();
        const made = el("article", {}, el("header", {}, el("strong", { dir: "auto" }), el("span", { class: "hint", dir: "auto" })), parts.element);
        made.parts = parts;
        return made;
      },
      (element, artifact) => {
        const [name, about] = element.firstChild.children;
        say(name, artifact.name || "Artifact");
        say(about, [artifact.description, artifact.open && !ended ? "grows" : ""].filter(Boolean).join(" · "));
        if (element.of !== artifact.parts) {
          element.of = artifact.parts;
          element.parts.reset();
        }
        element.parts.update(artifact.parts ?? []);
      },
    );
  }

  #drawMessages(messages) {
    const shown = messages.slice(-this.#many);
    this.talk.hidden = messages.length === 0;
    this.earlier.hidden = shown.length === messages.length;
    say(this.earlier, `Show earlier messages (${messages.length - shown.length} more)`);
    const keys = keysOf(messages);
    keyed(
      this.messages,
      shown,
      (message) => keys.get(message),
      (message) => {
        const mine = message.role === "ROLE_USER";
        return el("div", { class: `message ${mine ? "user" : "agent"}` }, el("span", { class: "who" }, mine ? "Client" : "Agent"), partsOf(message), ...referenceOf(message));
      },
      () => {},
    );
  }
}

/** The reference of a failure, which finds it in a worker's log, and a button that copies it. */
function referenceOf({ role, metadata }) {
  const reference = role === "ROLE_USER" ? null : metadata?.reference;
  if (typeof reference !== "string" || !reference) return [];
  return [el("div", { class: "ids reference" }, el("span", {}, "Reference ", el("code", {}, reference), " ", copier(reference, "Copy the reference")))];
}

/** What tells messages apart: their ids, which clients use again, with which one of these it is in the whole history. */
function keysOf(messages) {
  const times = new Map();
  const keys = new Map();
  for (const message of messages) {
    const id = message.messageId ?? "";
    times.set(id, (times.get(id) ?? 0) + 1);
    keys.set(message, `${times.get(id)} ${id}`);
  }
  return keys;
}
