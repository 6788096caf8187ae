/** View of one task: its state, its question, its artifacts and its messages. The view sends no requests. */

import { isSchemaPart } from "./answer_form.js";
import { copyButton, el, reconcile, setText } from "./dom.js";
import { Parts, partsElement } from "./parts.js";
import { summary } from "./task_reducer.js";
import { badge, isInterrupted, isTerminal, showState, showTime, timeElement } from "./texts.js";

/** Number of newest messages that are shown, and of earlier messages that each click of the button adds. */
const MESSAGES = 50;

export class TaskView {
  #messageLimit = MESSAGES;
  /** True if the user has sent the task's message or an answer, and has used nothing else since. */
  #expectsQuestion = false;

  /** `answerElement` is the element with the form for an answer. Buttons call `onAction("cancel")` and
   * `onAction("redraw")`. When the question changes, `onAction("question", message)` is called with the message that
   * contains the question, if there is one. */
  constructor(answerElement, onAction) {
    this.onAction = onAction;
    this.state = badge("");
    this.statusTime = timeElement("");
    this.title = el("h2", { dir: "auto", tabindex: "-1" });
    this.connection = el("span", { class: "connection", role: "status" });
    this.ids = el("div", { class: "ids" });
    this.cancel = el("button", { type: "button", class: "danger" }, "Cancel …");
    this.cancel.addEventListener("click", () => onAction("cancel"));
    this.question = el("div", { class: "question-text" });
    this.questionBox = el("section", { class: "question", hidden: true, "aria-label": "The agent’s question" }, el("h3", {}), this.question, answerElement);
    for (const type of ["focusin", "input", "pointerdown"]) document.addEventListener(type, (event) => this.#observeUse(event));
    this.artifacts = el("div", { class: "artifacts" });
    this.messages = el("div", { class: "messages" });
    this.earlierButton = el("button", { type: "button", class: "quiet small", hidden: true });
    this.earlierButton.addEventListener("click", () => {
      this.#messageLimit += MESSAGES;
      onAction("redraw");
    });
    this.artifactSection = el("section", { class: "block" }, el("h3", {}, "Artifacts"), this.artifacts);
    this.conversation = el("section", { class: "block" }, el("h3", {}, "Conversation"), this.earlierButton, this.messages);
    this.log = el("div");
    this.element = el(
      "div",
      { class: "body", hidden: true },
      el("header", { class: "task-head" }, el("div", { class: "title" }, this.title, this.cancel), el("div", { class: "line-up" }, this.state, this.statusTime, this.connection), this.ids),
      this.questionBox,
      el("div", { class: "columns" }, el("div", {}, this.artifactSection, this.conversation), this.log),
    );
  }

  /** Remove the contents of the previous task. `log` is the element with the log of the next task. */
  reset(log) {
    this.#messageLimit = MESSAGES;
    this.log.replaceChildren(log);
    for (const element of this.artifacts.children) element.parts.reset();
    this.artifacts.replaceChildren();
    this.messages.replaceChildren();
    this.question.dataset.key = "";
    this.cancel.ariaBusy = null;
    setText(this.cancel, "Cancel …");
  }

  /** Show the state of the connection. `kind` is "live", "polling", "lost" or "ended". */
  showConnection(kind, text) {
    this.connection.dataset.kind = kind;
    setText(this.connection, text);
  }

  draw(task) {
    const { state, timestamp, message } = task.status ?? {};
    const title = summary(task.history.find(({ role }) => role === "ROLE_USER"), 80) || "Task";
    showState(this.state, state);
    showTime(this.statusTime, timestamp);
    setText(this.title, title);
    document.title = `${this.state.textContent} · ${title}`;
    this.cancel.hidden = isTerminal(state);
    this.#drawIds(task);
    this.#drawQuestion(state, message);
    this.#drawArtifacts(task.artifacts, isTerminal(state));
    this.#drawMessages(message && !isInterrupted(state) ? [...task.history, message] : task.history);
  }

  #drawIds({ id, contextId }) {
    if (this.ids.dataset.id === id) return;
    this.ids.dataset.id = id;
    const visible = [["Task", id], ["Context", contextId]].filter(([, value]) => value);
    this.ids.replaceChildren(
      ...visible.map(([name, value]) => el("span", {}, `${name} `, el("code", {}, value), " ", copyButton(value, `Copy the id of the ${name.toLowerCase()}`))),
    );
  }

