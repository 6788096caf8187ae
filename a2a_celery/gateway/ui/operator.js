/** Client of the operator's API of this gateway. */

import { requestJson } from "./agent_client.js";

export class OperatorApi {
  /** `headers()` returns the headers that authenticate a request. */
  constructor(headers) {
    this.headers = headers;
    this.base = new URL("../operator/v1", document.baseURI).href;
  }

  overview() {
    return this.#request("GET", "/overview");
  }

  /** Return the recorded samples of the last "hour" or "day". */
  history(range) {
    return this.#request("GET", `/history?range=${range}`);
  }

  /** Return `{ tasks, next }`, a page of the tasks in a phase. */
  tasks(phase, cursor = 0) {
    return this.#request("GET", `/tasks?phase=${phase}&cursor=${cursor}`);
  }

  /** Return a page of the open and ended tasks that match `filters`, newest status first. */
  storedTasks(filters, cursor = 0) {
    const phase = filters.schedule ? "any" : "all";
    return this.#request("GET", `/tasks?${new URLSearchParams({ ...filters, phase, cursor })}`);
  }

  timeline(id) {
    return this.#request("GET", `/tasks/${encodeURIComponent(id)}`);
  }

  /** Cancel up to 100 tasks. Return `{ results }`, with a result for each task. */
  cancel(tasks) {
    return this.#request("POST", "/tasks:cancel", { tasks });
  }

  /** Send a signal with `name`, `payload` and `signalId` to a task. */
  signal(id, signal) {
    return this.#request("POST", `/tasks/${encodeURIComponent(id)}:signal`, signal);
  }

  deadLetters(cursor = 0) {
    return this.#request("GET", `/dead-letters?cursor=${cursor}`);
  }

  requeue(id) {
    return this.#request("POST", `/dead-letters/${encodeURIComponent(id)}:requeue`);
  }

  /** Requeue a page of dead letters. Return `{ results, next, remaining }`. */
  requeuePage(cursor = 0) {
    return this.#request("POST", `/dead-letters:requeue?cursor=${cursor}`);
  }

  /** Return `{ webhooks, next }`, a page of the webhooks whose delivery was given up (`state` "dead") or is pending. */
  webhooks(state, cursor = 0) {
    return this.#request("GET", `/webhooks?state=${state}&cursor=${cursor}`);
  }

  replay(task, id) {
    return this.#request("POST", `/webhooks/${encodeURIComponent(task)}/${encodeURIComponent(id)}:replay`);
  }

  schedules() {
    return this.#request("GET", "/schedules");
  }

  workers() {
    return this.#request("GET", "/workers");
  }

  /** Drain a worker, or with `verb` "undrain", return it to service. */
  drain(name, verb = "drain") {
    return this.#request("POST", `/workers/${encodeURIComponent(name)}:${verb}`);
  }

  #request(method, path, body = null) {
    const headers = { Accept: "application/json", ...(body && { "Content-Type": "application/json" }), ...this.headers() };
    return requestJson(this.base + path, { method, headers, ...(body && { body: JSON.stringify(body) }) });
  }
}
