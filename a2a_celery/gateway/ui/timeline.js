/** Timeline of one task of any owner, for operators: its runs, waits, steps, events, deliveries and relatives. */

import { el, reconcile, setText } from "./dom.js";
import { ownerOf } from "./fleet_tasks.js";
import { Poll } from "./poll.js";
import { Table, createLink, setLink } from "./table.js";
import { TaskActions } from "./task_actions.js";
import { OUTCOMES, badge, formatBytes, formatClock, formatDuration, showState, stateName } from "./texts.js";
import { STEP_KINDS, attemptText, durationOf, flatten, isEnd, rowsOf, spansOf } from "./timeline_rows.js";

const INTERVAL = 3000;
/** Number of bars, and of rows of the table, that are shown, and that each click of a button adds. */
const PAGE_SIZE = 100;

const LEGEND = [["wait", "Wait"], ...["INITIALIZING", "MODEL_CALL", "TOOL_EXECUTION"].map((state) => STEP_KINDS[state].toReversed()), ["recorded", "Recorded call"]];

export class TimelineView {
  #id = "";
  #rows = [];
  #limit = PAGE_SIZE;
  #aligns = false;

  constructor(views) {
    this.views = views;
    this.state = badge("");
    this.facts = el("dl", { class: "facts-list" });
    this.links = el("p", { class: "links" });
    this.actions = new TaskActions(views, () => this.poll.refresh());
    this.bars = el("div", { class: "runs", role: "list" });
    this.scale = el("div", { class: "head hint" }, el("span", {}), el("span", {}));
    this.modes = [false, true].map((aligns) => el("button", { type: "button", onclick: () => this.#setMode(aligns) }, aligns ? "Compare runs" : "In order"));
    this.modeSwitch = el("div", { class: "switch", role: "group", "aria-label": "Order of the bars" }, ...this.modes);
    this.legend = el("p", { class: "line-up" }, ...LEGEND.map(([kind, name]) => el("span", { class: `key ${kind}` }, name)));
    this.runs = el("section", { class: "card stack" }, el("div", { class: "head" }, el("h3", {}, "Runs and waits"), this.modeSwitch), this.bars, this.scale, this.legend);
    this.table = new Table(
      "Runs, waits and steps",
      [["Step", createStep, "step"], ["Began", null, "time"], ["Time", null, "time"], ["Attempts", null, "number"], ["Result", createResult, "result"]],
      ({ key }) => key,
      fillRow,
    );
    this.moreButton = el("button", { type: "button", onclick: () => this.#showMore() });
    this.recordedNote = el("p", { class: "hint" });
    this.steps = el("section", { class: "stack" }, el("h3", {}, "Runs, waits and steps"), this.recordedNote, this.table.element, el("p", {}, this.moreButton));
    this.list = el("ol", { class: "timeline" });
    this.relatives = el("ul", { class: "relatives" });
    this.family = el("section", { class: "stack", hidden: true }, el("h3", {}, "Parent and child tasks"), this.relatives);
    this.element = el(
      "div",
      { class: "stack", hidden: true },
      el("header", { class: "stack" }, el("div", { class: "line-up" }, this.state), this.facts, this.links, this.actions.element),
      this.runs,
      this.steps,
      this.family,
      el("section", { class: "card stack" }, el("h3", {}, "Runs, events and deliveries"), this.list),
    );
    this.poll = new Poll(() => views.attempt(() => this.#load()), INTERVAL);
  }

  enter(query) {
    const id = query.get("id") ?? "";
    if (id !== this.#id) {
      this.element.hidden = true;
      this.#limit = PAGE_SIZE;
      this.#aligns = false;
    }
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
    this.actions.show(timeline.task);
    this.#drawHead(timeline.task, timeline.events);
    this.#rows = rowsOf(timeline);
    this.#drawRows();
    setText(this.recordedNote, recordedText(timeline));
    this.#drawFamily(timeline);
    reconcile(this.list, itemsOf(timeline), ({ key }) => key, row, (item, { text }) => setText(item.lastChild, text));
  }

  #drawHead(task, events) {
    showState(this.state, task.state);
    const pairs = [["Task", task.id], ["Agent", task.agent + (task.version ? ` ${task.version}` : "")], ["Owner", ownerOf(task)], ["Context", task.contextId], ["Run", String(task.run)], ["Tokens", tokensText(events)], ["Trace", task.traceId]];
    const key = JSON.stringify(pairs);
    if (this.facts.dataset.key === key) return;
    this.facts.dataset.key = key;
    this.facts.replaceChildren(...pairs.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    const isOwn = task.owner === this.views.app.owner && !task.tenant;
    this.links.replaceChildren(...(isOwn ? [el("a", { href: this.views.app.addressOf(task.agent, task.id) }, "Show messages and artifacts")] : []));
  }

  #setMode(aligns) {
    this.#aligns = aligns;
    this.#drawRows();
  }

  #showMore() {
    this.#limit += PAGE_SIZE;
    this.#drawRows();
    if (this.moreButton.hidden) this.steps.querySelector("tbody tr:last-child summary, tbody tr:last-child a")?.focus();
  }

  #drawRows() {
    const runs = this.#rows.filter(({ kind }) => kind === "run");
    this.modeSwitch.hidden = runs.length < 2;
    const aligns = this.#aligns && runs.length > 1;
    this.modes.forEach((button, i) => button.setAttribute("aria-pressed", String(aligns === Boolean(i))));
    const bars = (aligns ? runs : this.#rows.filter(({ kind }) => kind !== "others")).slice(-this.#limit);
    this.runs.hidden = bars.length === 0;
    if (bars.length) this.#drawBars(bars, aligns);
    const rows = flatten(this.#rows);
    const start = Math.min(...this.#rows.map(({ at }) => at).filter((at) => !Number.isNaN(at)));
    this.table.draw(rows.slice(0, this.#limit).map((row) => ({ ...row, offset: row.at - start, addressOf: this.views.addressOf })));
    this.steps.hidden = rows.length === 0;
    this.moreButton.hidden = rows.length <= this.#limit;
    setText(this.moreButton, `Show more (${Math.max(0, rows.length - this.#limit)})`);
  }

  /** Draw a bar for each wait and run on one time axis or, to compare the runs, a bar for each run from its start. */
  #drawBars(bars, aligns) {
    const first = Math.min(...bars.map(({ at }) => at));
    const length = Math.max(1, ...bars.map(({ at, end }) => end - (aligns ? at : first)));
    reconcile(
      this.bars,
      bars,
      ({ key }) => key,
      ({ kind, process }) => el("div", { role: "listitem", class: `run ${kind}`, title: process && `Process ${process}` }, el("span", { class: "run-name" }), el("div", { class: "bar", role: "img" }), el("span", { class: "hint" }, el("span", {}), createLink())),
      (item, bar) => {
        const [name, track, note] = item.children;
        setText(name, bar.name);
        const [text, worker] = note.children;
        const texts = [durationOf(bar), aligns ? stepsText(bar) : "", bar.note].filter(Boolean);
        setText(text, [...texts, ...(bar.worker ? [""] : [])].join(" · "));
        setLink(worker, "#view=workers", bar.worker ?? "");
        worker.hidden = !bar.worker;
        drawBar(track, bar, aligns ? bar.at : first, length);
      },
    );
    LEGEND.forEach(([kind], i) => (this.legend.children[i].hidden = !this.bars.querySelector(`.segment.${kind}`)));
    setText(this.scale.firstChild, aligns ? "Start of each run" : formatClock(first).slice(0, 8));
    setText(this.scale.lastChild, `${formatDuration(length / 1000)} ${aligns ? "for the longest run" : "in total"}`);
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

/** Draw the segments of a wait or a run. `first` is the time of the beginning of the axis, and `length` its ms. */
function drawBar(track, bar, first, length) {
  const percent = (ms) => `${Math.min(100, Math.max(0, (ms / length) * 100))}%`;
  const states = (bar.states ?? []).filter((state) => !isEnd(state));
  const parts = [
    ...(bar.kind === "wait" ? [["wait", bar.at, bar.end]] : []),
    ...states.map((state) => [`${STEP_KINDS[state.state]?.[1] ?? "soft"}${state.seconds === null ? " unknown" : ""}`, state.start, state.end]),
    ...(bar.executed ?? []).filter(({ at }) => at).map(({ at, seconds, form }) => [`recorded${form === "failure" ? " bad" : ""}`, Date.parse(at), Date.parse(at) + seconds * 1000]),
  ];
  const key = JSON.stringify([parts, first, length]);
  if (track.dataset.key === key) return;
  track.dataset.key = key;
  const texts = states.map((step) => [STEP_KINDS[step.state]?.[0] ?? step.state, durationText(step)].filter(Boolean).join(" "));
  track.title = (texts.length ? texts : [bar.name]).join(", ");
  track.setAttribute("aria-label", track.title);
  track.replaceChildren(
    ...parts.map(([kind, start, end]) => {
      const segment = el("span", { class: `segment ${kind}` });
      segment.style.insetInlineStart = `min(${percent(start - first)}, 100% - 3px)`; // a short segment at the end is visible
      segment.style.inlineSize = percent(end - start);
      return segment;
    }),
  );
}

/** Return the numbers of recorded calls that a run has executed and that earlier runs have executed, or "". */
function stepsText({ executed, reusedCount }) {
  if (!executed.length && !reusedCount) return "";
  return `${executed.length} recorded, ${reusedCount} from earlier runs`;
}

/** Return a note about recorded arguments and results, or "" if there are none. */
function recordedText({ recorded, recordedCount, task }) {
  if (!recordedCount) return "";
  const owner = task.isOwner ? "Recorded arguments and results are shown to you because you own the task." : "Only the owner of the task sees recorded arguments and results.";
  return recorded.length < recordedCount ? `${owner} ${recordedCount - recorded.length} of ${recordedCount} results are not shown.` : owner;
}

/** Return the tokens of all events by model, or "". */
function tokensText(events) {
  const sums = new Map();
  for (const [model, { inputTokens = 0, outputTokens = 0 }] of events.flatMap(({ usage }) => Object.entries(usage ?? {}))) {
    const [inputs, outputs] = sums.get(model) ?? [0, 0];
    sums.set(model, [inputs + inputTokens, outputs + outputTokens]);
  }
  return [...sums].map(([model, [inputs, outputs]]) => `${inputs.toLocaleString()} in, ${outputs.toLocaleString()} out${model ? ` (${model})` : ""}`).join("; ");
}

const createStep = () => el("div", { class: "step-name", dir: "auto" }, el("span", {}), el("span", { class: "hint line" }));

const createResult = () => el("div", { class: "recorded-result" });

function fillRow([step, began, time, attempts, result], row) {
  const [name, input] = step.children;
  step.dataset.level = row.level;
  step.dataset.kind = row.kind;
  name.title = row.title ?? "";
  setText(input, row.input ?? "");
  input.title = input.textContent;
  if (!row.child) setText(name, row.name);
  else if (name.textContent !== `${row.name} ${row.child}`) name.replaceChildren(`${row.name} `, el("a", { href: row.addressOf(row.child) }, row.child));
  setText(began, Number.isNaN(row.at) ? "" : row.offset < 1 ? "0 ms" : `+ ${formatDuration(row.offset / 1000)}`);
  began.title = Number.isNaN(row.at) ? "" : formatClock(row.at);
  setText(time, durationOf(row));
  setText(attempts, row.attempts ? String(row.attempts) : "");
  drawResult(result, row);
}

/** Draw the outcome of a row, and the recorded result if the caller may see it. */
function drawResult(element, { note, content, cut }) {
  const key = JSON.stringify([note, content, cut]);
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  if (!content) element.replaceChildren(note);
  else {
    const cutNote = cut && el("p", { class: "hint" }, `Cut after ${formatBytes(new Blob([content]).size)}.`);
    element.replaceChildren(el("details", {}, el("summary", {}, note), el("pre", { class: "data", tabindex: "0" }, content), cutNote || ""));
  }
}

/** Return the duration of a step as text, or "" for the end of a run. */
function durationText({ state, seconds: duration, open }) {
  if (isEnd({ state })) return "";
  return duration === null ? "no end recorded" : `${formatDuration(duration)}${open ? " so far" : ""}`;
}

/** Return the rows of the list in the order of their times, each as `{ key, at, kind, mark, text }`. */
function itemsOf(timeline) {
  const { events, webhooks } = timeline;
  const stepItems = spansOf(timeline).filter((step) => isEnd(step) || step.state === "INITIALIZING").map((step) => {
    const [name, mark] = STEP_KINDS[step.state] ?? [step.state, "soft"];
    const detail = Object.entries(step.detail).map(([key, value]) => `${key} ${value}`);
    return { key: `s ${step.run} ${step.process} ${step.at} ${step.state}`, at: step.at, kind: `Run ${step.run}`, mark, text: [name, durationText(step), ...detail].filter(Boolean).join(" · ") };
  });
  const eventItems = events.map((event) => {
    const { first, last, at, state } = event;
    const number = first === last ? `#${first}` : `#${first} to #${last}`;
    return { key: `e ${first}`, at, kind: "Event", mark: state ? "state" : "soft", state, text: [eventText(event), number].join(" · ") };
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

function eventText({ kind, state, name, chunks, first, last, at, until, usage, ...fields }) {
  if (state) return [stateName(state), attemptText(fields), usage && tokensText([{ usage }])].filter(Boolean).join(" · ");
  if (kind === "omitted") return `${(last - first + 1).toLocaleString()} events that are not shown`;
  if (kind !== "artifact") return { client_message: "Message of the client", answer: "Answer" }[kind] ?? kind;
  const size = chunks > 1 ? `, ${chunks.toLocaleString()} chunks, ${formatDuration((Date.parse(until) - Date.parse(at)) / 1000)}` : "";
  return `Artifact${name ? ` ${name}` : ""}${size}`;
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
