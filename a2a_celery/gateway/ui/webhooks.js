/** Webhooks of a task: the outcomes of their newest posts, with buttons that replay events or send a test ping. */

import { el, keyed, say } from "./dom.js";
import { asError } from "./errors.js";
import { DELIVERY_STATES, OUTCOMES, clock, explain, showTime, time } from "./words.js";

/** Milliseconds between two requests for the deliveries while the list is open, without and with pending deliveries. */
const EVERY = 6000;
const WHILE_PENDING = 1500;

export class Webhooks {
  #agent = null;
  #task = "";
  #round = 0;
  #again = null;
  #shown = [];

  /** `failed(error)` is called if the request of a button fails. */
  constructor(failed) {
    this.failed = failed;
    this.note = el("p", { class: "hint", role: "status" });
    this.list = el("div", { class: "artifacts" });
    this.element = el("details", { class: "more webhooks", hidden: true }, el("summary", {}, "Webhooks"), this.note, this.list);
    this.element.addEventListener("toggle", () => (this.element.open ? this.#load() : this.leave()));
  }

  /** Shows the webhooks of another task. They are requested when the user opens the list. */
  show(agent, task) {
    this.leave();
    this.#agent = agent;
    this.#task = task;
    this.#shown = [];
    this.element.hidden = !agent.pushes;
    this.element.open = false;
    this.#draw("");
  }

  leave() {
    this.#round++;
    clearTimeout(this.#again);
  }

  async #load() {
    this.leave();
    const round = this.#round;
    this.#draw(this.#shown.length ? "" : "Loading …");
    try {
      const configs = await this.#agent.webhooks(this.#task);
      if (round !== this.#round) return;
      this.#shown = configs.map(({ id, url }) => ({ id, url, found: this.#shown.find((one) => one.id === id)?.found ?? null }));
      await this.#look(round);
    } catch (error) {
      if (round === this.#round) this.#draw(explain(asError(error)));
    }
  }

  /** Requests the deliveries of each webhook now, and then every few seconds. */
  async #look(round) {
    let note = this.#shown.length ? "" : "None. No client has registered a webhook for this task.";
    await Promise.all(
      this.#shown.map(async (webhook) => {
        try {
          webhook.found = await this.#agent.deliveries(this.#task, webhook.id);
        } catch (raised) {
          const error = asError(raised);
          note = error.unsupported ? "This server does not report deliveries." : explain(error);
        }
      }),
    );
    if (round !== this.#round) return;
    this.#draw(note);
    const pending = this.#shown.some(({ found }) => found?.requested.length || found?.state === "waiting");
    this.#again = setTimeout(() => (document.hidden ? this.#wait(round) : this.#look(round)), pending ? WHILE_PENDING : EVERY);
  }

  #wait(round) {
    this.#again = setTimeout(() => (document.hidden ? this.#wait(round) : this.#look(round)), EVERY);
  }

  async #act(button, webhook, path) {
    button.disabled = true;
    try {
      webhook.found = await this.#agent.deliveries(this.#task, webhook.id, "POST", path);
      this.leave();
      this.#draw("");
      this.#look(this.#round);
    } catch (error) {
      this.failed(error);
    } finally {
      button.disabled = false;
    }
  }

  #draw(note) {
    say(this.note, note);
    this.note.hidden = !note;
    keyed(this.list, this.#shown, ({ id }) => id, (webhook) => this.#made(webhook.id), (element, webhook) => this.#drawOne(element, webhook));
  }

  #made(id) {
    const ofThis = () => this.#shown.find((one) => one.id === id);
    const button = (text, path) => {
      const made = el("button", { type: "button", class: "small" }, text);
      made.addEventListener("click", () => this.#act(made, ofThis(), path));
      return made;
    };
    const replay = button("Replay what failed", "/deliveries:replay");
    const ping = button("Send a test ping", ":ping");
    const rows = el("ol", { class: "deliveries" });
    rows.addEventListener("click", ({ target }) => {
      if (target.dataset?.event) this.#act(target, ofThis(), `/deliveries/${encodeURIComponent(target.dataset.event)}:replay`);
    });
    const made = el(
      "article",
      { class: "webhook" },
      el("header", {}, el("strong", { dir: "auto" }), el("span", { class: "badge" })),
      el("div", { class: "row" }, el("span", { class: "hint" }), replay, ping),
      rows,
    );
    Object.assign(made, { replay, ping, rows });
    return made;
  }

  #drawOne(element, { url, found }) {
    const [name, badge] = element.firstChild.children;
    say(name, url);
    badge.hidden = element.ping.hidden = element.rows.hidden = !found;
    element.replay.hidden = !["failing", "dead"].includes(found?.state);
    say(element.children[1].firstChild, found ? progress(found) : "");
    if (!found) return;
    badge.dataset.delivery = found.state;
    say(badge, DELIVERY_STATES[found.state] ?? found.state);
    keyed(
      element.rows,
      found.deliveries,
      (delivery) => `${delivery.time} ${delivery.event ?? delivery.ping ?? ""}`,
      row,
      (item, delivery) => showTime(item.firstChild, delivery.time),
    );
  }
}

function progress({ delivered, lastEvent, nextTry, requested }) {
  const next = nextTry ? `next try ${clock(nextTry).slice(0, 8)}` : "";
  const waiting = requested.length ? `${requested.length} requested` : "";
  return [`${delivered} of ${lastEvent} events delivered`, waiting, next].filter(Boolean).join(" · ");
}

function row({ time: at, event, ping, outcome, status, latencyMs, reason }) {
  const version = event ? `#${event.split("-")[0]}` : ping ? "Ping" : "–";
  const told = [status, latencyMs === undefined ? "" : `${latencyMs} ms`, reason].filter(Boolean).join(" · ");
  const again = event && el("button", { type: "button", class: "quiet small", "data-event": event, "aria-label": `Replay event ${version}` }, "Replay");
  return el(
    "li",
    {},
    time(at),
    el("span", { class: "id" }, version),
    el("span", { class: "badge", "data-delivery": outcome }, OUTCOMES[outcome] ?? outcome),
    el("span", { class: "what", dir: "auto" }, told),
    again,
  );
}
