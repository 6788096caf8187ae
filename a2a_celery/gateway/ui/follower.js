/**
 * Follower of one task, which reads the task's stream until the task ends or `stop()` is called. If the server sends
 * event ids, an interrupted stream is resumed after the last received event (`Last-Event-ID`). If the server does not
 * support streaming, the follower polls the task.
 */

import { asError } from "./errors.js";
import { applyEvent, insertMessage, kindOf } from "./task_reducer.js";
import { isInterrupted, isTerminal } from "./texts.js";

const INITIAL_DELAY = 1000;
const MAX_DELAY = 15_000;
const POLL_INTERVAL = 2000;

/** Return the time in an event id of the form `<version>-<microseconds since 1970>` in ms, or null for any other id. */
function timeOf(id) {
  const match = /^\d+-(\d+)$/.exec(id ?? "");
  return match && Number(match[1]) / 1000;
}

/** Return the version in an event id of the form `<version>` or `<version>-<time>`, or null for any other id. */
function versionOf(id) {
  return /^\d+(-\d+)?$/.test(id ?? "") ? parseInt(id, 10) : null;
}

export class Follower {
  task = null;
  /** Id of the newest event, or null if the server sends no ids that begin with a version. */
  lastId = null;
  /** Newest result of GetTask, or null. */
  snapshot = null;
  /** Version of the first received event, or null. `readEarlierEvents()` reads the events before this version. */
  firstVersion = null;

  /** `observer` has the callbacks `onEvent({ id, event, time })`, `onChange()`, `onConnection(kind, text)` and
   * `onError(error)`. */
  constructor(agent, id, observer) {
    this.agent = agent;
    this.id = id;
    this.observer = observer;
    this.abortController = new AbortController();
    this.wake = () => {};
  }

  stop() {
    this.abortController.abort();
    this.wake();
  }

  get isStopped() {
    return this.abortController.signal.aborted;
  }

  /** Follow the task until it ends. `stream` is the stream that the first message has opened, or null. Errors are
   * passed to the callbacks. */
  async run(stream = null) {
    let delay = INITIAL_DELAY;
    let needsSnapshot = true;
    while (!this.isStopped) {
      let hasProgress = false;
      let failure = null;
      try {
        if (stream === null && (needsSnapshot || this.lastId === null)) await this.#readSnapshot();
        if (!this.agent.canStream) hasProgress = true;
        else if (this.lastId !== null || !this.#isTerminal) {
          stream ??= this.agent.subscribe(this.id, this.lastId, this.abortController.signal);
          for await (const entry of stream) {
            if (!hasProgress) this.observer.onConnection("live", "Live");
            hasProgress = true;
            this.addEvent(entry);
          }
        }
      } catch (cause) {
        if (this.isStopped) return;
        failure = asError(cause);
        if (this.#isFinal(failure)) return;
      }
      stream = null;
      if (isTerminal(this.snapshot?.status?.state) && !this.#isTerminal) this.#applySnapshot(this.snapshot); // the stream did not include the end
      if (this.isStopped || this.#isTerminal) break;
      needsSnapshot = !hasProgress || failure !== null;
      delay = hasProgress ? INITIAL_DELAY : Math.min(delay * 2, MAX_DELAY);
      await this.#waitBeforeRetry(delay, hasProgress, failure);
    }
    if (this.isStopped) return;
    await this.#readHistory();
    this.observer.onConnection("ended", "Ended");
  }

  /** Apply an event of the stream. An event that was received before is ignored. */
  addEvent({ id, event }) {
    const version = versionOf(id);
    if (version !== null) {
      const isDuplicate = id === this.lastId || (this.lastId !== null && version < versionOf(this.lastId));
      if (isDuplicate && kindOf(event) !== "task") return;
      this.lastId = id;
      this.firstVersion ??= version;
    }
    this.task = applyEvent(this.task, event);
    this.observer.onEvent({ id: version, event, time: timeOf(id) ?? Date.now() });
    this.observer.onChange();
  }

  /** Add a message that this page has sent to the history, because streams do not contain messages of clients.
   * `response` is the server's response. The task in the response has the messages up to this message in the order of
   * the log; the stream may already have received later messages. */
  addSentMessage(message, response = null) {
    if (this.task) insertMessage(this.task, message, response?.task?.history);
    this.observer.onChange();
    this.wake();
  }

  /** Return the events before the first received event, or null if the server no longer has them. */
  async readEarlierEvents(signal) {
    if (this.firstVersion === 1) return [];
    const events = [];
    const endVersion = this.firstVersion ?? Infinity;
    try {
      for await (const { id, event } of this.agent.subscribe(this.id, "0", AbortSignal.any([signal, this.abortController.signal]))) {
        const version = versionOf(id);
        if (version === null) return null; // the server ignores Last-Event-ID, so the stream begins with the current task
        if (version >= endVersion) break;
        events.push({ id: version, event, time: timeOf(id) });
        if (version === endVersion - 1) break;
      }
    } catch (cause) {
      if (signal.aborted || this.isStopped) return [];
      const error = asError(cause);
      if (error.isTemporary) throw error;
      return null;
    }
    return events;
  }

  get #isTerminal() {
    return isTerminal(this.task?.status?.state);
  }

  async #readSnapshot() {
    this.snapshot = await this.agent.get(this.id);
    if (this.isStopped) return;
    if (this.lastId === null) this.#applySnapshot(this.snapshot); // otherwise the stream is resumed after the last event
    if (this.agent.canStream) this.observer.onConnection("live", "Live");
    else this.observer.onConnection("polling", "Updated every 2 s, because this agent does not stream");
  }

  #applySnapshot(task) {
    const previous = this.task;
    this.task = applyEvent(null, { task });
    const hasNewStatus = JSON.stringify(previous?.status) !== JSON.stringify(task.status);
    if (previous !== null && hasNewStatus) this.observer.onEvent({ id: null, event: { task }, time: Date.now() });
    this.observer.onChange();
  }

  /** Read the history from the server, because streams do not contain messages of other clients. */
  async #readHistory() {
    try {
      const task = await this.agent.get(this.id);
      if (this.isStopped || !this.task) return;
      this.task.history = task.history ?? this.task.history;
      this.task.metadata = task.metadata;
      this.observer.onChange();
    } catch {
      // the state from the stream is shown without the messages of other clients
    }
  }

  #isFinal(error) {
    if (error.reason === "TASK_NOT_FOUND" || [401, 403].includes(error.status)) {
      this.observer.onConnection("lost", "Not connected");
      this.observer.onError(error);
      return true;
    }
    if (error.violations?.length && this.lastId !== null) this.lastId = null; // the server does not know this event
    return false;
  }

  async #waitBeforeRetry(delay, hasProgress, failure) {
    if (isInterrupted(this.task?.status?.state) && hasProgress) await this.#readHistory();
    if (failure?.isTemporary) this.observer.onConnection("lost", `Connection lost. Next attempt in ${Math.round(delay / 1000)} s`);
    const duration = !this.agent.canStream ? POLL_INTERVAL : hasProgress && !failure ? 200 : delay;
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, this.isStopped ? 0 : duration);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.wake = () => {};
  }
}
