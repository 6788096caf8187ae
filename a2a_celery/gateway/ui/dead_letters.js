/** Dead letters of all owners, with buttons that requeue one or all of them. */

import { ActionResult, REQUEUE_RISK, actionButton, confirmAction, count, requeueTask } from "./actions.js";
import { el, setText } from "./dom.js";
import { attemptsOf, createReason, createTitle, ownerOf, showReason, showTitle } from "./fleet_tasks.js";
import { Poll } from "./poll.js";
import { Table } from "./table.js";
import { showTime, timeElement } from "./texts.js";

const INTERVAL = 6000;

export class DeadLettersView {
  #pages = [];
  #nextCursor = null;
  #requeuedIds = [];

  constructor(views) {
    this.views = views;
    this.empty = el("p", { class: "empty", hidden: true }, "No dead letters.");
    this.result = new ActionResult();
    this.allButton = actionButton(views, this.result, "Requeue all …", () => this.#requeueAll(), { class: "" });
    this.table = new Table(
      "Dead letters",
      [["Task", createTitle], ["Agent", null, "word"], ["Owner"], ["Reason", createReason], ["Failed", () => timeElement("")], ["Attempts"], ["", () => this.#button()]],
      ({ id }) => id,
      ([title, agent, owner, reason, failureTime, attempts, button], task) => {
        showTitle(title, views.addressOf(task.id), task);
        setText(agent, task.agent);
        setText(owner, ownerOf(task));
        showReason(reason, "", task);
        showTime(failureTime, task.since);
        setText(attempts, attemptsOf(task));
        button.task = task.id;
        button.setAttribute("aria-label", `Requeue task ${task.id} …`);
      },
    );
    this.moreButton = el("button", { type: "button", hidden: true }, "Show more");
    this.moreButton.addEventListener("click", () => views.attempt(() => this.#load(this.#nextCursor)));
    this.element = el(
      "div",
      { class: "stack" },
      el("div", { class: "head" }, el("p", { class: "hint" }, "Tasks that failed because their worker was lost. A requeue sends the message again, as a new task of the same owner."), this.allButton),
      this.result.element,
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
    this.result.clear();
  }

  async #load(cursor) {
    const page = await this.views.api.deadLetters(cursor);
    if (cursor) this.#pages.push(page.tasks);
    else this.#pages[0] = page.tasks;
    if (cursor || this.#pages.length < 2) this.#nextCursor = page.next;
    this.#draw();
  }

  /** Dead letters of the pages that have been read, newest first. */
  get #deadLetters() {
    const deadLetters = [...new Map(this.#pages.flat().map((task) => [task.id, task])).values()].filter(({ id }) => !this.#requeuedIds.includes(id));
    return deadLetters.sort((a, b) => (a.since < b.since ? 1 : -1));
  }

  #draw() {
    const deadLetters = this.#deadLetters;
    this.table.draw(deadLetters);
    this.empty.hidden = deadLetters.length > 0;
    this.moreButton.hidden = this.#nextCursor === null;
    this.allButton.hidden = deadLetters.length < 2;
  }

  #button() {
    return actionButton(this.views, this.result, "Requeue …", async ({ task }) => {
      if (!(await requeueTask(this.views, task, this.result))) return;
      this.#requeuedIds.push(task);
      this.#afterAction();
    });
  }

  /** Requeue all dead letters page by page, and show the number of each page as soon as it is done. */
  async #requeueAll() {
    const isComplete = this.#nextCursor === null; // otherwise, the overview has the number of some seconds ago
    const total = isComplete ? this.#deadLetters.length : (this.views.overview?.deadLetters ?? 0);
    const isConfirmed = await confirmAction({
      title: total ? `Requeue all ${total} dead letters?` : "Requeue all dead letters?",
      texts: ["The message of each dead letter is sent again, as a new task of the same owner. Recorded steps are not executed again.", `Each ${REQUEUE_RISK}`],
      action: "Requeue all",
    });
    if (!isConfirmed) return;
    const results = [];
    for (let cursor = 0; cursor !== null; ) {
      const page = await this.views.api.requeuePage(cursor);
      cursor = page.next;
      results.push(...page.results);
      this.#requeuedIds.push(...page.results.filter(({ task }) => task).map(({ requeuedFrom }) => requeuedFrom));
      const failureCount = results.filter(({ error }) => error).length;
      const failures = failureCount ? `, ${failureCount} not requeued` : "";
      this.result.show(`${count(results.length - failureCount, "task")} requeued${failures}, ${count(page.remaining, "dead letter")} ${page.remaining === 1 ? "remains" : "remain"}.`, results.map((each) => this.#resultItem(each)));
      this.#draw();
    }
    this.#afterAction();
  }

  #resultItem({ requeuedFrom, task, before, error }) {
    if (error) return error;
    return [requeuedFrom, before ? " was already requeued as " : " was requeued as ", el("a", { href: this.views.addressOf(task) }, task)];
  }

  #afterAction() {
    this.#draw();
    this.views.title.focus();
    this.views.feed.refresh();
  }
}
