/** Timeline of one task of any owner, for operators: its runs, steps, events, deliveries and relatives. */

import { el, link, reconcile, setText } from "./dom.js";
import { ownerOf } from "./fleet_tasks.js";
import { Poll } from "./poll.js";
import { OUTCOMES, badge, formatClock, formatDuration, showState, stateName } from "./texts.js";

const INTERVAL = 3000;
const STEP_KINDS = {
  INITIALIZING: ["Running", "main"],
  MODEL_CALL: ["Model call", "model"],
  TOOL_EXECUTION: ["Tool call", "tool"],
  COMPLETED: ["Completed", "good"],
  INTERRUPTED: ["Interrupted", "slow"],
  CANCELLED: ["Canceled", "soft"],
  ERROR: ["Failed", "bad"],
};
const END_STATES = ["COMPLETED", "INTERRUPTED", "CANCELLED", "ERROR"];

export class TimelineView {
  #id = "";

  constructor(views) {
    this.views = views;
    this.state = badge("");
    this.facts = el("dl", { class: "facts-list" });
    this.links = el("p", { class: "links" });
    this.bars = el("div", { class: "runs", role: "list" });
    this.scale = el("div", { class: "head hint" }, el("span", {}), el("span", {}));
    this.runs = el("section", { class: "card stack" }, el("h3", {}, "Runs"), this.bars, this.scale);
    this.list = el("ol", { class: "timeline" });
    this.relatives = el("ul", { class: "relatives" });
    this.family = el("section", { class: "stack", hidden: true }, el("h3", {}, "Parent and child tasks"), this.relatives);
    this.element = el(
      "div",
      { class: "stack", hidden: true },
      el("header", { class: "stack" }, el("div", { class: "line-up" }, this.state), this.facts, this.links),
      this.runs,
      this.family,
      el("section", { class: "card stack" }, el("h3", {}, "Steps, events and deliveries"), this.list),
    );
    this.poll = new Poll(() => views.attempt(() => this.#load()), INTERVAL);
  }

  enter(query) {
    const id = query.get("id") ?? "";
    if (id !== this.#id) this.element.hidden = true;
    this.#id = id;
    this.poll.refresh();
  }

  leave() {
    this.poll.stop();
  }

  async #load() {
    const id = this.#id;
    const timeline = await this.views.api.timeline(id);
    if (id !== this.#id) return;
    this.element.hidden = false;
    document.title = `Timeline · ${stateName(timeline.task.state)}`;
    this.#drawHead(timeline.task);
    this.#drawRuns(timeline.steps, timeline.events, Date.parse(timeline.task.now));
    this.#drawFamily(timeline);
    const rows = itemsOf(timeline);
    reconcile(this.list, rows, ({ key }) => key, row, (item, { text }) => setText(item.lastChild, text));
  }

  #drawHead(task) {
    showState(this.state, task.state);
    const pairs = [["Task", task.id], ["Agent", task.agent + (task.version ? ` ${task.version}` : "")], ["Owner", ownerOf(task)], ["Context", task.contextId], ["Run", String(task.run)], ["Trace", task.traceId]];
    const key = JSON.stringify(pairs);
    if (this.facts.dataset.key === key) return;
    this.facts.dataset.key = key;
    this.facts.replaceChildren(...pairs.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    const ownLink = task.owner === this.views.app.owner && !task.tenant && el("a", { href: this.views.app.addressOf(task.agent, task.id) }, "Show messages and artifacts");
    this.links.replaceChildren(...[ownLink, task.traceUrl && link(task.traceUrl, "Open the trace")].filter(Boolean));
  }

  /** Draw a bar for each run. The time axis begins with the first event, so that it shows how long the first run
   * waited. */
  #drawRuns(steps, events, now) {
    this.runs.hidden = steps.length === 0;
    if (!steps.length) return;
    const start = Math.min(...[events[0], steps[0]].filter(Boolean).map(({ at }) => Date.parse(at)));
    const endTimes = [steps.at(-1), events.at(-1)].filter(Boolean).map(({ at }) => Date.parse(at));
    const end = Math.max(...endTimes, steps.at(-1).open ? now : 0, start + 1);
    const starts = steps.map(({ at }) => Date.parse(at));
    // a step without a recorded end, such as the last one before a worker was lost, lasts until the next step at most
    const bars = steps.map((step, i) => ({ ...step, end: step.seconds === null ? (starts[i + 1] ?? end) : starts[i] + step.seconds * 1000 }));
    const runs = [...Map.groupBy(bars, ({ run, attempt, worker }) => JSON.stringify([run, attempt, worker])).entries()];
    reconcile(
      this.bars,
      runs,
      ([key]) => key,
      ([key]) => {
        const [run, attempt, worker] = JSON.parse(key);
        return el("div", { role: "listitem", class: "run" }, el("span", { class: "run-name" }, `Run ${run}, attempt ${attempt}`), el("div", { class: "bar" }), el("span", { class: "hint line", title: worker }, worker));
      },
      (item, [, steps]) => drawBar(item.children[1], steps, start, end),
    );
    setText(this.scale.firstChild, formatClock(start).slice(0, 8));
    setText(this.scale.lastChild, `${formatDuration((end - start) / 1000)} in total`);
  }

  #drawFamily({ parent, children }) {
    const relatives = [...(parent ? [["Parent", parent]] : []), ...children.map((child) => ["Child", child])];
    this.family.hidden = relatives.length === 0;
    reconcile(
      this.relatives,
      relatives,
      ([role, { id }]) => `${role} ${id}`,
      ([role, { id, agent }]) => el("li", { class: "line-up" }, badge(""), el("span", {}, role), el("a", { href: this.views.addressOf(id) }, agent ? `${agent} ` : "", el("code", {}, id))),
      (item, [, { state }]) => showState(item.firstChild, state ?? "not stored"),
    );
  }
}

function drawBar(bar, steps, start, end) {
  const percent = (ms) => `${Math.min(100, Math.max(0, (ms / (end - start)) * 100))}%`;
  const visibleSteps = steps.filter(({ state }) => !END_STATES.includes(state));
  const text = steps.map((step) => [STEP_KINDS[step.state]?.[0] ?? step.state, durationText(step)].filter(Boolean).join(" ")).join(", ");
  if (bar.title === text && !steps.at(-1).open) return;
  bar.title = text;
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", text);
  bar.replaceChildren(
    ...visibleSteps.map((step) => {
      const segment = el("span", { class: `segment ${STEP_KINDS[step.state]?.[1] ?? "soft"}${step.seconds === null ? " unknown" : ""}` });
      segment.style.insetInlineStart = percent(Date.parse(step.at) - start);
      segment.style.inlineSize = percent(step.end - Date.parse(step.at));
      return segment;
    }),
  );
}

/** Return the duration of a step as text, or "" for the end of a run. */
function durationText({ state, seconds: duration, open }) {
  if (END_STATES.includes(state)) return "";
  return duration === null ? "no end recorded" : `${formatDuration(duration)}${open ? " so far" : ""}`;
}

/** Return the rows of the list in the order of their times, each as `{ key, at, kind, mark, text }`. */
function itemsOf({ steps, events, webhooks }) {
  const stepItems = steps.map((step) => {
    const [name, mark] = STEP_KINDS[step.state] ?? [step.state, "soft"];
    const detail = Object.entries(step.detail).map(([key, value]) => `${key} ${value}`);
    return { key: `s ${step.run} ${step.worker} ${step.at} ${step.state}`, at: step.at, kind: `Run ${step.run}`, mark, text: [name, durationText(step), ...detail].filter(Boolean).join(" · ") };
  });
  const eventItems = events.map(({ kind, first, last, at, state }) => {
    const number = first === last ? `#${first}` : `#${first} to #${last}`;
    const text = state ? stateName(state) : { artifact: "Artifact", client_message: "Message of the client", answer: "Answer" }[kind] ?? kind;
    return { key: `e ${first}`, at, kind: "Event", mark: state ? "state" : "soft", state, text: `${text} · ${number}` };
  });
  const postItems = webhooks.flatMap(({ id, attempts }) =>
    mergeAttempts(attempts).map(({ at, first, last, outcome, status, latencyMs, reason }) => {
      const events = first === last ? first : `${first} to ${last}`;
      const text = [OUTCOMES[outcome] ?? outcome, events, status, latencyMs === null ? "" : `${latencyMs} ms`, reason].filter(Boolean).join(" · ");
      return { key: `w ${id} ${first} ${outcome} ${at}`, at, kind: `Webhook ${id}`, mark: outcome === "delivered" ? "good" : "bad", text };
    }),
  );
  return [...stepItems, ...eventItems, ...postItems].sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
}

/** Return the attempts of one webhook, oldest first. Consecutive successful posts of events are one item with the time
 * of the last post. */
function mergeAttempts(attempts) {
  const groups = [];
  for (const attempt of attempts.toReversed()) {
    const event = /^\d/.test(attempt.event) ? `#${parseInt(attempt.event, 10)}` : attempt.event && "Ping";
    const previous = groups.at(-1);
    const isContinuation = previous?.outcome === "delivered" && attempt.outcome === "delivered" && previous.status === attempt.status && event !== "Ping" && previous.last !== "Ping";
    if (isContinuation) Object.assign(previous, { last: event, at: attempt.at, latencyMs: null });
    else groups.push({ ...attempt, first: event, last: event });
  }
  return groups;
}

function row({ at, kind, mark, state }) {
  return el(
    "li",
    {},
    el("span", { title: at, class: "exact" }, formatClock(at).slice(0, 8), el("span", { class: "fraction" }, formatClock(at).slice(8))),
    el("span", { class: `mark ${mark}`, "data-state": state }),
    el("span", { class: "kind line" }, kind),
    el("span", { class: "description", dir: "auto" }),
  );
}
