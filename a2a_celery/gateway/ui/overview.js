/** The fleet at a glance: what waits, runs and ends, how long it takes, and the agents. */

import { Chart } from "./charts.js";
import { el, keyed, say } from "./dom.js";
import { Table } from "./table.js";
import { bytes, seconds } from "./words.js";

const ENDED = [
  ["Completed", "TASK_STATE_COMPLETED"],
  ["Failed", "TASK_STATE_FAILED"],
  ["Canceled", "TASK_STATE_CANCELED"],
  ["Rejected", "TASK_STATE_REJECTED"],
];

const perMinute = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)}/min`;
const whole = (value) => Math.round(value).toLocaleString();

export class OverviewView {
  constructor(views) {
    this.views = views;
    this.tiles = el("dl", { class: "tiles" });
    this.charts = [
      [new Chart("Ended tasks", [{ name: "all", kind: "main" }, { name: "failed", kind: "bad" }], perMinute), (samples) => samples.throughput()],
      [new Chart("Run time", [{ name: "median", kind: "main" }, { name: "95 %", kind: "slow" }], seconds), (samples) => samples.latency("run")],
      [new Chart("Wait for a worker", [{ name: "median", kind: "main" }, { name: "95 %", kind: "slow" }], seconds), (samples) => samples.latency("queue")],
      [new Chart("Open runs", [{ name: "waiting", kind: "slow" }, { name: "running", kind: "main" }], whole), (samples) => samples.open()],
    ];
    this.agents = new Table(
      "Agents",
      [["Agent"], ["Oldest waiting"], ...ENDED.map(([title]) => [title]), ["Workers lost"]],
      ([name]) => name,
      ([agent, oldest, ...cells], [name, counted]) => {
        say(agent, name);
        say(oldest, counted.oldestWaitingSeconds === null ? "–" : seconds(counted.oldestWaitingSeconds));
        ENDED.forEach(([, state], i) => say(cells[i], counted.ended[state].toLocaleString()));
        say(cells.at(-1), counted.lost.toLocaleString());
      },
    );
    this.element = el(
      "div",
      { class: "stack" },
      this.tiles,
      el("div", { class: "charts" }, ...this.charts.map(([chart]) => chart.element)),
      el("section", {}, el("h3", {}, "Agents"), el("p", { class: "hint" }, "Ended tasks and lost workers since the store was created"), this.agents.element),
      el("p", { class: "hint" }, "The charts begin when this page is opened. They show the last minute at each point."),
    );
  }

  enter() {
    this.draw();
    this.views.feed.now();
  }

  leave() {}

  draw() {
    const { overview, samples } = this.views;
    if (!this.element.isConnected) return;
    this.views.say(overview ? "" : "The fleet’s counts are not available right now.");
    if (!overview) return;
    keyed(this.tiles, tilesOf(overview), ([title]) => title, tile, drawTile);
    for (const [chart, series] of this.charts) chart.draw(series(samples), Date.parse(overview.at));
    this.agents.draw(Object.entries(overview.agents));
  }
}

function tile([title, , , , href]) {
  const name = href ? el("a", { href }, title) : title;
  return el("div", {}, el("dt", {}, name), el("dd", {}, el("strong", {}), el("span", { class: "hint" })));
}

function drawTile(element, [, value, detail, kind]) {
  const [number, about] = element.lastChild.children;
  element.className = `card tile ${kind}`;
  say(number, value);
  say(about, detail);
}

function tilesOf({ runs, paused, deadLetters, webhooks, store, agents }) {
  const waiting = runs.queued + runs.blocked;
  const oldest = Math.max(0, ...Object.values(agents).map(({ oldestWaitingSeconds }) => oldestWaitingSeconds ?? 0));
  const memory = store.bytes === null ? ["–", "not readable"] : [bytes(store.bytes), store.maxBytes ? `of ${bytes(store.maxBytes)}` : "no limit"];
  return [
    ["Running", whole(runs.running), runs.suspended ? `${whole(runs.suspended)} suspended` : "", "", "#view=open&phase=running"],
    ["Waiting", whole(waiting), waiting ? `oldest ${seconds(oldest)}` : "", oldest > 60 ? "warn" : "", "#view=open&phase=queued"],
    ["Need a person", whole(paused), "", "", "#view=open&phase=paused"],
    ["Dead letters", whole(deadLetters), "", deadLetters ? "alarm" : "", "#view=dead"],
    ["Webhooks given up", whole(webhooks.dead), webhooks.waiting ? `${whole(webhooks.waiting)} waiting` : "", webhooks.dead ? "alarm" : "", "#view=webhooks"],
    ["Store", memory[0], memory[1], "", ""],
  ];
}
