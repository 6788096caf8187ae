/** Actions of operators on one task of any owner: cancel, send a signal, and requeue a dead letter. */

import { ActionResult, actionButton, cancelTasks, confirmAction, requeueTask } from "./actions.js";
import { el, newId } from "./dom.js";
import { isTerminal } from "./texts.js";

export class TaskActions {
  #task = null;

  /** `onChange()` is called after an action. */
  constructor(views, onChange) {
    this.views = views;
    this.result = new ActionResult();
    const button = (text, act, attributes) => {
      const run = async () => {
        await act();
        onChange();
      };
      return actionButton(views, this.result, text, run, { class: "", ...attributes });
    };
    this.cancelButton = button("Cancel …", () => this.#cancel(), { class: "danger" });
    this.signalButton = button("Send a signal …", () => this.#signal());
    this.requeueButton = button("Requeue …", () => requeueTask(views, this.#task.id, this.result));
    this.buttons = el("div", { class: "row" }, this.signalButton, this.requeueButton, this.cancelButton);
    this.element = el("div", { class: "stack" }, this.buttons, this.result.element);
  }

  show(task) {
    if (task.id !== this.#task?.id) this.result.clear();
    this.#task = task;
    this.cancelButton.hidden = this.signalButton.hidden = isTerminal(task.state);
    this.requeueButton.hidden = !task.deadLetter;
    this.buttons.hidden = [...this.buttons.children].every((button) => button.hidden);
    this.element.hidden = this.buttons.hidden && !this.result.summary.hasChildNodes();
  }

  async #cancel() {
    const { id, agent } = this.#task;
    const isConfirmed = await confirmAction({
      title: "Cancel this task?",
      texts: [`Task ${id} of the agent ${agent}`, "The agent stops and cannot continue later. The artifacts that it has sent are kept."],
      action: "Cancel the task",
      keep: "Keep it running",
      danger: true,
    });
    if (isConfirmed) await cancelTasks(this.views, [id], this.result);
  }

  async #signal() {
    const { id, agent } = this.#task;
    const name = el("input", { id: "signal-name", required: true, pattern: "[A-Za-z0-9_.:\\-]{1,64}", autocomplete: "off", spellcheck: "false", title: "1 to 64 letters, digits and the characters _ . : -" });
    const payload = el("textarea", { id: "signal-payload", rows: "4", spellcheck: "false", placeholder: '{"by": "Ann"}' });
    const checkPayload = () => payload.setCustomValidity(jsonProblem(payload.value));
    payload.addEventListener("input", checkPayload);
    const isConfirmed = await confirmAction({
      title: "Send a signal to this task?",
      texts: [`Task ${id} of the agent ${agent}`, "The agent receives the signal now if it waits for the name, or else when it waits for the name the next time."],
      fields: [el("div", { class: "fields" }, el("label", { for: name.id }, "Name"), name), el("div", { class: "fields" }, el("label", { for: payload.id }, "Payload as JSON (optional)"), payload)],
      action: "Send the signal",
    });
    if (!isConfirmed) return;
    const body = { name: name.value, signalId: newId(), ...(payload.value.trim() ? { payload: JSON.parse(payload.value) } : {}) };
    const { result } = await this.views.api.signal(id, body);
    this.result.show(result === "resumed" ? `The task continues with the signal ${name.value}.` : `The signal ${name.value} is stored until the agent waits for it.`);
  }
}

function jsonProblem(text) {
  try {
    if (text.trim()) JSON.parse(text);
    return "";
  } catch (error) {
    return `Not JSON: ${error.message}. Text needs quotes.`;
  }
}
