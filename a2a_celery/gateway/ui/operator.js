/** Client of the operator's API of this gateway. */

import { requestJson } from "./wire.js";

export class OperatorApi {
  /** `headers()` returns the credentials of each request. */
  constructor(headers) {
    this.headers = headers;
    this.base = new URL("../operator/v1", document.baseURI).href;
  }

  overview() {
    return this.#request("GET", "/overview");
  }

  /** A page of the open tasks in a phase: `{ tasks, next }`. */
  tasks(phase, cursor = 0) {
    return this.#request("GET", `/tasks?phase=${phase}&cursor=${cursor}`);
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

  /** A page of the webhooks that were given up (`state` "dead") or wait for a delivery: `{ webhooks, next }`. */
  webhooks(state, cursor = 0) {
    return this.#request("GET", `/webhooks?state=${state}&cursor=${cursor}`);
  }

  replay(task, id) {
    return this.#request("POST", `/webhooks/${encodeURIComponent(task)}/${encodeURIComponent(id)}:replay`);
  }

  workers() {
    return this.#request("GET", "/workers");
  }

  #request(method, path) {
    const headers = { Accept: "application/json", ...this.headers() };
    return requestJson(this.base + path, { method, headers });
  }
}
