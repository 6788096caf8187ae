/** Rows of a timeline: the waits and runs of a task, and below each run its recorded calls and its model and tool
 * calls. */

import { END_REASONS, formatBytes, formatDuration, isTerminal, stateName } from "./texts.js";

export const STEP_KINDS = {
  INITIALIZING: ["Running", "main"],
  MODEL_CALL: ["Model call", "model"],
  TOOL_EXECUTION: ["Tool call", "tool"],
  COMPLETED: ["Completed", "good"],
  INTERRUPTED: ["Interrupted", "slow"],
  CANCELLED: ["Canceled", "soft"],
  ERROR: ["Failed", "bad"],
};
const END_STATES = ["COMPLETED", "INTERRUPTED", "CANCELLED", "ERROR"];

/** Texts of waits by kind: of an ended wait, and of an open wait. */
const WAITS = {
  worker: ["Waited for a worker", "Waits for a worker"],
  answer: ["Waited for an answer", "Waits for an answer"],
  authorization: ["Waited for an authorization", "Waits for an authorization"],
  child: ["Waited for a child task", "Waits for a child task"],
  signal: ["Waited for the signal", "Waits for the signal"],
  time: ["Slept", "Sleeps"],
  retry: ["Delay of the next attempt", "Delay of the next attempt"],
};

/** Texts of the ends of runs that did not end themselves, by the reason in the event that ended them. */
const RUN_ENDS = { lost: "The worker was lost", returned: "The worker was shut down" };

/** Recorded calls that are named by their kind. */
const CALLS = { model: "Model call", tool: "Tool", call: "Call of an agent", sleep: "Sleep", signal: "Signal" };

export const isEnd = ({ state }) => END_STATES.includes(state);

/** Return the waits and runs of a timeline in the order of their beginnings, and the results of other runs. Each row is
 * `{ key, kind, name, at, end, seconds, open, note, children }`, with times in ms. */
export function rowsOf(timeline) {
  const runs = runsOf(timeline);
  const executed = new Set(runs.flatMap((run) => run.executed));
  const others = callTree(timeline.recorded.filter((entry) => !executed.has(entry)), []);
  const otherRow = { key: "others", kind: "others", name: "Results of earlier runs", note: "", at: NaN, end: NaN, seconds: null, children: others };
  return [...(others.length ? [otherRow] : []), ...[...timeline.waits.map(waitRow), ...runs].sort((a, b) => a.at - b.at)];
}

/** Return the rows and their children in depth-first order, each with its level. */
export function flatten(rows, level = 0) {
  return rows.flatMap((row) => [{ ...row, level }, ...flatten(row.children ?? [], level + 1)]);
}

function waitRow({ kind, name, at, seconds, open, due }) {
  const start = Date.parse(at);
  const text = `${WAITS[kind]?.[open ? 1 : 0] ?? kind}${kind === "signal" ? ` ${name}` : ""}`;
  return { key: `w ${at}`, kind: "wait", name: text, child: kind === "child" ? name : "", at: start, end: start + seconds * 1000, seconds, open, due, note: "", children: [] };
}

/** Return the steps with their times in ms. A step without a recorded end lasts until the event that ended its run, such
 * as the event of a lost worker, or until the next step or the last event. `ending` names the end by an event. */
export function spansOf({ task, steps, events }) {
  const now = Date.parse(task.now);
  const last = Math.max(...[...steps, ...events].map(({ at }) => Date.parse(at)));
  const starts = steps.map(({ at }) => Date.parse(at));
  const endEvents = events.filter(({ state, reason }) => reason || isTerminal(state));
  return steps.map((step, i) => {
    const start = starts[i];
    if (step.open || step.seconds !== null || isEnd(step)) return { ...step, start, end: step.open ? now : start + (step.seconds ?? 0) * 1000 };
    const end = starts[i + 1] ?? last;
    const endEvent = endEvents.find(({ at }) => start <= Date.parse(at) && (i + 1 === starts.length || Date.parse(at) <= end));
    if (!endEvent) return { ...step, start, end };
    const endTime = Date.parse(endEvent.at);
    return { ...step, start, end: endTime, seconds: (endTime - start) / 1000, ending: RUN_ENDS[endEvent.reason] ?? END_REASONS[endEvent.reason] ?? stateName(endEvent.state) };
  });
}

