/** Schedules of the app: when they submit a message, their newest task, and their skipped ticks. */

import { el, setText } from "./dom.js";
import { ownerOf } from "./fleet_tasks.js";
import { Poll } from "./poll.js";
import { Table, createLink, setLink } from "./table.js";
import { badge, showState, showTime, timeElement } from "./texts.js";

const INTERVAL = 5000;
const OVERLAPS = { skip: "Skips ticks", allow: "Starts tasks" };

export class SchedulesView {
  constructor(views) {
    this.views = views;
    this.empty = el("p", { class: "empty", hidden: true }, "No schedules. No entry of Celery beat in this app submits a message.");
    this.table = new Table(
      "Schedules",
      [["Schedule", createLink], ["When"], ["Agent", null, "word"], ["Owner"], ["Overlap"], ["Newest task", () => badge("")], ["Since", () => timeElement("")], ["Skipped", null, "number"], ["Last skipped", () => timeElement("")]],
      ({ name }) => name,
      ([link, timing, agent, owner, overlap, state, since, skippedTicks, lastSkipped], schedule) => {
        setLink(link, `#${new URLSearchParams({ view: "tasks", schedule: schedule.name })}`, schedule.name);
        setText(timing, schedule.when);
        setText(agent, schedule.agent);
        setText(owner, ownerOf(schedule));
        setText(overlap, OVERLAPS[schedule.overlap] ?? schedule.overlap);
        state.hidden = !schedule.lastTask;
        showState(state, schedule.lastTask?.state);
        showTime(since, schedule.lastTask?.since);
        setText(skippedTicks, schedule.skippedTicks.toLocaleString());
        showTime(lastSkipped, schedule.lastSkippedTick);
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
