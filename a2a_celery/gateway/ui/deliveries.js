/** Webhooks of all owners that were given up or wait for a delivery, with a button that replays the failed events. */

import { el, say } from "./dom.js";
import { Poll } from "./poll.js";
import { Table, anchor, point } from "./table.js";
import { DELIVERY_STATES, showTime, time } from "./words.js";

const INTERVAL = 5000;

export class DeliveriesView {
  constructor(views) {
    this.views = views;
    this.lists = [new Deliveries(this, "dead", "Given up"), new Deliveries(this, "waiting", "Waiting and failing")];
    this.empty = el("p", { class: "empty", hidden: true }, "Every webhook has received its events.");
    this.element = el("div", { class: "stack" }, ...this.lists.map(({ element }) => element), this.empty);
    this.poll = new Poll(() => views.attempt(() => this.load()), INTERVAL);
  }

  enter() {
    this.poll.start();
  }

  leave() {
    this.poll.stop();
  }

  async load() {
    await Promise.all(this.lists.map((list) => list.load()));
    this.empty.hidden = this.lists.some(({ element }) => !element.hidden);
  }
}

class Deliveries {
  #pages = [];
  #next = null;

  constructor(view, state, title) {
    this.view = view;
    this.state = state;
    this.table = new Table(
      title,
      [["Task", anchor], ["Webhook"], ["Agent"], ["State", () => el("span", { class: "badge" })], ["Events", null, "number"], ["Failures", null, "number"], ["Since", () => time("")], ["Reason"], ["", () => this.#button()]],
      ({ task, id }) => `${task} ${id}`,
      ([link, name, agent, badge, events, tries, since, reason, button], found) => {
        point(link, view.views.addressOf(found.task), found.task);
        say(name, found.id);
        say(agent, found.agent);
        badge.dataset.delivery = found.state;
        say(badge, DELIVERY_STATES[found.state] ?? found.state);
        say(events, `${found.delivered} of ${found.lastEvent}`);
        say(tries, String(found.failures));
        showTime(since, found.givenUpAt ?? found.failingSince ?? "");
        say(reason, found.reason ?? "–");
        button.hidden = !["dead", "failing"].includes(found.state);
        button.found = found;
        button.setAttribute("aria-label", `Replay webhook ${found.id} of task ${found.task}`);
      },
    );
    this.more = el("button", { type: "button", hidden: true }, "Show more");
    this.more.addEventListener("click", () => view.views.attempt(() => this.load(this.#next)));
    this.element = el("section", { class: "stack", hidden: true }, el("h3", {}, title), this.table.element, this.more);
  }

  async load(cursor = 0) {
    const page = await this.view.views.api.webhooks(this.state, cursor);
    if (cursor) this.#pages.push(page.webhooks);
    else this.#pages[0] = page.webhooks;
    if (cursor || this.#pages.length < 2) this.#next = page.next;
    const all = [...new Map(this.#pages.flat().map((one) => [`${one.task} ${one.id}`, one])).values()];
    this.table.draw(all);
    this.element.hidden = all.length === 0;
    this.more.hidden = this.#next === null;
  }

  #button() {
    const button = el("button", { type: "button", class: "small" }, "Replay");
    button.addEventListener("click", async () => {
      button.disabled = true;
      await this.view.views.attempt(async () => {
        await this.view.views.api.replay(button.found.task, button.found.id);
        this.view.views.title.focus();
        await this.view.load();
        this.view.views.feed.now();
      });
      button.disabled = false;
    });
    return button;
  }
}
