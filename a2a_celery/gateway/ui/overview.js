/** Overview of the fleet: the waiting, running and ended tasks, their durations, and the agents. */

import { Chart } from "./charts.js";
import { el, reconcile, setCurrent, setText } from "./dom.js";
import { Poll } from "./poll.js";
import { RANGES } from "./samples.js";
import { Table } from "./table.js";
import { formatBytes, formatDuration } from "./texts.js";
import { unservedAgents } from "./workers.js";

/** Milliseconds between two requests for the workers. The gateway sends a broadcast to all workers for each request. */
const WORKERS_INTERVAL = 15_000;
/** Milliseconds between two requests for the recorded samples, of which a watcher records one each minute. */
const HISTORY_INTERVAL = 60_000;
const DEFAULT_RANGE = "hour";

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
      [new Chart("Ended tasks", [{ name: "all", kind: "main" }, { name: "failed", kind: "bad" }], formatRate), (series) => series.throughput()],
      [new Chart("Run time, estimated", [{ name: "median", kind: "main" }, { name: "95th percentile", kind: "slow" }], formatDuration), (series) => series.latency("run"), (series) => series.latencyInTotal("run")],
      [new Chart("Wait for a worker, estimated", [{ name: "median", kind: "main" }, { name: "95th percentile", kind: "slow" }], formatDuration), (series) => series.latency("queue"), (series) => series.latencyInTotal("queue")],
      [new Chart("Open runs", [{ name: "running", kind: "main" }, { name: "waiting", kind: "slow" }], formatCount), (series) => series.open()],
      [new Chart("Posts to webhooks", [{ name: "delivered", kind: "main" }, { name: "failed, retried", kind: "slow" }, { name: "given up", kind: "bad" }], formatRate), (series) => series.posts()],
      [new Chart("Memory of the store", [{ name: "used", kind: "main" }, { name: "limit", kind: "soft" }], formatBytes), (series) => series.memory()],
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
    this.tabs = RANGES.map(([name, title]) => el("a", { href: `#view=overview&range=${name}` }, title));
    this.hint = el("p", { class: "hint" });
    this.element = el(
      "div",
      { class: "stack" },
      this.tiles,
      el("nav", { class: "tabs", "aria-label": "Range of the charts" }, ...this.tabs),
      el("div", { class: "charts" }, ...this.charts.map(([chart]) => chart.element)),
      this.hint,
      el("section", { class: "stack" }, el("h3", {}, "Agents"), this.agents.element, el("p", { class: "hint" }, "Ended tasks and lost workers since the store was created.")),
    );
    this.poll = new Poll(() => this.#readWorkers(), WORKERS_INTERVAL);
    this.historyPoll = new Poll(() => this.#readHistory(), HISTORY_INTERVAL);
    this.onHashChange = () => this.#applyFragment();
  }

  enter() {
    window.addEventListener("hashchange", this.onHashChange);
    this.#applyFragment();
    if (this.views.overview) this.views.feed.refresh(); // without an overview, the first request is in progress
    this.poll.start();
  }

  leave() {
    window.removeEventListener("hashchange", this.onHashChange);
    this.poll.stop();
    this.historyPoll.stop();
  }

  /** Read the range of the charts from the fragment of the page's URL. */
  #applyFragment() {
    const query = new URLSearchParams(location.hash.slice(1));
    if (query.get("view") !== "overview") return;
    const selected = RANGES.find(([name]) => name === query.get("range")) ?? RANGES.find(([name]) => name === DEFAULT_RANGE);
    RANGES.forEach((range, i) => setCurrent(this.tabs[i], range === selected));
    this.range = selected;
    this.draw();
    this.historyPoll.refresh();
  }

  async #readHistory() {
    try {
      this.views.samples.setHistory(await this.views.api.history(this.range[3]));
    } catch {
      return; // the charts keep the samples that were read before
    }
    this.draw();
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
    const [, , length, range] = this.range;
    const series = samples.series(range, length);
    const end = Date.parse(overview.at);
    const options = { end, length, interval: series.interval };
    for (const [chart, values, totals] of this.charts) chart.draw(values(series), { ...options, totals: totals?.(series) });
    setText(this.hint, describeSamples(samples.beginOf(range), series.interval, end - length));
    this.agents.draw(Object.entries(overview.agents));
  }
}

/** Describe the samples of a range that starts at `start`. The oldest recorded sample was recorded at `begin`. */
function describeSamples(begin, interval, start) {
  if (begin === undefined) return "";
  if (begin === null) return "No samples are recorded yet. A watcher records the first sample when it starts.";
  const minutes = Math.round(interval / 60_000);
  const coverage = `Each point covers about ${minutes === 1 ? "a minute" : `${minutes} minutes`}.`;
  return begin > start + 2 * interval ? `${coverage} The first sample is of ${new Date(begin).toLocaleString()}.` : coverage;
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
