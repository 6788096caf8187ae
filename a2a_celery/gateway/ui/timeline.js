/** Timeline of one task of any owner, for operators: its runs, steps, events, deliveries and relatives. */

import { el, keyed, link, say } from "./dom.js";
import { ownerOf } from "./fleet_tasks.js";
import { Poll } from "./poll.js";
import { OUTCOMES, badge, clock, seconds, showState, wordFor } from "./words.js";

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
const ENDS = ["COMPLETED", "INTERRUPTED", "CANCELLED", "ERROR"];

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
    this.poll.now();
  }

  leave() {
    this.poll.stop();
  }

  async #load() {
    const id = this.#id;
    const found = await this.views.api.timeline(id);
    if (id !== this.#id) return;
    this.element.hidden = false;
    document.title = `Timeline · ${wordFor(found.task.state)}`;
    this.#drawHead(found.task);
    this.#drawRuns(found.steps, found.events, Date.parse(found.task.now));
    this.#drawFamily(found);
    const rows = itemsOf(found);
    keyed(this.list, rows, ({ key }) => key, row, (item, { text }) => say(item.lastChild, text));
  }

  #drawHead(task) {
    showState(this.state, task.state);
    const pairs = [["Task", task.id], ["Agent", task.agent + (task.version ? ` ${task.version}` : "")], ["Owner", ownerOf(task)], ["Context", task.contextId], ["Run", String(task.run)], ["Trace", task.traceId]];
    const key = JSON.stringify(pairs);
    if (this.facts.dataset.key === key) return;
    this.facts.dataset.key = key;
    this.facts.replaceChildren(...pairs.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    const own = task.owner === this.views.app.owner && !task.tenant && el("a", { href: this.views.app.addressOf(task.agent, task.id) }, "Show messages and artifacts");
    this.links.replaceChildren(...[own, task.traceUrl && link(task.traceUrl, "Open the trace")].filter(Boolean));
  }

  /** Draws a bar for each run. The time axis begins with the first event, so that it shows how long the first run
   * waited. */
  #drawRuns(steps, events, now) {
    this.runs.hidden = steps.length === 0;
    if (!steps.length) return;
    const from = Math.min(...[events[0], steps[0]].filter(Boolean).map(({ at }) => Date.parse(at)));
    const ends = [steps.at(-1), events.at(-1)].filter(Boolean).map(({ at }) => Date.parse(at));
    const until = Math.max(...ends, steps.at(-1).open ? now : 0, from + 1);
    const starts = steps.map(({ at }) => Date.parse(at));
    // a step without a recorded end, such as the last one before a worker was lost, lasts until the next step at most
    const bars = steps.map((step, i) => ({ ...step, until: step.seconds === null ? (starts[i + 1] ?? until) : starts[i] + step.seconds * 1000 }));
    const runs = [...Map.groupBy(bars, ({ run, attempt, worker }) => JSON.stringify([run, attempt, worker])).entries()];
    keyed(
      this.bars,
      runs,
      ([key]) => key,
      ([key]) => {
        const [run, attempt, worker] = JSON.parse(key);
        return el("div", { role: "listitem", class: "run" }, el("span", { class: "run-name" }, `Run ${run}, attempt ${attempt}`), el("div", { class: "bar" }), el("span", { class: "hint line", title: worker }, worker));
      },
      (item, [, its]) => drawBar(item.children[1], its, from, until),
    );
    say(this.scale.firstChild, clock(from).slice(0, 8));
    say(this.scale.lastChild, `${seconds((until - from) / 1000)} in total`);
  }

  #drawFamily({ parent, children }) {
    const relatives = [...(parent ? [["Parent", parent]] : []), ...children.map((child) => ["Child", child])];
    this.family.hidden = relatives.length === 0;
    keyed(
      this.relatives,
      relatives,
      ([role, { id }]) => `${role} ${id}`,
      ([role, { id, agent }]) => el("li", { class: "line-up" }, badge(""), el("span", {}, role), el("a", { href: this.views.addressOf(id) }, agent ? `${agent} ` : "", el("code", {}, id))),
      (item, [, { state }]) => showState(item.firstChild, state ?? "not stored"),
    );
  }
}

