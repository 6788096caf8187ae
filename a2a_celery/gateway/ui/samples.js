/** Samples of the fleet's counts, and the rates and percentiles between two of them. Pure. */

const MOST = 720;
/** Samples that are kept: an hour at one in five seconds. */
const SPAN = 60_000;
/** Milliseconds over which a rate or a percentile is computed. */

export class Samples {
  #list = [];

  /** Adds an overview as the operator's API returns it. */
  add(overview) {
    const at = Date.parse(overview.at);
    const last = this.#list.at(-1);
    if (last && at <= last.at) return;
    this.#list.push({ at, ended: endedOf(overview), queue: overview.times.queue, run: overview.times.run, bounds: overview.bounds, runs: overview.runs });
    if (this.#list.length > MOST) this.#list.shift();
  }

  /** `[time, [ended tasks per minute, of these failed]]` of each sample. */
  throughput() {
    return this.#each((now, before) => {
      const minutes = (now.at - before.at) / 60_000;
      return ["all", "failed"].map((kind) => Math.max(0, now.ended[kind] - before.ended[kind]) / minutes);
    });
  }

  /** `[time, [median, 95th percentile]]`, in seconds, of `kind`: "queue" or "run". Null if nothing ended. */
  latency(kind) {
    return this.#each((now, before) => {
      const counts = now[kind].map((count, i) => count - (before[kind][i] ?? 0));
      return [0.5, 0.95].map((share) => percentile(counts, now.bounds, share));
    });
  }

  /** `[time, [waiting runs, running runs]]` of each sample. */
  open() {
    return this.#list.map(({ at, runs }) => [at, [runs.queued + runs.blocked, runs.running]]);
  }

  #each(compare) {
    let first = 0;
    return this.#list.slice(1).map((now, i) => {
      while (first < i && now.at - this.#list[first].at > SPAN) first++;
      return [now.at, compare(now, this.#list[first])];
    });
  }
}

function endedOf({ agents }) {
  const counts = Object.values(agents).map(({ ended }) => ended);
  const sum = (states) => counts.reduce((all, ended) => all + states.reduce((some, state) => some + (ended[state] ?? 0), 0), 0);
  return {
    all: sum(["TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED"]),
    failed: sum(["TASK_STATE_FAILED", "TASK_STATE_REJECTED"]),
  };
}

/** The value below which `share` of a histogram lies, linear within its bucket; null for an empty histogram. */
export function percentile(counts, bounds, share) {
  const all = counts.reduce((sum, count) => sum + count, 0);
  if (all <= 0) return null;
  let below = 0;
  for (let i = 0; i < counts.length; i++) {
    if (below + counts[i] >= share * all && counts[i] > 0) {
      const from = i === 0 ? 0 : bounds[i - 1];
      const to = bounds[i] ?? bounds.at(-1);
      return from + ((share * all - below) / counts[i]) * (to - from);
    }
    below += counts[i];
  }
  return bounds.at(-1);
}
