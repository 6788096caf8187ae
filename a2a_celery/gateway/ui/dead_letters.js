/** Dead letters of all owners, each with a button that requeues the dead letter. */

import { el, setText } from "./dom.js";
import { ownerOf } from "./fleet_tasks.js";
import { Poll } from "./poll.js";
import { Table, createLink, setLink } from "./table.js";
import { showTime, timeElement } from "./texts.js";

const INTERVAL = 6000;

export class DeadLettersView {
  #pages = [];
  #nextCursor = null;
  #requeuedIds = [];

  constructor(views) {
    this.views = views;
    this.empty = el("p", { class: "empty", hidden: true }, "No dead letters: no task was lost with its worker.");
    this.result = el("p", { role: "status", class: "result" });
    this.table = new Table(
      "Dead letters",
      [["Task", createLink], ["Agent", null, "word"], ["Owner"], ["Failed", () => timeElement("")], ["Attempts"], ["", () => this.#button()]],
      ({ id }) => id,
      ([link, agent, owner, failureTime, attempts, button], task) => {
        setLink(link, views.addressOf(task.id), task.id);
        setText(agent, task.agent);
        setText(owner, ownerOf(task));
        showTime(failureTime, task.since);
        setText(attempts, `${task.attempt} of ${task.maxAttempts}`);
        button.task = task.id;
        button.setAttribute("aria-label", `Requeue task ${task.id}`);
      },
    );
    this.moreButton = el("button", { type: "button", hidden: true }, "Show more");
    this.moreButton.addEventListener("click", () => views.attempt(() => this.#load(this.#nextCursor)));
    this.element = el(
      "div",
      { class: "stack" },
      el("p", { class: "hint" }, "Tasks that failed because their worker was lost. A requeue sends the message again, as a new task of the same owner."),
      this.result,
      this.table.element,
      this.moreButton,
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
    if (cursor || this.#pages.length < 2) this.#nextCursor = page.next;
    this.#draw();
  }

  #draw() {
    const deadLetters = [...new Map(this.#pages.flat().map((task) => [task.id, task])).values()].filter(({ id }) => !this.#requeuedIds.includes(id));
    deadLetters.sort((a, b) => (a.since < b.since ? 1 : -1));
    this.table.draw(deadLetters);
    this.empty.hidden = deadLetters.length > 0;
    this.moreButton.hidden = this.#nextCursor === null;
  }

  #button() {
    const button = el("button", { type: "button", class: "small" }, "Requeue");
    button.addEventListener("click", async () => {
      button.disabled = true;
      await this.views.attempt(async () => {
        const { task, before } = await this.views.api.requeue(button.task);
        this.#requeuedIds.push(button.task);
        this.result.replaceChildren(before ? "Already requeued as " : "Requeued as ", el("a", { href: this.views.addressOf(task) }, task));
        this.#draw();
        this.views.title.focus();
        this.views.feed.refresh();
      });
      button.disabled = false;
    });
    return button;
  }
}
