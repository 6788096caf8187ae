/** Pending and given-up webhook deliveries of all owners, each with a button that replays the failed events. */

import { ActionResult, actionButton, confirmAction } from "./actions.js";
import { el, setText } from "./dom.js";
import { Poll } from "./poll.js";
import { Table, createLink, setLink } from "./table.js";
import { DELIVERY_STATES, showTime, timeElement } from "./texts.js";

const INTERVAL = 5000;

export class DeliveriesView {
  constructor(views) {
    this.views = views;
    this.lists = [new Deliveries(this, "dead", "Given up"), new Deliveries(this, "waiting", "Waiting and failing")];
    this.empty = el("p", { class: "empty", hidden: true }, "Every webhook has received its events.");
    this.result = new ActionResult();
    this.element = el("div", { class: "stack" }, this.result.element, ...this.lists.map(({ element }) => element), this.empty);
    this.poll = new Poll(() => views.attempt(() => this.load()), INTERVAL);
  }

  enter() {
    this.poll.start();
  }

  leave() {
    this.poll.stop();
    this.result.clear();
  }

  async load() {
    await Promise.all(this.lists.map((list) => list.load()));
    this.empty.hidden = this.lists.some(({ element }) => !element.hidden);
  }
}

class Deliveries {
  #pages = [];
  #nextCursor = null;

  constructor(view, state, title) {
    this.view = view;
    this.state = state;
    this.table = new Table(
      title,
      [["Task", createLink], ["Webhook"], ["Agent", null, "word"], ["State", () => el("span", { class: "badge" })], ["Events", null, "number"], ["Failures", null, "number"], ["Since", () => timeElement("")], ["Reason"], ["", () => this.#button()]],
      ({ task, id }) => `${task} ${id}`,
      ([link, name, agent, badge, events, failures, since, reason, button], webhook) => {
        setLink(link, view.views.addressOf(webhook.task), webhook.task);
        setText(name, webhook.id);
        setText(agent, webhook.agent);
        badge.dataset.delivery = webhook.state;
        setText(badge, DELIVERY_STATES[webhook.state] ?? webhook.state);
        setText(events, `${webhook.delivered} of ${webhook.lastEvent}`);
        setText(failures, String(webhook.failures));
        showTime(since, webhook.givenUpAt ?? webhook.failingSince ?? "");
        setText(reason, webhook.reason ?? "–");
        button.hidden = !["dead", "failing"].includes(webhook.state);
        button.webhook = webhook;
        button.setAttribute("aria-label", `Replay webhook ${webhook.id} of task ${webhook.task} …`);
      },
    );
    this.moreButton = el("button", { type: "button", hidden: true }, "Show more");
    this.moreButton.addEventListener("click", () => view.views.attempt(() => this.load(this.#nextCursor)));
    this.element = el("section", { class: "stack", hidden: true }, el("h3", {}, title), this.table.element, this.moreButton);
  }

  async load(cursor = 0) {
    const page = await this.view.views.api.webhooks(this.state, cursor);
    if (cursor) this.#pages.push(page.webhooks);
    else this.#pages[0] = page.webhooks;
    if (cursor || this.#pages.length < 2) this.#nextCursor = page.next;
    const webhooks = [...new Map(this.#pages.flat().map((webhook) => [`${webhook.task} ${webhook.id}`, webhook])).values()];
    this.table.draw(webhooks);
    this.element.hidden = webhooks.length === 0;
    this.moreButton.hidden = this.#nextCursor === null;
  }

  #button() {
    const { views, result } = this.view;
    return actionButton(views, result, "Replay …", async ({ webhook }) => {
      const { task, id, delivered, lastEvent } = webhook;
      const isConfirmed = await confirmAction({
        title: "Replay this webhook?",
        texts: [`Webhook ${id} of the task ${task}`, `A watcher posts the events after the ${delivered} that were delivered, of ${lastEvent}, again.`],
        action: "Replay the webhook",
      });
      if (!isConfirmed) return;
      const { replayed } = await views.api.replay(task, id);
      result.show(replayed ? `The events of the webhook ${id} are due now.` : `The webhook ${id} has no failed delivery, so nothing was replayed.`);
      views.title.focus();
      await this.view.load();
      views.feed.refresh();
    });
  }
}
