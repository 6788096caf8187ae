/**
 * Follower of one task, which reads the task's stream until the task ends or `stop()` is called. If the server sends
 * event ids, an interrupted stream is resumed after the last received event (`Last-Event-ID`). If the server does not
 * support streaming, the follower polls the task.
 */

import { asError } from "./errors.js";
import { addMessage, apply, kindOf } from "./fold.js";
import { isEnded, isPaused } from "./words.js";

const FIRST_WAIT = 1000;
const LONGEST_WAIT = 15_000;
const LOOK = 2000;

/** Returns the time in an event id of the form `<version>-<microseconds since 1970>` in ms, or null for any other id. */
function timeOf(id) {
  const found = /^\d+-(\d+)$/.exec(id ?? "");
  return found && Number(found[1]) / 1000;
}

/** Returns the version in an event id of the form `<version>` or `<version>-<time>`, or null for any other id. */
function versionOf(id) {
  return /^\d+(-\d+)?$/.test(id ?? "") ? parseInt(id, 10) : null;
}

export class Follower {
  task = null;
  /** Id of the newest event, or null if the server sends no ids that begin with a version. */
  lastId = null;
  /** Newest result of GetTask, or null. */
  seen = null;
  /** Version of the first received event, or null. `earlier()` reads the events before this version. */
  first = null;

  /** `told` has the callbacks `event({ id, event, at })`, `changed()`, `connection(kind, text)` and `failed(error)`. */
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

  /** Follows the task until it ends. `stream` is the stream that the first message has opened, or null. Errors are
   * passed to the callbacks. */
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
      if (isEnded(this.seen?.status?.state) && !this.#ended) this.#adopt(this.seen); // the stream did not include the end
      if (this.gone || this.#ended) break;
      doubt = !progress || broke !== null;
      wait = progress ? FIRST_WAIT : Math.min(wait * 2, LONGEST_WAIT);
      await this.#pause(wait, progress, broke);
    }
    if (this.gone) return;
    await this.#settle();
    this.told.connection("ended", "Ended");
  }

  /** Applies an event of the stream. An event that was received before is ignored. */
  take({ id, event }) {
    const version = versionOf(id);
    if (version !== null) {
      const seen = id === this.lastId || (this.lastId !== null && version < versionOf(this.lastId));
      if (seen && kindOf(event) !== "task") return;
      this.lastId = id;
      this.first ??= version;
    }
    this.task = apply(this.task, event);
    this.told.event({ id: version, event, at: timeOf(id) ?? Date.now() });
    this.told.changed();
  }

  /** Adds a message that this page has sent to the history, because streams do not contain messages of clients. */
  sent(message) {
    if (this.task) addMessage(this.task, message);
    this.told.changed();
    this.wake();
  }

  /** Returns the events before the first received event, or null if the server no longer has them. */
  async earlier(signal) {
    if (this.first === 1) return [];
    const found = [];
    const until = this.first ?? Infinity;
    try {
      for await (const { id, event } of this.agent.subscribe(this.id, "0", AbortSignal.any([signal, this.stopped.signal]))) {
        const version = versionOf(id);
        if (version === null) return null; // the server ignores Last-Event-ID, so the stream begins with the current task
        if (version >= until) break;
        found.push({ id: version, event, at: timeOf(id) });
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
    if (this.lastId === null) this.#adopt(this.seen); // otherwise the stream is resumed after the last event
    if (this.agent.streams) this.told.connection("live", "Live");
    else this.told.connection("looking", "Updated every 2 s, because this agent does not stream");
  }

  #adopt(task) {
    const before = this.task;
    this.task = apply(null, { task });
    const news = JSON.stringify(before?.status) !== JSON.stringify(task.status);
    if (before !== null && news) this.told.event({ id: null, event: { task }, at: Date.now() });
    this.told.changed();
  }

  /** Reads the history from the server, because streams do not contain messages of other clients. */
  async #settle() {
    try {
      const task = await this.agent.get(this.id);
      if (this.gone || !this.task) return;
      this.task.history = task.history ?? this.task.history;
      this.task.metadata = task.metadata;
      this.told.changed();
    } catch {
      // the state from the stream is shown without the messages of other clients
    }
  }

  #isFinal(error) {
    if (error.reason === "TASK_NOT_FOUND" || [401, 403].includes(error.status)) {
      this.told.connection("lost", "Not connected");
      this.told.failed(error);
      return true;
    }
    if (error.violations?.length && this.lastId !== null) this.lastId = null; // the server does not know this event
    return false;
  }

  async #pause(wait, progress, broke) {
    if (isPaused(this.task?.status?.state) && progress) await this.#settle();
    if (broke?.passing) this.told.connection("lost", `Connection lost. Next attempt in ${Math.round(wait / 1000)} s`);
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
