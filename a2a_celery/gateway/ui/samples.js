/** Samples of the fleet's counts, and the rates and percentiles between two samples. */

/** Maximum number of samples in memory: one hour with a sample every five seconds. */
const MAX_SAMPLES = 720;
/** Milliseconds over which a rate or a percentile is computed. */
const WINDOW = 60_000;

export class Samples {
  #list = [];

  /** Add an overview as the operator's API returns it. */
  add(overview) {
    const at = Date.parse(overview.at);
    const newest = this.#list.at(-1);
    if (newest && at <= newest.at) return;
    const { bounds, runs, times, webhooks, store } = overview;
    this.#list.push({ at, terminal: terminalCounts(overview), queue: times.queue, run: times.run, bounds, runs, webhooks, store });
    if (this.#list.length > MAX_SAMPLES) this.#list.shift();
  }

  /** Return `[time, [ended tasks per minute, failed and rejected tasks per minute]]` of each sample. */
  throughput() {
    return this.#rates("terminal", ["total", "failed"]);
  }

  /** Return `[time, [delivered posts per minute, failed posts per minute]]` of each sample. */
  posts() {
    return this.#rates("webhooks", ["delivered", "failed"]);
  }

  /** Return `[time, [bytes of the store, limit in bytes]]` of each sample. A value is null if unknown or unlimited. */
  memory() {
    return this.#list.map(({ at, store }) => [at, [store.bytes, store.maxBytes || null]]);
  }

  /** Return `[time, [median, 95th percentile]]` of the times of `kind` ("queue" or "run"), in seconds, of each sample.
   * A value is null if nothing was measured. */
  latency(kind) {
    return this.#compareSamples((current, previous) => {
      const counts = current[kind].map((count, i) => count - (previous[kind][i] ?? 0));
      return [0.5, 0.95].map((share) => percentile(counts, current.bounds, share));
    });
  }

  /** Return `[time, [running runs, waiting runs]]` of each sample. */
  open() {
    return this.#list.map(({ at, runs }) => [at, [runs.running, runs.queued + runs.blocked]]);
  }

  #rates(counts, kinds) {
    return this.#compareSamples((current, previous) => {
      const minutes = (current.at - previous.at) / 60_000;
      return kinds.map((kind) => Math.max(0, current[counts][kind] - previous[counts][kind]) / minutes);
    });
  }

  #compareSamples(compare) {
    let start = 0;
    return this.#list.slice(1).map((current, i) => {
      while (start < i && current.at - this.#list[start].at > WINDOW) start++;
      return [current.at, compare(current, this.#list[start])];
    });
  }
}

function terminalCounts({ agents }) {
  const counts = Object.values(agents).map(({ ended }) => ended);
  const sum = (states) => counts.reduce((total, ended) => total + states.reduce((subtotal, state) => subtotal + (ended[state] ?? 0), 0), 0);
  return {
    total: sum(["TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED"]),
    failed: sum(["TASK_STATE_FAILED", "TASK_STATE_REJECTED"]),
  };
}

/** Return the value below which the fraction `share` of a histogram lies, interpolated linearly within its bucket, or
 * null for an empty histogram. */
export function percentile(counts, bounds, share) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total <= 0) return null;
  let cumulative = 0;
  for (let i = 0; i < counts.length; i++) {
    if (cumulative + counts[i] >= share * total && counts[i] > 0) {
      const lower = i === 0 ? 0 : bounds[i - 1];
      const upper = bounds[i] ?? bounds.at(-1);
      return lower + ((share * total - cumulative) / counts[i]) * (upper - lower);
    }
    cumulative += counts[i];
  }
  return bounds.at(-1);
}