function drawBar(bar, steps, from, until) {
  const share = (ms) => `${Math.min(100, Math.max(0, (ms / (until - from)) * 100))}%`;
  const shown = steps.filter(({ state }) => !ENDS.includes(state));
  const text = steps.map((step) => [STEP_KINDS[step.state]?.[0] ?? step.state, lengthOf(step)].filter(Boolean).join(" ")).join(", ");
  if (bar.title === text && !steps.at(-1).open) return;
  bar.title = text;
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", text);
  bar.replaceChildren(
    ...shown.map((step) => {
      const segment = el("span", { class: `segment ${STEP_KINDS[step.state]?.[1] ?? "soft"}${step.seconds === null ? " unknown" : ""}` });
      segment.style.insetInlineStart = share(Date.parse(step.at) - from);
      segment.style.inlineSize = share(step.until - Date.parse(step.at));
      return segment;
    }),
  );
}

/** Returns the duration of a step as text, or "" for the end of a run. */
function lengthOf({ state, seconds: time, open }) {
  if (ENDS.includes(state)) return "";
  return time === null ? "no end recorded" : `${seconds(time)}${open ? " so far" : ""}`;
}

/** Returns the rows of the list in the order of their times, each as `{ key, at, kind, mark, text }`. */
function itemsOf({ steps, events, webhooks }) {
  const ofSteps = steps.map((step) => {
    const [name, mark] = STEP_KINDS[step.state] ?? [step.state, "soft"];
    const detail = Object.entries(step.detail).map(([key, value]) => `${key} ${value}`);
    return { key: `s ${step.run} ${step.worker} ${step.at} ${step.state}`, at: step.at, kind: `Run ${step.run}`, mark, text: [name, lengthOf(step), ...detail].filter(Boolean).join(" · ") };
  });
  const ofEvents = events.map(({ kind, first, last, at, state }) => {
    const number = first === last ? `#${first}` : `#${first} to #${last}`;
    const text = state ? wordFor(state) : { artifact: "Artifact", client_message: "Message of the client", answer: "Answer" }[kind] ?? kind;
    return { key: `e ${first}`, at, kind: "Event", mark: state ? "state" : "soft", state, text: `${text} · ${number}` };
  });
  const ofPosts = webhooks.flatMap(({ id, attempts }) =>
    grouped(attempts).map(({ at, first, last, outcome, status, latencyMs, reason }) => {
      const events = first === last ? first : `${first} to ${last}`;
      const text = [OUTCOMES[outcome] ?? outcome, events, status, latencyMs === null ? "" : `${latencyMs} ms`, reason].filter(Boolean).join(" · ");
      return { key: `w ${id} ${first} ${outcome} ${at}`, at, kind: `Webhook ${id}`, mark: outcome === "delivered" ? "good" : "bad", text };
    }),
  );
  return [...ofSteps, ...ofEvents, ...ofPosts].sort((one, other) => Date.parse(one.at) - Date.parse(other.at));
}

/** Returns the attempts of one webhook, oldest first. Consecutive successful posts of events are one item with the time
 * of the last post. */
function grouped(attempts) {
  const found = [];
  for (const attempt of attempts.toReversed()) {
    const event = /^\d/.test(attempt.event) ? `#${parseInt(attempt.event, 10)}` : attempt.event && "Ping";
    const before = found.at(-1);
    const follows = before?.outcome === "delivered" && attempt.outcome === "delivered" && before.status === attempt.status && event !== "Ping" && before.last !== "Ping";
    if (follows) Object.assign(before, { last: event, at: attempt.at, latencyMs: null });
    else found.push({ ...attempt, first: event, last: event });
  }
  return found;
}

function row({ at, kind, mark, state }) {
  return el(
    "li",
    {},
    el("span", { title: at, class: "exact" }, clock(at).slice(0, 8), el("span", { class: "fraction" }, clock(at).slice(8))),
    el("span", { class: `mark ${mark}`, "data-state": state }),
    el("span", { class: "kind line" }, kind),
    el("span", { class: "what", dir: "auto" }),
  );
}
