/** Selection of open tasks in a list, and the cancellation of the selected tasks. */

import { ActionResult, actionButton, cancelTasks, confirmAction, count } from "./actions.js";
import { el, setText } from "./dom.js";
import { isTerminal } from "./texts.js";

export class TaskSelection {
  #ids = new Set();
  #openTasks = [];

  /** `onChange()` is called when the cells of the list must be drawn again, and `onCancel()` after a cancellation. */
  constructor(views, onChange, onCancel) {
    this.views = views;
    this.onCancel = onCancel;
    this.result = new ActionResult();
    this.allBox = el("input", { type: "checkbox", id: "select-all" });
    this.allBox.addEventListener("change", () => {
      this.#ids = new Set(this.allBox.checked ? this.#openTasks.map(({ id }) => id) : []);
      onChange();
    });
    this.allLabel = el("label", { for: "select-all" });
    this.button = actionButton(views, this.result, "", () => this.#cancel(), { class: "danger" });
    this.bar = el("div", { class: "row selection" }, el("span", { class: "check-line" }, this.allBox, this.allLabel), this.button);
    this.element = el("div", { class: "stack" }, this.bar, this.result.element);
  }

  /** Return a cell with a checkbox for one task. */
  createCell() {
    const box = el("input", { type: "checkbox" });
    box.addEventListener("change", () => {
      if (box.checked) this.#ids.add(box.value);
      else this.#ids.delete(box.value);
      this.#draw();
    });
    return el("label", {}, box);
  }

  /** Show the task of a cell. Ended tasks have no checkbox. */
  showCell(cell, { id, state }) {
    const box = cell.firstChild;
    cell.hidden = isTerminal(state);
    box.value = id;
    box.checked = this.#ids.has(id);
    box.setAttribute("aria-label", `Select task ${id}`);
  }

  /** Show the selection among `tasks`, the tasks of the list. A task that is no longer in the list or has ended is no
   * longer selected, so that only visible tasks are cancelled. */
  draw(tasks) {
    this.#openTasks = tasks.filter(({ state }) => !isTerminal(state));
    this.#ids = new Set(this.#openTasks.map(({ id }) => id).filter((id) => this.#ids.has(id)));
    this.#draw();
  }

  leave() {
    this.#ids.clear();
    this.result.clear();
  }

  #draw() {
    const [openCount, selectedCount] = [this.#openTasks.length, this.#ids.size];
    this.bar.hidden = openCount === 0;
    this.element.hidden = this.bar.hidden && !this.result.summary.hasChildNodes();
    this.allBox.checked = selectedCount > 0 && selectedCount === openCount;
    this.allBox.indeterminate = selectedCount > 0 && selectedCount < openCount;
    setText(this.allLabel, `Select the ${count(openCount, "open task")} shown`);
    setText(this.button, selectedCount ? `Cancel ${selectedCount} selected …` : "Cancel selected …");
    this.button.disabled = selectedCount === 0;
  }

  async #cancel() {
    const tasks = this.#openTasks.filter(({ id }) => this.#ids.has(id));
    const agents = Object.entries(Object.groupBy(tasks, ({ agent }) => agent)).map(([agent, group]) => `${group.length} of ${agent}`);
    const isConfirmed = await confirmAction({
      title: `Cancel ${count(tasks.length, "task")}?`,
      texts: [`${agents.join(", ")}.`, "The agents stop and cannot continue later. The artifacts that they have sent are kept."],
      action: `Cancel ${count(tasks.length, "task")}`,
      keep: "Keep them running",
      danger: true,
    });
    if (!isConfirmed) return;
    await cancelTasks(this.views, tasks.map(({ id }) => id), this.result);
    this.#ids.clear();
    this.#draw();
    this.views.title.focus();
    this.onCancel();
  }
}
