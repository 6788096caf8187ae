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

  /** Return `{ tasks, next }`, a page of the tasks in a phase. */
  tasks(phase, cursor = 0) {
    return this.#request("GET", `/tasks?phase=${phase}&cursor=${cursor}`);
  }

  /** Return a page of the open and ended tasks that match `filters`: an owner, a tenant, an agent and a state, or a
   * schedule and a state. */
  storedTasks(filters, cursor = 0) {
    return this.#request("GET", `/tasks?${new URLSearchParams({ ...filters, phase: "any", cursor })}`);
  }

  timeline(id) {
    return this.#request("GET", `/tasks/${encodeURIComponent(id)}`);
  }

  deadLetters(cursor = 0) {
    return this.#request("GET", `/dead-letters?cursor=${cursor}`);
  }

  requeue(id) {
    return this.#request("POST", `/dead-letters/${encodeURIComponent(id)}:requeue`);
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

  #request(method, path) {
    const headers = { Accept: "application/json", ...this.headers() };
    return requestJson(this.base + path, { method, headers });
  }
}
