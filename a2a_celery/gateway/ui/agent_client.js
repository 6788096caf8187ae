/**
 * Client of A2A 1.0 over JSON-RPC or HTTP+JSON, depending on the interfaces in the agent's card.
 *
 * Source: A2A specification 8.3.2, 9, 11.
 */

import { newId } from "./dom.js";
import { A2AError, asError, errorFromBody, errorOf } from "./errors.js";
import { events } from "./sse.js";

const VERSION = "1.0";
const TIMEOUT = 60_000;

/** Return the agent whose card is at `cardUrl`. `headers()` returns the headers that authenticate a request. `priority`
 * is the priority of the request among the requests of the page. */
export async function discover(cardUrl, headers, priority = "auto") {
  const response = await fetchOk(cardUrl, { headers: { Accept: "application/json", ...headers() }, cache: "no-cache", priority });
  let card;
  try {
    card = await response.json();
  } catch {
    throw new A2AError("There is no agent card at this address.", { status: response.status });
  }
  if (card === null || typeof card !== "object" || typeof card.name !== "string") {
    throw new A2AError("There is no agent card at this address.", { status: response.status });
  }
  return new Agent(card, cardUrl, headers);
}

export class Agent {
  constructor(card, cardUrl, headers) {
    this.card = card;
    this.cardUrl = cardUrl;
    this.headers = headers;
    this.canStream = card.capabilities?.streaming === true;
    this.canPush = card.capabilities?.pushNotifications === true;
    this.canList = true; // until the agent responds that it does not support ListTasks
    const agentInterface = chooseInterface(card.supportedInterfaces ?? []);
    if (!agentInterface) throw new A2AError(noInterfaceMessage(card));
    this.binding = agentInterface.protocolBinding;
    this.tenant = agentInterface.tenant || "";
    const interfaceUrl = new URL(agentInterface.url, cardUrl);
    // The page may send requests to its own origin only, but behind a proxy or a forwarded port, the card may name
    // another origin. Requests therefore go to the path of the interface at this origin.
    const url = new URL(location.origin);
    url.pathname = interfaceUrl.pathname; // not resolved as a relative URL, because "//host/" would be another origin
    url.search = interfaceUrl.search;
    this.url = url.href;
    this.cardOrigin = interfaceUrl.origin === location.origin ? "" : interfaceUrl.origin;
  }

  get name() {
    return this.card.name;
  }

  send(params) {
    return this.#call("SendMessage", params, "POST", "/message:send");
  }

  get(id, historyLength) {
    const query = historyLength === undefined ? {} : { historyLength };
    return this.#call("GetTask", { id, ...query }, "GET", `/tasks/${encodeURIComponent(id)}`, query);
  }

  async list(query, signal) {
    try {
      return await this.#call("ListTasks", query, "GET", "/tasks", query, signal);
    } catch (error) {
      if (error.isUnsupported) this.canList = false;
      throw error;
    }
  }

  cancel(id) {
    return this.#call("CancelTask", { id }, "POST", `/tasks/${encodeURIComponent(id)}:cancel`, {});
  }

  /** Return the push notification configs of a task. */
  async webhooks(taskId) {
    const path = `/tasks/${encodeURIComponent(taskId)}/pushNotificationConfigs`;
    return (await this.#call("ListTaskPushNotificationConfigs", { taskId }, "GET", path, {})).configs ?? [];
  }

  /** Return the deliveries of a webhook, or send a POST that queues a replay or a ping. These operations of the
   * gateway are not part of A2A. */
  async deliveries(taskId, id, verb = "GET", path = "/deliveries") {
    return this.#requestExtension(`/webhooks/${encodeURIComponent(taskId)}/${encodeURIComponent(id)}${path}`, verb);
  }

  /** Return the parent and the children of a task. This operation of the gateway is not part of A2A. */
  family(taskId) {
    return this.#requestExtension(`/families/${encodeURIComponent(taskId)}`, "GET");
  }

  async #requestExtension(path, verb) {
    const url = new URL(this.cardUrl);
    const [base, suffix] = url.pathname.split("/.well-known/");
    if (suffix !== "agent-card.json") throw new A2AError("", { status: 404 });
    const tenant = this.tenant ? `/${encodeURIComponent(this.tenant)}` : "";
    url.pathname = `${base}${tenant}${path}`;
    const headers = { "A2A-Version": VERSION, Accept: "application/json", ...this.headers() };
    const body = verb === "GET" ? {} : { headers: { ...headers, "Content-Type": "application/json" }, body: "{}" };
    return requestJson(url.href, { method: verb, headers, ...body });
  }

  /** Send a message and yield `{ id, event }` for each event of the stream. `id` is null if the server sends none. */
  sendStreaming(params, signal) {
    return this.#stream("SendStreamingMessage", params, "POST", "/message:stream", {}, signal);
  }

