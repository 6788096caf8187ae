/** Webhooks of a task: the outcomes of their newest posts, with buttons that replay events or send a test ping. */

import { el, reconcile, setText } from "./dom.js";
import { asError } from "./errors.js";
import { DELIVERY_STATES, OUTCOMES, explain, formatClock, showTime, timeElement } from "./texts.js";

/** Milliseconds between two requests for the deliveries while the list is open, without and with pending deliveries. */
const INTERVAL = 6000;
const PENDING_INTERVAL = 1500;

export class Webhooks {
  #agent = null;
  #task = "";
  #round = 0;
  #timer = null;
  #webhooks = [];

  /** `onError(error)` is called if the request of a button fails. */
  constructor(onError) {
    this.onError = onError;
    this.note = el("p", { class: "hint", role: "status" });
    this.list = el("div", { class: "artifacts" });
    this.element = el("details", { class: "more webhooks", hidden: true }, el("summary", {}, "Webhooks"), this.note, this.list);
    this.element.addEventListener("toggle", () => (this.element.open ? this.#load() : this.leave()));
  }

  /** Show the webhooks of another task. They are requested when the user opens the list. */
  show(agent, task) {
    this.leave();
    this.#agent = agent;
    this.#task = task;
    this.#webhooks = [];
    this.element.hidden = !agent.canPush;
    this.element.open = false;
    this.#draw("");
  }

  leave() {
    this.#round++;
    clearTimeout(this.#timer);
  }

  async #load() {
    this.leave();
    const round = this.#round;
    this.#draw(this.#webhooks.length ? "" : "Loading …");
    try {
      const configs = await this.#agent.webhooks(this.#task);
      if (round !== this.#round) return;
      this.#webhooks = configs.map(({ id, url }) => ({ id, url, report: this.#webhooks.find((webhook) => webhook.id === id)?.report ?? null }));
      await this.#loadDeliveries(round);
    } catch (error) {
      if (round === this.#round) this.#draw(explain(asError(error)));
    }
  }

  /** Request the deliveries of each webhook now, and then every few seconds. */
  async #loadDeliveries(round) {
    let note = this.#webhooks.length ? "" : "None. No client has registered a webhook for this task.";
    await Promise.all(
      this.#webhooks.map(async (webhook) => {
        try {
          webhook.report = await this.#agent.deliveries(this.#task, webhook.id);
        } catch (cause) {
          const error = asError(cause);
          note = error.isUnsupported ? "This server does not report deliveries." : explain(error);
        }
      }),
    );
    if (round !== this.#round) return;
    this.#draw(note);
    const isPending = this.#webhooks.some(({ report }) => report?.requested.length || report?.state === "waiting");
    this.#timer = setTimeout(() => (document.hidden ? this.#wait(round) : this.#loadDeliveries(round)), isPending ? PENDING_INTERVAL : INTERVAL);
  }

  #wait(round) {
    this.#timer = setTimeout(() => (document.hidden ? this.#wait(round) : this.#loadDeliveries(round)), INTERVAL);
  }

  async #act(button, webhook, path) {
    if (button.ariaBusy) return;
    button.ariaBusy = "true";
    try {
      webhook.report = await this.#agent.deliveries(this.#task, webhook.id, "POST", path);
      this.leave();
      this.#draw("");
      this.#loadDeliveries(this.#round);
    } catch (error) {
      this.onError(error);
    } finally {
      button.ariaBusy = null;
    }
  }

  #draw(note) {
    setText(this.note, note);
    this.note.hidden = !note;
    reconcile(this.list, this.#webhooks, ({ id }) => id, (webhook) => this.#webhookElement(webhook.id), (element, webhook) => this.#drawWebhook(element, webhook));
  }

  #webhookElement(id) {
    const findWebhook = () => this.#webhooks.find((webhook) => webhook.id === id);
    const button = (text, path) => {
      const element = el("button", { type: "button", class: "small" }, text);
      element.addEventListener("click", () => this.#act(element, findWebhook(), path));
      return element;
    };
    const replay = button("Replay what failed", "/deliveries:replay");
    const ping = button("Send a test ping", ":ping");
    const rows = el("ol", { class: "deliveries" });
    rows.addEventListener("click", ({ target }) => {
      if (target.dataset?.event) this.#act(target, findWebhook(), `/deliveries/${encodeURIComponent(target.dataset.event)}:replay`);
    });
    const element = el(
      "article",
      { class: "webhook" },
      el("header", {}, el("strong", { dir: "auto" }), el("span", { class: "badge" })),
      el("div", { class: "row" }, el("span", { class: "hint" }), replay, ping),
      rows,
    );
    Object.assign(element, { replay, ping, rows });
    return element;
  }

  #drawWebhook(element, { url, report }) {
    const [name, badge] = element.firstChild.children;
    setText(name, url);
    badge.hidden = element.ping.hidden = element.rows.hidden = !report;
    element.replay.hidden = !["failing", "dead"].includes(report?.state);
    setText(element.children[1].firstChild, report ? progress(report) : "");
    if (!report) return;
    badge.dataset.delivery = report.state;
    setText(badge, DELIVERY_STATES[report.state] ?? report.state);
    reconcile(
      element.rows,
      report.deliveries,
      (delivery) => `${delivery.time} ${delivery.event ?? delivery.ping ?? ""}`,
      row,
      (item, delivery) => showTime(item.firstChild, delivery.time),
    );
  }
}

function progress({ delivered, lastEvent, nextTry, requested }) {
  const nextTime = nextTry ? `next try ${formatClock(nextTry).slice(0, 8)}` : "";
  const waiting = requested.length ? `${requested.length} requested` : "";
  return [`${delivered} of ${lastEvent} events delivered`, waiting, nextTime].filter(Boolean).join(" · ");
}

function row({ time: at, event, ping, outcome, status, latencyMs, reason }) {
  const version = event ? `#${event.split("-")[0]}` : ping ? "Ping" : "–";
  const detail = [status, latencyMs === undefined ? "" : `${latencyMs} ms`, reason].filter(Boolean).join(" · ");
  const replayButton = event && el("button", { type: "button", class: "quiet small", "data-event": event, "aria-label": `Replay event ${version}` }, "Replay");
  return el(
    "li",
    {},
    timeElement(at),
    el("span", { class: "id" }, version),
    el("span", { class: "badge", "data-delivery": outcome }, OUTCOMES[outcome] ?? outcome),
    el("span", { class: "description", dir: "auto" }, detail),
    replayButton,
  );
}