  #drawQuestion(state, message) {
    const isQuestion = isInterrupted(state);
    this.questionBox.hidden = !isQuestion;
    if (!isQuestion) {
      this.question.dataset.key = "";
      return;
    }
    const key = `${state} ${message?.messageId ?? ""} ${summary(message)}`;
    if (this.question.dataset.key === key) return;
    this.question.dataset.key = key;
    const needsAuthorization = state === "TASK_STATE_AUTH_REQUIRED";
    setText(this.questionBox.firstChild, needsAuthorization ? "The agent needs an authorization" : "The agent asks");
    this.onAction("question", message);
    this.question.replaceChildren(message ? partsElement({ parts: (message.parts ?? []).filter((part) => !isSchemaPart(part)) }) : el("p", { class: "hint" }, "The agent sent no question."));
    this.#focusAnswer();
  }

  /** Focus the answer when the next question appears, unless the user uses another part of the page before. */
  expectQuestion() {
    this.#expectsQuestion = true;
  }

  #observeUse({ type, target }) {
    // the page moves the focus to the title if the focused element disappears
    if (type === "focusin" && target === this.title) this.#focusAnswer();
    else this.#expectsQuestion = this.questionBox.contains(target);
  }

  /** Focus the first field for an expected answer, unless a field has the focus. */
  #focusAnswer() {
    if (!this.#expectsQuestion) return;
    const fields = [...this.questionBox.querySelectorAll("input, select, textarea")].filter((field) => field.checkVisibility());
    if (!fields.includes(document.activeElement)) fields[0]?.focus({ preventScroll: true });
  }

  #drawArtifacts(artifacts, isTaskTerminal) {
    this.artifactSection.hidden = artifacts.length === 0;
    reconcile(
      this.artifacts,
      artifacts,
      ({ artifactId }) => String(artifactId),
      () => {
        const parts = new Parts();
        const element = el("article", {}, el("header", {}, el("strong", { dir: "auto" }), el("span", { class: "hint", dir: "auto" })), parts.element);
        element.parts = parts;
        return element;
      },
      (element, artifact) => {
        const [name, hint] = element.firstChild.children;
        setText(name, artifact.name || "Artifact");
        setText(hint, [artifact.description, artifact.isOpen && !isTaskTerminal ? "in progress" : ""].filter(Boolean).join(" · "));
        if (element.source !== artifact.parts) {
          element.source = artifact.parts;
          element.parts.reset();
        }
        element.parts.update(artifact.parts ?? []);
      },
    );
  }

  #drawMessages(messages) {
    const visible = messages.slice(-this.#messageLimit);
    this.conversation.hidden = messages.length === 0;
    this.earlierButton.hidden = visible.length === messages.length;
    setText(this.earlierButton, `Show earlier messages (${messages.length - visible.length} more)`);
    const keys = keysOf(messages);
    reconcile(
      this.messages,
      visible,
      (message) => keys.get(message),
      (message) => {
        const isClient = message.role === "ROLE_USER";
        return el("div", { class: `message ${isClient ? "user" : "agent"}` }, el("span", { class: "role" }, isClient ? "Client" : "Agent"), partsElement(message), ...referenceOf(message));
      },
      () => {},
    );
  }
}

/** Return the reference of a failure, which identifies the failure in the log of a worker, with a button that copies
 * the reference. */
function referenceOf({ role, metadata }) {
  const reference = role === "ROLE_USER" ? null : metadata?.reference;
  if (typeof reference !== "string" || !reference) return [];
  return [el("div", { class: "ids reference" }, el("span", {}, "Reference ", el("code", {}, reference), " ", copyButton(reference, "Copy the reference")))];
}

/** Return a unique key for each message. Clients may reuse ids, so a key consists of the id and the number of messages
 * with this id up to the message. */
function keysOf(messages) {
  const occurrences = new Map();
  const keys = new Map();
  for (const message of messages) {
    const id = message.messageId ?? "";
    occurrences.set(id, (occurrences.get(id) ?? 0) + 1);
    keys.set(message, `${occurrences.get(id)} ${id}`);
  }
  return keys;
}
