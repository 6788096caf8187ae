/** Family of a task: links to its parent task and its child tasks. */

import { el, setText } from "./dom.js";
import { asError } from "./errors.js";
import { badge, explain } from "./texts.js";

/** Milliseconds between two requests while the list is open. */
const INTERVAL = 3000;

export class Family {
  #agent = null;
  #task = "";
  #round = 0;
  #timer = null;
  #familyText = "";

  /** `addressOf(agent, task)` returns the link to a task on this page. */
  constructor(addressOf) {
    this.addressOf = addressOf;
    this.note = el("p", { class: "hint", role: "status" });
    this.list = el("div", {});
    this.element = el("details", { class: "more family" }, el("summary", {}, "Parent and child tasks"), this.note, this.list);
    this.element.addEventListener("toggle", () => (this.element.open ? this.#load() : this.leave()));
  }

  /** Show another task. Its family is requested when the list is opened. */
  show(agent, task) {
    this.leave();
    this.#agent = agent;
    this.#task = task;
    this.#familyText = "";
    this.list.replaceChildren();
    this.element.open = false;
  }

  leave() {
    this.#round++;
    clearTimeout(this.#timer);
  }

  async #load() {
    this.leave();
    const round = this.#round;
    if (!document.hidden) {
      let note = "";
      try {
        const family = await this.#agent.family(this.#task);
        if (round !== this.#round) return;
        this.#draw(family);
        if (!family.parent && !family.children.length) note = "None. No agent started this task, and its agent has started no other task.";
      } catch (cause) {
        const error = asError(cause);
        note = error.isUnsupported || error.status === 404 ? "This server does not report parent and child tasks." : explain(error);
      }
      if (round !== this.#round) return;
      setText(this.note, note);
      this.note.hidden = !note;
    }
    this.#timer = setTimeout(() => this.#load(), INTERVAL);
  }

  #draw({ parent, children }) {
    const key = JSON.stringify([parent, children]);
    if (key === this.#familyText) return;
    this.#familyText = key;
    const groups = [["Parent task", parent ? [parent] : []], ["Child tasks", children]].filter(([, tasks]) => tasks.length);
    this.list.replaceChildren(
      ...groups.flatMap(([title, tasks]) => [el("h4", {}, title), el("ul", {}, ...tasks.map((task) => el("li", {}, ...this.#line(task))))]),
    );
  }

  #line({ id, agent, state }) {
    if (!agent || !state) return [el("code", {}, id), " ", el("span", { class: "hint" }, "not stored any more")];
    return [badge(state), " ", el("a", { href: this.addressOf(agent, id) }, `${agent} `, el("code", {}, id))];
  }
}
