/** Schedules of the app: when they submit a message, their newest task, and their skipped ticks. */

import { el, say } from "./dom.js";
import { ownerOf } from "./fleet_tasks.js";
import { Poll } from "./poll.js";
import { Table, anchor, point } from "./table.js";
import { badge, showState, showTime, time } from "./words.js";

const INTERVAL = 5000;
const OVERLAPS = { skip: "Skips ticks while a task runs", queue: "Queues tasks", cancel: "Cancels earlier tasks" };

export class SchedulesView {
  constructor(views) {
    this.views = views;
    this.empty = el("p", { class: "empty", hidden: true }, "No schedules. No entry of Celery beat in this app submits a message.");
    this.table = new Table(
      "Schedules",
      [["Schedule", anchor], ["When"], ["Agent"], ["Owner"], ["Overlap"], ["Newest task", () => badge("")], ["Since", () => time("")], ["Skipped ticks", null, "number"], ["Last skipped", () => time("")]],
      ({ name }) => name,
      ([link, when, agent, owner, overlap, state, since, skipped, last], found) => {
        point(link, `#${new URLSearchParams({ view: "tasks", phase: "any", schedule: found.name })}`, found.name);
        say(when, found.when);
        say(agent, found.agent);
        say(owner, ownerOf(found));
        say(overlap, OVERLAPS[found.overlap] ?? found.overlap);
        state.hidden = !found.lastTask;
        showState(state, found.lastTask?.state);
        showTime(since, found.lastTask?.since);
        say(skipped, found.skippedTicks.toLocaleString());
        showTime(last, found.lastSkippedTick);
      },
    );
    this.element = el("div", { class: "stack" }, el("p", { class: "hint" }, "Schedules of this app, with their stored tasks and skipped ticks. To find the tasks of another scheduler, enter the name of its schedule in Tasks."), this.table.element, this.empty);
    this.poll = new Poll(() => views.attempt(() => this.#load()), INTERVAL);
  }

  enter() {
    this.poll.start();
  }

  leave() {
    this.poll.stop();
  }

  async #load() {
    const { schedules } = await this.views.api.schedules();
    this.table.draw(schedules);
    this.empty.hidden = schedules.length > 0;
  }
}
