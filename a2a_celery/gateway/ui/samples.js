/** Samples of the fleet's counts, and the rates and percentiles between two samples. */

/** Maximum number of samples in memory: one hour with a sample every five seconds. */
const MOST = 720;
/** Milliseconds over which a rate or a percentile is computed. */
const SPAN = 60_000;

export class Samples {
  #list = [];

  /** Adds an overview as the operator's API returns it. */
  add(overview) {
    const at = Date.parse(overview.at);
    const last = this.#list.at(-1);
    if (last && at <= last.at) return;
    const { bounds, runs, times, webhooks, store } = overview;
    this.#list.push({ at, ended: endedOf(overview), queue: times.queue, run: times.run, bounds, runs, webhooks, store });
    if (this.#list.length > MOST) this.#list.shift();
  }

  /** Returns `[time, [ended tasks per minute, failed and rejected tasks per minute]]` of each sample. */
  throughput() {
    return this.#rates("ended", ["all", "failed"]);
  }

  /** Returns `[time, [delivered posts per minute, failed posts per minute]]` of each sample. */
  posts() {
    return this.#rates("webhooks", ["delivered", "failed"]);
  }

  /** Returns `[time, [bytes of the store, limit in bytes]]` of each sample. A value is null if unknown or unlimited. */
  memory() {
    return this.#list.map(({ at, store }) => [at, [store.bytes, store.maxBytes || null]]);
  }

  /** Returns `[time, [median, 95th percentile]]` of the times of `kind` ("queue" or "run"), in seconds, of each sample.
   * A value is null if nothing was measured. */
  latency(kind) {
    return this.#each((now, before) => {
      const counts = now[kind].map((count, i) => count - (before[kind][i] ?? 0));
      return [0.5, 0.95].map((share) => percentile(counts, now.bounds, share));
    });
  }

  /** Returns `[time, [running runs, waiting runs]]` of each sample. */
  open() {
    return this.#list.map(({ at, runs }) => [at, [runs.running, runs.queued + runs.blocked]]);
  }

  #rates(counts, kinds) {
    return this.#each((now, before) => {
      const minutes = (now.at - before.at) / 60_000;
      return kinds.map((kind) => Math.max(0, now[counts][kind] - before[counts][kind]) / minutes);
    });
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

/** Returns the value below which the fraction `share` of a histogram lies, interpolated linearly within its bucket, or
 * null for an empty histogram. */
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
