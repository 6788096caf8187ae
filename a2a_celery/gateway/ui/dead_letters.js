/** Dead letters of all owners, each with a button that requeues the dead letter. */

import { el, say } from "./dom.js";
import { ownerOf } from "./fleet_tasks.js";
import { Poll } from "./poll.js";
import { Table, anchor, point } from "./table.js";
import { showTime, time } from "./words.js";

const INTERVAL = 6000;

export class DeadLettersView {
  #pages = [];
  #next = null;
  #requeued = [];

  constructor(views) {
    this.views = views;
    this.empty = el("p", { class: "empty", hidden: true }, "No dead letters: no task was lost with its worker.");
    this.result = el("p", { role: "status", class: "result" });
    this.table = new Table(
      "Dead letters",
      [["Task", anchor], ["Agent"], ["Owner"], ["Failed", () => time("")], ["Attempts"], ["", () => this.#button()]],
      ({ id }) => id,
      ([link, agent, owner, failed, attempts, button], task) => {
        point(link, views.addressOf(task.id), task.id);
        say(agent, task.agent);
        say(owner, ownerOf(task));
        showTime(failed, task.since);
        say(attempts, `${task.attempt} of ${task.maxAttempts}`);
        button.task = task.id;
        button.setAttribute("aria-label", `Requeue task ${task.id}`);
      },
    );
    this.more = el("button", { type: "button", hidden: true }, "Show more");
    this.more.addEventListener("click", () => views.attempt(() => this.#load(this.#next)));
    this.element = el(
      "div",
      { class: "stack" },
      el("p", { class: "hint" }, "Tasks that failed because their worker was lost. A requeue sends the message again, as a new task of the same owner."),
      this.result,
      this.table.element,
      this.more,
      this.empty,
    );
    this.poll = new Poll(() => views.attempt(() => this.#load(0)), INTERVAL);
  }

  enter() {
    this.poll.start();
  }

  leave() {
    this.poll.stop();
    this.result.replaceChildren();
  }

  async #load(cursor) {
    const page = await this.views.api.deadLetters(cursor);
    if (cursor) this.#pages.push(page.tasks);
    else this.#pages[0] = page.tasks;
    if (cursor || this.#pages.length < 2) this.#next = page.next;
    this.#draw();
  }

  #draw() {
    const letters = [...new Map(this.#pages.flat().map((task) => [task.id, task])).values()].filter(({ id }) => !this.#requeued.includes(id));
    letters.sort((one, other) => (one.since < other.since ? 1 : -1));
    this.table.draw(letters);
    this.empty.hidden = letters.length > 0;
    this.more.hidden = this.#next === null;
  }

  #button() {
    const button = el("button", { type: "button", class: "small" }, "Requeue");
    button.addEventListener("click", async () => {
      button.disabled = true;
      await this.views.attempt(async () => {
        const { task, before } = await this.views.api.requeue(button.task);
        this.#requeued.push(button.task);
        this.result.replaceChildren(before ? "Already requeued as " : "Requeued as ", el("a", { href: this.views.addressOf(task) }, task));
        this.#draw();
        this.views.title.focus();
        this.views.feed.now();
      });
      button.disabled = false;
    });
    return button;
  }
}