/** Return the runs, with each retry of a Celery task as a separate run. */
function runsOf(timeline) {
  const { recorded } = timeline;
  const spans = spansOf(timeline);
  const groups = [];
  for (const span of spans) {
    const previous = groups.at(-1)?.at(-1);
    const isSame = previous && ["run", "attempt", "worker", "process"].every((name) => previous[name] === span[name]);
    if (isSame && span.state !== "INITIALIZING") groups.at(-1).push(span);
    else groups.push([span]);
  }
  return groups.map((states, i) => {
    const [{ run, attempt, worker, process, start, at }] = states;
    const lastState = states.at(-1);
    const nextStart = groups[i + 1]?.[0].start ?? Infinity;
    const retries = groups.slice(0, i).filter(([other]) => other.run === run).length;
    const executed = recorded.filter((entry) => entry.run === run && start <= Date.parse(entry.at) && Date.parse(entry.at) < nextStart);
    const calls = states.filter((state) => ["MODEL_CALL", "TOOL_EXECUTION"].includes(state.state));
    return {
      key: `r ${run} ${attempt} ${process} ${at}`,
      kind: "run",
      name: `Run ${run}, attempt ${attempt}${retries ? `, retry ${retries}` : ""}`,
      worker,
      process,
      states,
      executed,
      reusedCount: recorded.filter((entry) => entry.run !== null && Date.parse(entry.at) < start).length,
      at: start,
      end: lastState.end,
      seconds: (lastState.end - start) / 1000,
      open: lastState.open,
      note: outcomeOf(lastState),
      children: callTree(executed, calls),
    };
  });
}

/** Return the attempt that a status announces and the reason of the status as text, or "". */
export function attemptText({ attempt, maxAttempts, reason }) {
  const number = attempt && `attempt ${attempt}${maxAttempts ? ` of ${maxAttempts}` : ""}`;
  return [number, reason && (RUN_ENDS[reason] ?? END_REASONS[reason] ?? reason)].filter(Boolean).join(" · ");
}

/** Return how a run has ended, or "" for an open run. */
function outcomeOf(state) {
  if (state.open) return "";
  if (!isEnd(state)) return state.ending ?? "No end recorded";
  const { reason, ...rest } = state.detail;
  const name = STEP_KINDS[state.state][0];
  return [reason && reason !== name.toLowerCase() ? `${name}: ${reason}` : name, ...Object.entries(rest).map(([key, value]) => `${key} ${value}`)].join(" · ");
}

/** Return the recorded calls and the model and tool calls of a run as a tree: a call within a recorded call is a child of
 * the innermost such call. */
function callTree(recorded, calls) {
  const rows = new Map(recorded.map((entry) => [entry.key, recordedRow(entry)]));
  const roots = [];
  let order = 0;
  for (const [key, row] of rows) {
    row.order = order = Number.isNaN(row.at) ? order : row.at;
    const outer = rows.get(key.slice(0, Math.max(0, key.lastIndexOf("/"))));
    (outer?.children ?? roots).push(row);
  }
  for (const call of calls) {
    const containing = [...rows.values()].filter(({ at, end }) => at <= call.start && call.start < end);
    const innermost = containing.sort((a, b) => b.at - a.at || a.end - b.end)[0];
    (innermost?.children ?? roots).push({ ...stateRow(call), order: call.start });
  }
  for (const list of [roots, ...[...rows.values()].map(({ children }) => children)]) list.sort((a, b) => a.order - b.order);
  return roots;
}

function stateRow({ run, process, state, at, start, end, seconds, open, detail, ending }) {
  const name = [STEP_KINDS[state][0], ...Object.values(detail)].join(" ");
  return { key: `s ${run} ${process} ${at} ${state}`, kind: "state", name, at: start, end, seconds, open, note: ending ?? (seconds === null ? "No end recorded" : ""), children: [] };
}

function recordedRow({ key, kind, form, run, attempts, at, seconds, size, arguments: input, content, cut }) {
  const start = Date.parse(at ?? "");
  const isFailed = form === "failure";
  const isUnfinished = form === "unfinished";
  const sizeText = `${formatBytes(size)} recorded${cut && !content ? ", not shown" : ""}`;
  const note = isFailed ? "Failed" : isUnfinished ? "Not finished" : sizeText;
  return { key: `c ${key}`, kind: "recorded", name: callName(key, kind), title: key, input, run, attempts, at: start, end: start + (seconds ?? 0) * 1000, seconds, note, isFailed, content: isUnfinished ? null : content, cut, children: [] };
}

/** Return the name of a call from its key, such as "fetch #2" for `fetch#2` and for `outer#1/fetch(8f2c)#2`. */
function callName(key, kind) {
  const [, stem, number] = /([^/]*?)(?:\([0-9a-f]*\))?#(\d+)$/.exec(key) ?? ["", key, ""];
  let name = stem;
  try {
    name = decodeURIComponent(stem);
  } catch {
    // a name that is not quoted
  }
  return [kind === "model" ? "" : name, number && `#${number}`].reduce((text, part) => (part ? `${text} ${part}` : text), CALLS[kind] ?? "").trim();
}

/** Return the duration of a row as text. */
export function durationOf({ at, seconds, open, due }) {
  if (seconds === null) return "";
  const text = formatDuration(seconds);
  const limit = due ? `, at most ${formatDuration(Math.round((Date.parse(due) - at) / 1000))}` : "";
  return open ? `${text} so far${limit}` : text;
}
