/** Views of the page other than agents and tasks, with their links in the header of the page. */

import { DeadLettersView } from "./dead_letters.js";
import { DeliveriesView } from "./deliveries.js";
import { el, setCurrent, setText } from "./dom.js";
import { asError } from "./errors.js";
import { FleetTasksView } from "./fleet_tasks.js";
import { InboxApi, InboxView, sumOf } from "./inbox.js";
import { OperatorApi } from "./operator.js";
import { OverviewView } from "./overview.js";
import { Poll } from "./poll.js";
import { Samples } from "./samples.js";
import { SchedulesView } from "./schedules.js";
import { explain } from "./texts.js";
import { TimelineView } from "./timeline.js";
import { WorkersView } from "./workers.js";

/** Milliseconds between two requests for the overview, whose counts the links of the views show. */
const INTERVAL = 5000;

const OPERATORS_ONLY =
  "This view needs the operator’s role. The gateway’s setting a2a_operators names the operators.";

/** Views as `[name in the URL, title, class, true if the view requires the operator's role]`. */
const VIEWS = [
  ["inbox", "Inbox", InboxView, false],
  ["overview", "Overview", OverviewView, true],
  ["tasks", "Tasks", FleetTasksView, true],
  ["dead", "Dead letters", DeadLettersView, true],
  ["webhooks", "Webhooks", DeliveriesView, true],
  ["workers", "Workers", WorkersView, true],
  ["schedules", "Schedules", SchedulesView, true],
];

/** Views whose links have a number. */
const COUNTED = ["inbox", "dead", "webhooks"];

export class Views {
  #current = null;
  #instances = new Map();

  constructor(element, nav, app) {
    this.element = element;
    this.app = app;
    this.operator = false;
    this.api = new OperatorApi(app.headers);
    this.samples = new Samples();
    this.overview = null;
    this.feed = new Poll(() => this.#readOverview(), INTERVAL);
    this.inbox = new InboxApi(app.headers);
    this.inboxFeed = new Poll(() => this.#readTotals(), INTERVAL);
    this.waiting = { inbox: 0, lists: 0 };
    this.links = new Map([["", this.#link("", "Agents")], ...VIEWS.map(([name, title]) => [name, this.#link(name, title)])]);
    nav.append(el("ul", {}, ...this.links.values()));
    this.title = el("h2", { tabindex: "-1" });
    this.note = el("p", { class: "hint", role: "status" });
    this.body = el("div", {});
    element.append(this.title, this.note, this.body);
  }

  /** Show the links that the caller may use. If the caller is an operator, the overview is requested repeatedly. */
  setOperator(operator) {
    this.operator = operator;
    for (const [name, , , restricted] of VIEWS) this.links.get(name).hidden = restricted && !operator;
    this.#revealLink();
    if (operator) this.feed.start();
    else this.feed.stop();
  }

  /** Count the waiting tasks repeatedly if the gateway has an inbox. */
  setInbox(hasInbox) {
    this.countWaiting({ inbox: 0, lists: 0 });
    if (hasInbox) this.inboxFeed.start();
    else this.inboxFeed.stop();
  }

  /** Show the number of waiting tasks at the link of the inbox: those in the gateway's inbox, and those that only
   * ListTasks counts. */
  countWaiting(counts) {
    Object.assign(this.waiting, counts);
    this.setCount("inbox", this.waiting.inbox + this.waiting.lists, "wait for an answer");
  }

  /** Show the view that `query` selects. Return false if there is no such view. */
  show(query) {
    const name = query.get("view") ?? "";
    for (const [key, item] of this.links) {
      const isCurrent = key === (name === "task" ? "tasks" : name);
      setCurrent(item.firstChild, isCurrent);
    }
    this.#revealLink();
    const key = `${name} ${query.get("id") ?? ""} ${this.operator}`;
    const definition = name === "task" ? ["task", "Timeline", TimelineView, true] : VIEWS.find(([viewName]) => viewName === name);
    if (this.#current?.key === key) return Boolean(definition);
    const isNavigation = this.#current !== null;
    this.#current?.view?.leave();
    this.#current = { key, view: null };
    this.element.hidden = !definition;
    if (!definition) return false;
    const [, title, View, restricted] = definition;
    setText(this.title, title);
    document.title = title;
    this.body.replaceChildren();
    const isAllowed = this.operator || !restricted;
    this.showNote(isAllowed ? "" : OPERATORS_ONLY, !isAllowed);
    if (isNavigation) this.title.focus();
    if (!isAllowed) return true;
    if (!this.#instances.has(name)) this.#instances.set(name, new View(this));
    this.#current.view = this.#instances.get(name);
    this.body.append(this.#current.view.element);
    this.#current.view.enter(query);
    return true;
  }

  showNote(text, isProblem = false) {
    setText(this.note, text);
    this.note.hidden = !text;
    this.note.classList.toggle("problem", isProblem);
  }

  /** Await `work()`. An error that it throws is shown above the view. */
  async attempt(work) {
    const current = this.#current;
    try {
      await work();
      if (current === this.#current) this.showNote("");
    } catch (cause) {
      const text = this.errorText(cause);
      if (current === this.#current) this.showNote(text, true);
    }
  }

  /** Return the text of an error. An error for missing credentials is also shown as a notice. */
  errorText(cause) {
    const error = asError(cause);
    if (error.status === 401) this.app.notify(error);
    return [explain(error), ...(error.violations ?? []).map(({ description }) => description)].join(" ");
  }

  /** Return the link to a task's timeline. */
  addressOf(id) {
    return `#${new URLSearchParams({ view: "task", id })}`;
  }

  /** Show `number` at the link of a view. `label` describes the number to screen readers. */
  setCount(name, number, label) {
    const badge = this.links.get(name).firstChild.lastChild;
    const text = number > 999 ? "999+" : String(number);
    if (badge.textContent === `${text} ${label}`) return;
    badge.className = number ? "count" : "count none";
    badge.replaceChildren(text, el("span", { class: "sr-only" }, ` ${label}`));
  }

  /** Scroll the links, which a narrow window cannot show all, until the link of the current view is visible. */
  #revealLink() {
    const currentLink = [...this.links.values()].find((item) => item.firstChild.hasAttribute("aria-current"));
    currentLink?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  async #readTotals() {
    try {
      this.countWaiting({ inbox: sumOf((await this.inbox.read({ size: 0 })).totals) });
    } catch {
      // the count stays until the next request
    }
  }

  async #readOverview() {
    try {
      this.overview = await this.api.overview();
    } catch (cause) {
      if ([401, 403].includes(asError(cause).status)) this.setOperator(false);
      this.overview = null;
    }
    if (this.overview) {
      this.samples.add(this.overview);
      this.setCount("dead", this.overview.deadLetters, "dead letters");
      this.setCount("webhooks", this.overview.webhooks.dead, "given up");
    }
    this.#instances.get("overview")?.draw();
  }

  #link(name, title) {
    const href = name ? `#view=${name}` : "#";
    // the widths of a bold title and of a number are reserved, so that the links do not move
    const text = el("span", { class: "link-title", "data-title": title }, title);
    return el("li", {}, el("a", { href }, text, COUNTED.includes(name) && el("span", { class: "count unknown" })));
  }
}
