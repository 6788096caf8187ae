/** Workers, watchers and the queues of the agents. */

import { el, setText } from "./dom.js";
import { Poll } from "./poll.js";
import { Table } from "./table.js";
import { formatDuration } from "./texts.js";

const INTERVAL = 10_000;

export class WorkersView {
  constructor(views) {
    this.views = views;
    this.empty = el("p", { class: "empty", hidden: true }, "No worker replies. Start one with celery -A … worker.");
    this.workers = new Table(
      "Workers",
      [["Worker"], ["State", () => el("span", { class: "badge" })], ["Pool", null, "word"], ["Queues"], ["Agents"], ["Version"]],
      ({ name }) => name,
      ([name, badge, pool, queues, agents, version], worker) => {
        const [state, text] = stateOf(worker);
        setText(name, worker.name);
        badge.dataset.worker = state;
        setText(badge, text);
        setText(pool, worker.pool ?? "–");
        setText(queues, joinNames(worker.queues));
        setText(agents, joinNames(worker.agents));
        setText(version, worker.versions?.["a2a-celery"] ?? "–");
      },
    );
    this.queues = new Table(
      "Queues",
      [["Agent", null, "word"], ["Queue"], ["Workers", () => el("span", { class: "badge" })], ["Oldest waiting", null, "number"]],
      ({ agent }) => agent,
      ([agent, queue, badge, oldest], entry) => {
        setText(agent, entry.agent);
        setText(queue, entry.queue ?? "selected by an exchange");
        badge.dataset.worker = entry.workers || entry.queue === null ? "good" : "bad";
        setText(badge, entry.queue === null ? "unknown" : entry.workers === 1 ? "1 worker" : entry.workers ? `${entry.workers} workers` : "No worker");
        const waitSeconds = views.overview?.agents[entry.agent]?.oldestWaitingSeconds;
        setText(oldest, waitSeconds === null || waitSeconds === undefined ? "–" : formatDuration(waitSeconds));
      },
    );
    this.watchers = el("p", {});
    this.element = el(
      "div",
      { class: "stack" },
      el("section", { class: "stack" }, el("h3", {}, "Celery workers"), this.workers.element, this.empty),
      el("section", { class: "stack" }, el("h3", {}, "Queues of the agents"), this.queues.element),
      el("section", { class: "stack" }, el("h3", {}, "Watchers"), this.watchers),
    );
    this.element.hidden = true;
    this.poll = new Poll(() => views.attempt(() => this.#load()), INTERVAL);
  }

  enter() {
    if (this.element.hidden) this.views.showNote("Loading …");
    this.poll.start();
  }

  leave() {
    this.poll.stop();
  }

  async #load() {
    const { workers, watchers, queues } = await this.views.api.workers();
    this.element.hidden = false;
    this.workers.draw(workers);
    this.empty.hidden = workers.length > 0;
    this.queues.draw(
      Object.entries(queues).map(([agent, queue]) => ({ agent, queue, workers: workers.filter((worker) => serves(worker, agent, queue)).length })),
    );
    setText(this.watchers, watchers.join(", ") || "No watcher runs: tasks of lost workers stay open, and webhooks receive nothing. Start one with celery -A … a2a watcher.");
  }
}

const joinNames = (names) => (names?.length ? names.join(", ") : "–");

const serves = ({ queues, agents }, agent, queue) => (queues ?? []).includes(queue) && (agents ?? [agent]).includes(agent);

/** Return the agents whose queue no worker serves. Unknown queues count as served. */
export const unservedAgents = ({ workers, queues }) =>
  Object.entries(queues)
    .filter(([agent, queue]) => queue !== null && !workers.some((worker) => serves(worker, agent, queue)))
    .map(([agent]) => agent);

function stateOf({ error, drained, abandoned, remoteControl }) {
  if (error) return ["bad", error];
  if (drained?.length) return ["slow", "Drained"];
  if (abandoned?.length) return ["slow", "Has abandoned agents"];
  return remoteControl ? ["good", "Replies"] : ["slow", "No remote control"];
}
