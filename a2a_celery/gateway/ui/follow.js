/**
 * Follows one task: its stream, and when that breaks, the stream from where it broke (`Last-Event-ID`, where the server
 * gives ids); where there is none, looks every few seconds. Ends with the task, or when it is stopped.
 */

import { asError } from "./errors.js";
import { addMessage, apply, kindOf } from "./fold.js";
import { isEnded, isPaused } from "./words.js";

const FIRST_WAIT = 1000;
const LONGEST_WAIT = 15_000;
const LOOK = 2000;

/** The version in an event's id, `<version>` or `<version>-<time>`; null in any other id. */
function versionOf(id) {
  return /^\d+(-\d+)?$/.test(id ?? "") ? parseInt(id, 10) : null;
}

export class Follower {
  task = null;
  /** The id of the newest event, where the server gives ids that begin with a version. */
  lastId = null;
  /** The newest answer of GetTask. */
  seen = null;
  /** The version of the first event that was seen: what came before can be asked for. */
  first = null;

  /** `told.event({ id, event, at })`, `told.changed()`, `told.connection(kind, text)`, `told.failed(error)`. */
  constructor(agent, id, told) {
    this.agent = agent;
    this.id = id;
    this.told = told;
    this.stopped = new AbortController();
    this.wake = () => {};
  }

  stop() {
    this.stopped.abort();
    this.wake();
  }

  get gone() {
    return this.stopped.signal.aborted;
  }

  /** Runs to the end; `stream` is one that a message has begun, if there is one. Its failures are told. */
  async run(stream = null) {
    let wait = FIRST_WAIT;
    let doubt = true;
    while (!this.gone) {
      let progress = false;
      let broke = null;
      try {
        if (stream === null && (doubt || this.lastId === null)) await this.#look();
        if (!this.agent.streams) progress = true;
        else if (this.lastId !== null || !this.#ended) {
          stream ??= this.agent.subscribe(this.id, this.lastId, this.stopped.signal);
          for await (const one of stream) {
            if (!progress) this.told.connection("live", "Live");
            progress = true;
            this.take(one);
          }
        }
      } catch (raised) {
        if (this.gone) return;
        broke = asError(raised);
        if (this.#isFinal(broke)) return;
      }
      stream = null;
      if (isEnded(this.seen?.status?.state) && !this.#ended) this.#adopt(this.seen); // the stream did not say so
      if (this.gone || this.#ended) break;
      doubt = !progress || broke !== null;
      wait = progress ? FIRST_WAIT : Math.min(wait * 2, LONGEST_WAIT);
      await this.#pause(wait, progress, broke);
    }
    if (this.gone) return;
    await this.#settle();
    this.told.connection("ended", "Ended");
  }

  /** An event of the stream; one that was seen before, by its id, is dropped. */
  take({ id, event }) {
    const version = versionOf(id);
    if (version !== null) {
      const seen = id === this.lastId || (this.lastId !== null && version < versionOf(this.lastId));
      if (seen && kindOf(event) !== "task") return;
      this.lastId = id;
      this.first ??= version;
    }
    this.task = apply(this.task, event);
    this.told.event({ id: version, event, at: Date.now() });
    this.told.changed();
  }

  /** A message that this page has sent: it is in no stream. */
  sent(message) {
    if (this.task) addMessage(this.task, message);
    this.told.changed();
    this.wake();
  }

  /** The events before the first that was seen, where the server has kept them; null where it has not. */
  async earlier(signal) {
    if (this.first === 1) return [];
    const found = [];
    const until = this.first ?? Infinity;
    try {
      for await (const { id, event } of this.agent.subscribe(this.id, "0", AbortSignal.any([signal, this.stopped.signal]))) {
        const version = versionOf(id);
        if (version === null) return null; // it begins with now, whatever it is asked for
        if (version >= until) break;
        found.push({ id: version, event, at: null });
        if (version === until - 1) break;
      }
    } catch (raised) {
      if (signal.aborted || this.gone) return [];
      const error = asError(raised);
      if (error.passing) throw error;
      return null;
    }
    return found;
  }

  get #ended() {
    return isEnded(this.task?.status?.state);
  }

  async #look() {
    this.seen = await this.agent.get(this.id);
    if (this.gone) return;
    if (this.lastId === null) this.#adopt(this.seen); // else the stream goes on from where it was
    if (this.agent.streams) this.told.connection("live", "Live");
    else this.told.connection("looking", "Looks every 2 s: this agent does not stream");
  }

  #adopt(task) {
    const before = this.task;
    this.task = apply(null, { task });
    const news = JSON.stringify(before?.status) !== JSON.stringify(task.status);
    if (before !== null && news) this.told.event({ id: null, event: { task }, at: Date.now() });
    this.told.changed();
  }

  /** The history as the server has it: messages of other clients are in no stream. */
  async #settle() {
    try {
      const task = await this.agent.get(this.id);
      if (this.gone || !this.task) return;
      this.task.history = task.history ?? this.task.history;
      this.task.metadata = task.metadata;
      this.told.changed();
    } catch {
      // what the stream said is enough
    }
  }

  #isFinal(error) {
    if (error.reason === "TASK_NOT_FOUND" || [401, 403].includes(error.status)) {
      this.told.connection("lost", "Not followed");
      this.told.failed(error);
      return true;
    }
    if (error.violations?.length && this.lastId !== null) this.lastId = null; // it does not know that event
    return false;
  }

  async #pause(wait, progress, broke) {
    if (isPaused(this.task?.status?.state) && progress) await this.#settle();
    if (broke?.passing) this.told.connection("lost", `Connection lost: tries again in ${Math.round(wait / 1000)} s`);
    const length = !this.agent.streams ? LOOK : progress && !broke ? 200 : wait;
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, this.gone ? 0 : length);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.wake = () => {};
  }
}