  /** Yield the events of a task as `sendStreaming` does. `after` is the id of the event after which the stream begins,
   * or null. Servers that send no ids ignore `after`. */
  subscribe(id, after, signal) {
    const headers = after === null ? {} : { "Last-Event-ID": after };
    return this.#stream("SubscribeToTask", { id }, "GET", `/tasks/${encodeURIComponent(id)}:subscribe`, headers, signal);
  }

  #request(method, params, verb, path, query, extraHeaders) {
    const headers = { "A2A-Version": VERSION, ...this.headers(), ...extraHeaders };
    if (this.binding === "JSONRPC") {
      headers["Content-Type"] = "application/json";
      const tenantParams = this.tenant ? { tenant: this.tenant, ...params } : params;
      const body = JSON.stringify({ jsonrpc: "2.0", id: newId(), method, params: tenantParams });
      return [this.url, { method: "POST", headers, body }];
    }
    const url = new URL(this.url);
    url.pathname = url.pathname.replace(/\/$/, "") + (this.tenant ? `/${encodeURIComponent(this.tenant)}` : "") + path;
    if (verb === "GET") {
      for (const [name, value] of Object.entries(query ?? {})) url.searchParams.set(name, String(value));
      return [url.href, { method: "GET", headers }];
    }
    headers["Content-Type"] = "application/json";
    return [url.href, { method: "POST", headers, body: JSON.stringify(query && path.endsWith(":cancel") ? {} : params) }];
  }

  async #call(method, params, verb, path, query, signal) {
    const [url, init] = this.#request(method, params, verb, path, query, { Accept: "application/json" });
    const signals = [AbortSignal.timeout(TIMEOUT), ...(signal ? [signal] : [])];
    const response = await fetchOk(url, { ...init, signal: AbortSignal.any(signals) });
    return this.#result(await parseBody(response), response.status);
  }

  async *#stream(method, params, verb, path, extraHeaders, signal) {
    const headers = { Accept: "text/event-stream", ...extraHeaders };
    const [url, init] = this.#request(method, params, verb, path, {}, headers);
    const response = await fetchOk(url, { ...init, signal });
    if (!(response.headers.get("Content-Type") ?? "").startsWith("text/event-stream")) {
      const result = this.#result(await parseBody(response), response.status);
      throw new A2AError(`The response to ${method} is not a stream: ${JSON.stringify(result).slice(0, 200)}`);
    }
    for await (const { id, event, data } of events(response.body)) {
      const payload = parsePayload(data);
      const error = errorFromBody(payload?.error, event === "error" ? 500 : response.status);
      if (error) throw error;
      yield { id, event: this.binding === "JSONRPC" ? payload?.result : payload };
    }
  }

  #result(body, status) {
    const error = errorFromBody(body?.error, status);
    if (error) throw error;
    return this.binding === "JSONRPC" ? body?.result : body;
  }
}

/** Return the first interface that this page supports, preferably at this origin, or undefined. */
function chooseInterface(interfaces) {
  const candidates = interfaces.filter(
    ({ protocolBinding, protocolVersion, url }) =>
      ["JSONRPC", "HTTP+JSON"].includes(protocolBinding) && /^1(\.|$)/.test(protocolVersion ?? "") && isUrl(url),
  );
  return candidates.find(({ url }) => new URL(url, location.href).origin === location.origin) ?? candidates[0];
}

function isUrl(url) {
  return typeof url === "string" && URL.canParse(url, location.href);
}

function noInterfaceMessage(card) {
  const names = (card.supportedInterfaces ?? []).map(({ protocolBinding, protocolVersion }) => `${protocolBinding} ${protocolVersion ?? ""}`.trim());
  if (!names.length && card.url) names.push(`${card.preferredTransport ?? "JSONRPC"} ${card.protocolVersion ?? "0.3"}`);
  const sentence = names.length ? `This agent offers ${names.join(", ")}` : "The agent’s card names no interface";
  return `${sentence}; this page supports A2A 1.0 over JSON-RPC or HTTP+JSON.`;
}

/** Return the JSON of a response. Throw an A2AError for an error response, or after a minute without a response. */
export async function requestJson(url, init) {
  return parseBody(await fetchOk(url, { signal: AbortSignal.timeout(TIMEOUT), ...init }));
}

async function fetchOk(url, init) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", redirect: "error", ...init });
  } catch (error) {
    if (error?.name === "TimeoutError") throw new A2AError("The server did not respond within a minute.", { status: 504 });
    if (error?.name === "AbortError") throw error;
    throw asError(error);
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function parseBody(response) {
  try {
    return await response.json();
  } catch {
    throw new A2AError("The server’s response is not JSON.", { status: response.status });
  }
}

function parsePayload(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new A2AError("An event of the stream is not JSON.");
  }
}
