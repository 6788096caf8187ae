/** View of one task: its state, its question, its artifacts and its messages. The view sends no requests. */

import { isSchemaPart, schemaOf } from "./answer_form.js";
import { copier, el, keyed, say } from "./dom.js";
import { summary } from "./fold.js";
import { Parts, partsOf } from "./parts.js";
import { badge, isEnded, isPaused, showState, showTime, time } from "./words.js";

/** Number of newest messages that are shown, and of earlier messages that each click of the button adds. */
const MESSAGES = 50;

export class TaskView {
  #many = MESSAGES;

  /** `answer` is the element with the form for an answer. Buttons call `asked("cancel")` and `asked("redraw")`. When
   * the question changes, `asked("question", schema)` is called with the schema of the answer or null. */
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

  /** Removes the contents of the previous task. `log` is the element with the log of the next task. */
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

  /** Shows the state of the connection. `kind` is "live", "looking" (polling), "lost" or "ended". */
  connected(kind, text) {
    this.link.dataset.kind = kind;
    say(this.link, text);
  }

  draw(task) {
    const { state, timestamp, message } = task.status ?? {};
    const title = summary(task.history.find(({ role }) => role === "ROLE_USER"), 80) || "Task";
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
    this.question.replaceChildren(message ? partsOf({ parts: (message.parts ?? []).filter((part) => !isSchemaPart(part)) }) : el("p", { class: "hint" }, "The agent sent no question."));
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
        say(about, [artifact.description, artifact.open && !ended ? "in progress" : ""].filter(Boolean).join(" · "));
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

/** Returns the reference of a failure, which identifies the failure in the log of a worker, with a button that copies
 * the reference. */
function referenceOf({ role, metadata }) {
  const reference = role === "ROLE_USER" ? null : metadata?.reference;
  if (typeof reference !== "string" || !reference) return [];
  return [el("div", { class: "ids reference" }, el("span", {}, "Reference ", el("code", {}, reference), " ", copier(reference, "Copy the reference")))];
}

/** Returns a unique key for each message. Clients may reuse ids, so a key consists of the id and the number of messages
 * with this id up to the message. */
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
