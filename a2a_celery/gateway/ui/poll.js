/** Repeated requests of a view. Only one request runs at a time, and none starts while the page is hidden. */

export class Poll {
  #timer = null;
  #round = 0;
  #isLoading = false;

  /** `load()` is awaited and must not throw. `interval` is the time from the end of a call to the next, in ms. */
  constructor(load, interval) {
    this.load = load;
    this.interval = interval;
    document.addEventListener("visibilitychange", () => document.hidden || !this.#timer || this.refresh());
  }

  start() {
    if (this.#timer === null) this.refresh();
  }

  stop() {
    this.#round++;
    clearTimeout(this.#timer);
    this.#timer = null;
  }

  /** Call `load()` now, or shortly after the call that is in progress. */
  async refresh() {
    const round = ++this.#round;
    clearTimeout(this.#timer);
    this.#timer = -1;
    if (this.#isLoading) return this.#schedule(round, 50);
    this.#isLoading = true;
    try {
      if (!document.hidden) await this.load();
    } finally {
      this.#isLoading = false;
    }
    return this.#schedule(round, this.interval);
  }

  #schedule(round, delay) {
    if (round !== this.#round) return;
    this.#timer = setTimeout(() => this.refresh(), delay);
  }
}
