/** Workers, watchers and the queues of the agents. Workers can be drained and returned to service. */

import { ActionResult, actionButton, confirmAction, count, labelButton } from "./actions.js";
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
      [["Worker"], ["State", () => el("span", { class: "badge" })], ["Active"], ["Pool", null, "word"], ["Queues"], ["Agents"], ["Version"], ["", () => this.#button()]],
      ({ name }) => name,
      ([name, badge, active, pool, queues, agents, version, button], worker) => {
        const [state, text] = stateOf(worker);
        setText(name, worker.name);
        badge.dataset.worker = state;
        setText(badge, text);
        setText(active, worker.slots ? `${worker.active} of ${worker.slots}` : "–");
        setText(pool, worker.pool ?? "–");
        setText(queues, joinNames(worker.queues));
        setText(agents, joinNames(worker.agents));
        setText(version, worker.versions?.["a2a-celery"] ?? "–");
        button.hidden = !worker.pool;
        button.worker = worker;
        if (worker.drained?.length) labelButton(button, "Return to service …", `Return the worker ${worker.name} to service …`);
        else labelButton(button, "Drain …", `Drain the worker ${worker.name} …`);
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
    this.result = new ActionResult();
    this.element = el(
      "div",
      { class: "stack" },
      el("section", { class: "stack" }, el("h3", {}, "Celery workers"), this.result.element, this.workers.element, this.empty),
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
    this.result.clear();
  }

  #button() {
    return actionButton(this.views, this.result, "Drain …", async ({ worker }) => {
      const { name, drained } = worker;
      const isDrained = drained?.length > 0;
      const isConfirmed = await confirmAction({
        title: isDrained ? `Return ${name} to service?` : `Drain ${name}?`,
        texts: isDrained ? [`The worker consumes ${joinNames(drained)} again.`] : drainTexts(worker, this.all),
        action: isDrained ? "Return to service" : "Drain the worker",
        danger: !isDrained,
      });
      if (!isConfirmed) return;
      const reply = await this.views.api.drain(name, isDrained ? "undrain" : "drain");
      const text = isDrained ? `${name} consumes ${joinNames(drained)} again.` : `${name} no longer consumes ${joinNames(reply.queues)}; ${count(reply.returned, "prefetched run")} returned. It stays drained until it is returned to service or restarted.`;
      this.result.show(text);
      await this.#load();
    });
  }

  async #load() {
    const { workers, watchers, queues } = await this.views.api.workers();
    this.element.hidden = false;
    this.all = workers;
    this.workers.draw(workers);
    this.empty.hidden = workers.length > 0;
    this.queues.draw(
      Object.entries(queues).map(([agent, queue]) => ({ agent, queue, workers: workers.filter((worker) => serves(worker, agent, queue)).length })),
    );
    setText(this.watchers, watchers.join(", ") || "No watcher runs: tasks of lost workers stay open, and webhooks receive nothing. Start one with celery -A … a2a watcher.");
  }
}

/** Return the texts of the dialog before a drain: what happens to the runs, and which queues no other worker consumes. */
function drainTexts({ name, queues, active, prefetched }, workers) {
  const unserved = queues.filter((queue) => !workers.some((other) => other.name !== name && other.queues?.includes(queue)));
  return [
    `The worker ${name} stops consuming ${joinNames(queues)}. ${count(active ?? 0, "active run")} continue${active === 1 ? "s" : ""}, and ${count(prefetched ?? 0, "prefetched run")} start${prefetched === 1 ? "s" : ""} on other workers.`,
    ...(unserved.length ? [`No other worker consumes ${unserved.join(", ")}: runs sent to it wait until a worker does.`] : []),
  ];
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
