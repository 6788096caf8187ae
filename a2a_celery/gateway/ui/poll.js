/** Repeated requests of a view. Only one request runs at a time, and none starts while the page is hidden. */

export class Poll {
  #timer = null;
  #round = 0;
  #busy = false;

  /** `load()` is awaited and must not throw. `interval` is the time from the end of a call to the next, in ms. */
  constructor(load, interval) {
    this.load = load;
    this.interval = interval;
    document.addEventListener("visibilitychange", () => document.hidden || !this.#timer || this.now());
  }

  start() {
    if (this.#timer === null) this.now();
  }

  stop() {
    this.#round++;
    clearTimeout(this.#timer);
    this.#timer = null;
  }

  /** Calls `load()` now, or soon after the call that is in progress. */
  async now() {
    const round = ++this.#round;
    clearTimeout(this.#timer);
    this.#timer = -1;
    if (this.#busy) return this.#later(round, 50);
    this.#busy = true;
    try {
      if (!document.hidden) await this.load();
    } finally {
      this.#busy = false;
    }
    return this.#later(round, this.interval);
  }

  #later(round, wait) {
    if (round !== this.#round) return;
    this.#timer = setTimeout(() => this.now(), wait);
  }
}
