/** Samples of the fleet's counts, recorded by the fleet or read by this page, and the rates and percentiles between two
 * samples. */

const MINUTE = 60_000;
/** Maximum number of samples that the page reads and remembers: half an hour with a sample every five seconds. */
const MAX_LIVE = 360;
/** Intervals over which a rate or a percentile is computed. A longer time than one interval prevents a rate over the
 * few seconds since the newest recorded sample. */
const WINDOW = 1.5;

/** Ranges of the charts as `[name in the URL, title, length in ms, range of the operator's API]`. */
export const RANGES = [
  ["half-hour", "30 minutes", 30 * MINUTE, "hour"],
  ["hour", "Hour", 60 * MINUTE, "hour"],
  ["day", "Day", 24 * 60 * MINUTE, "day"],
];

export class Samples {
  #live = [];
  #recorded = {};
  #intervals = { hour: MINUTE, day: 15 * MINUTE };

  /** Add an overview as the operator's API returns it. */
  add(overview) {
    const sample = sampleOf(overview, terminalCounts(Object.values(overview.agents).map(({ ended }) => ended)), overview.bounds);
    const newest = this.#live.at(-1);
    if (newest && sample.at <= newest.at) return;
    this.#live.push(sample);
    if (this.#live.length > MAX_LIVE) this.#live.shift();
  }

  /** Replace the recorded samples of a range by a history as the operator's API returns it. */
  setHistory({ range, intervalSeconds, bounds, samples }) {
    this.#recorded[range] = samples.map((sample) => sampleOf(sample, terminalCounts([sample.ended]), bounds));
    this.#intervals[range] = intervalSeconds * 1000;
  }

  /** Return the time of the oldest recorded sample of a range of the API, null if no sample is recorded, or undefined
   * before the range is read. */
  beginOf(range) {
    return this.#recorded[range] && (this.#recorded[range][0]?.at ?? null);
  }

  /** Return the series of the newest `length` milliseconds. The page's own samples refine the recorded samples of the
   * last hour. Among the quarters of an hour of a day, only the newest sample of the page is included. */
  series(range, length) {
    const live = range === "hour" ? this.#live : this.#live.slice(-1);
    const samples = [...(this.#recorded[range] ?? []), ...live].sort((a, b) => a.at - b.at);
    const newest = samples.at(-1)?.at ?? 0;
    return new Series(samples.filter(({ at }) => at >= newest - length), this.#intervals[range]);
  }
}

/** Samples of a range, oldest first. Each method returns a list of `[time, values]`. */
class Series {
  constructor(samples, interval) {
    this.samples = samples;
    this.interval = interval;
  }

  /** Return `[ended tasks per minute, failed and rejected tasks per minute]` of each sample. */
  throughput() {
    return this.#rates("terminal", ["total", "failed"]);
  }

  /** Return `[delivered posts per minute, posts per minute that failed and are retried, posts per minute that were
   * given up]` of each sample. */
  posts() {
    return this.#rates("webhooks", ["delivered", "failed", "givenUp"]);
  }

  /** Return `[bytes of the store, limit in bytes]` of each sample. A value is null if unknown or unlimited. */
  memory() {
    return this.samples.map(({ at, store }) => [at, [store.bytes, store.maxBytes || null]]);
  }

  /** Return `[median, 95th percentile]` of the times of `kind` ("queue" or "run"), in seconds, of each sample. A value
   * is null if nothing was measured. */
  latency(kind) {
    return this.#compareSamples(2, (current, previous) => {
      const counts = current.times[kind].map((count, i) => count - (previous.times[kind][i] ?? 0));
      return percentiles(counts, current.bounds);
    });
  }

  /** Return `[median, 95th percentile]` of all times of `kind` since the store was created. */
  latencyInTotal(kind) {
    const newest = this.samples.at(-1);
    return newest ? percentiles(newest.times[kind], newest.bounds) : [null, null];
  }

  /** Return `[running runs, waiting runs]` of each sample. */
  open() {
    return this.samples.map(({ at, runs }) => [at, [runs.running, runs.queued + runs.blocked]]);
  }

  #rates(counts, kinds) {
    return this.#compareSamples(kinds.length, (current, previous) => {
      const minutes = (current.at - previous.at) / MINUTE;
      return kinds.map((kind) => (current[counts][kind] - previous[counts][kind]) / minutes);
    });
  }

  /** Compare each sample with the oldest sample in its window, and return `size` values of each comparison. A store that
   * was emptied counts from 0 again, so all values across this moment are null. */
  #compareSamples(size, compare) {
    let start = 0;
    return this.samples.slice(1).map((current, i) => {
      while (start < i && current.at - this.samples[start].at > WINDOW * this.interval) start++;
      const previous = this.samples[start];
      return [current.at, isContinued(current, previous) ? compare(current, previous) : Array(size).fill(null)];
    });
  }
}

const sampleOf = ({ at, runs, times, webhooks, store }, terminal, bounds) => ({ at: Date.parse(at), terminal, times, bounds, runs, webhooks, store });

const totalsOf = ({ terminal, times, webhooks }) => [terminal.total, terminal.failed, ...times.queue, ...times.run, webhooks.delivered, webhooks.failed, webhooks.givenUp];

/** Return false if a total of `current` is below that of the earlier sample `previous`. */
function isContinued(current, previous) {
  const earlier = totalsOf(previous);
  return totalsOf(current).every((total, i) => total >= (earlier[i] ?? 0));
}

function terminalCounts(counts) {
  const sum = (states) => counts.reduce((total, ended) => total + states.reduce((subtotal, state) => subtotal + (ended[state] ?? 0), 0), 0);
  return {
    total: sum(["TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED"]),
    failed: sum(["TASK_STATE_FAILED", "TASK_STATE_REJECTED"]),
  };
}

const percentiles = (counts, bounds) => [0.5, 0.95].map((share) => percentile(counts, bounds, share));

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
