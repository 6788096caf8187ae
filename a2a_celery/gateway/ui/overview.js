/** Overview of the fleet: the waiting, running and ended tasks, their durations, and the agents. */

import { Chart } from "./charts.js";
import { el, reconcile, setText } from "./dom.js";
import { Poll } from "./poll.js";
import { Table } from "./table.js";
import { formatBytes, formatDuration } from "./texts.js";
import { unservedAgents } from "./workers.js";

/** Milliseconds between two requests for the workers. The gateway sends a broadcast to all workers for each request. */
const WORKERS_INTERVAL = 15_000;

const TERMINAL_STATES = [
  ["Completed", "TASK_STATE_COMPLETED"],
  ["Failed", "TASK_STATE_FAILED"],
  ["Canceled", "TASK_STATE_CANCELED"],
  ["Rejected", "TASK_STATE_REJECTED"],
];

const formatRate = (value) => `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)}/min`;
const formatCount = (value) => Math.round(value).toLocaleString();

export class OverviewView {
  #workers = null;

  constructor(views) {
    this.views = views;
    this.tiles = el("dl", { class: "tiles" });
    this.charts = [
      [new Chart("Ended tasks", [{ name: "all", kind: "main" }, { name: "failed", kind: "bad" }], formatRate), (samples) => samples.throughput()],
      [new Chart("Run time", [{ name: "median", kind: "main" }, { name: "95th percentile", kind: "slow" }], formatDuration), (samples) => samples.latency("run")],
      [new Chart("Wait for a worker", [{ name: "median", kind: "main" }, { name: "95th percentile", kind: "slow" }], formatDuration), (samples) => samples.latency("queue")],
      [new Chart("Open runs", [{ name: "running", kind: "main" }, { name: "waiting", kind: "slow" }], formatCount), (samples) => samples.open()],
      [new Chart("Posts to webhooks", [{ name: "delivered", kind: "main" }, { name: "failed", kind: "bad" }], formatRate), (samples) => samples.posts()],
      [new Chart("Memory of the store", [{ name: "used", kind: "main" }, { name: "limit", kind: "soft" }], formatBytes), (samples) => samples.memory()],
    ];
    this.agents = new Table(
      "Agents",
      [["Agent", null, "word"], ["Oldest waiting", null, "number"], ...TERMINAL_STATES.map(([title]) => [title, null, "number"]), ["Workers lost", null, "number"]],
      ([name]) => name,
      ([agent, oldest, ...cells], [name, agentCounts]) => {
        setText(agent, name);
        setText(oldest, agentCounts.oldestWaitingSeconds === null ? "–" : formatDuration(agentCounts.oldestWaitingSeconds));
        const cellValues = [...TERMINAL_STATES.map(([, state]) => agentCounts.ended[state]), agentCounts.lost];
        cellValues.forEach((value, i) => {
          setText(cells[i], value.toLocaleString());
          cells[i].className = value ? "" : "zero";
        });
      },
    );
    this.element = el(
      "div",
      { class: "stack" },
      this.tiles,
      el("div", { class: "charts" }, ...this.charts.map(([chart]) => chart.element)),
      el("p", { class: "hint" }, "The charts start when you open the page. Each point covers the last minute."),
      el("section", { class: "stack" }, el("h3", {}, "Agents"), this.agents.element, el("p", { class: "hint" }, "Ended tasks and lost workers since the store was created.")),
    );
    this.poll = new Poll(() => this.#readWorkers(), WORKERS_INTERVAL);
  }

  enter() {
    this.draw();
    if (this.views.overview) this.views.feed.refresh(); // without an overview, the first request is in progress
    this.poll.start();
  }

  leave() {
    this.poll.stop();
  }

  async #readWorkers() {
    try {
      this.#workers = await this.views.api.workers();
    } catch {
      this.#workers = null; // the tile shows that the workers are unknown
    }
    this.draw();
  }

  draw() {
    const { overview, samples } = this.views;
    if (!this.element.isConnected) return;
    this.views.showNote(overview ? "" : "The counts of the fleet are unavailable.");
    if (!overview) return;
    reconcile(this.tiles, tilesOf(overview, this.#workers), ([title]) => title, tile, drawTile);
    for (const [chart, series] of this.charts) chart.draw(series(samples), Date.parse(overview.at));
    this.agents.draw(Object.entries(overview.agents));
  }
}

function tile([title, , , , href]) {
  const name = href ? el("a", { href }, title) : title;
  return el("div", {}, el("dt", {}, name), el("dd", {}, el("strong", {}), el("span", { class: "hint" })));
}

function drawTile(element, [, value, detail, kind]) {
  const [number, hint] = element.lastChild.children;
  element.className = `card tile ${kind}`;
  setText(number, value);
  setText(hint, detail);
}

function tilesOf({ runs, paused, deadLetters, webhooks, agents }, fleet) {
  const waiting = runs.queued + runs.blocked;
  const oldest = Math.max(0, ...Object.values(agents).map(({ oldestWaitingSeconds }) => oldestWaitingSeconds ?? 0));
  return [
    ["Running", formatCount(runs.running), runs.suspended ? `${formatCount(runs.suspended)} suspended` : "", "", "#view=tasks&phase=running"],
    ["Waiting", formatCount(waiting), waiting ? `oldest ${formatDuration(oldest)}` : "", oldest > 60 ? "warn" : "", "#view=tasks&phase=queued"],
    ["Need a person", formatCount(paused), "", "", "#view=tasks&phase=paused"],
    workersTile(fleet),
    ["Dead letters", formatCount(deadLetters), "", deadLetters ? "alarm" : "", "#view=dead"],
    ["Deliveries given up", formatCount(webhooks.dead), webhooks.waiting ? `${formatCount(webhooks.waiting)} waiting` : "", webhooks.dead ? "alarm" : "", "#view=webhooks"],
  ];
}

function workersTile(fleet) {
  if (!fleet) return ["Workers", "–", "", "", "#view=workers"];
  const unservedCount = unservedAgents(fleet).length;
  const detail = unservedCount ? `${unservedCount} ${unservedCount === 1 ? "agent" : "agents"} without a worker` : fleet.watchers.length ? "" : "no watcher";
  return ["Workers", formatCount(fleet.workers.length), detail, detail ? "alarm" : "", "#view=workers"];
}
