/** Views of the page other than agents and tasks, with their links in the header of the page. */

import { DeadLettersView } from "./dead_letters.js";
import { DeliveriesView } from "./deliveries.js";
import { el, mark, say } from "./dom.js";
import { asError } from "./errors.js";
import { FleetTasksView } from "./fleet_tasks.js";
import { InboxView } from "./inbox.js";
import { OperatorApi } from "./operator.js";
import { OverviewView } from "./overview.js";
import { Poll } from "./poll.js";
import { Samples } from "./samples.js";
import { SchedulesView } from "./schedules.js";
import { TimelineView } from "./timeline.js";
import { explain } from "./words.js";
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

export class Views {
  #shown = null;
  #made = new Map();

  constructor(element, nav, app) {
    this.element = element;
    this.app = app;
    this.operator = false;
    this.api = new OperatorApi(app.headers);
    this.samples = new Samples();
    this.overview = null;
    this.feed = new Poll(() => this.#read(), INTERVAL);
    this.links = new Map([["", this.#link("", "Agents")], ...VIEWS.map(([name, title]) => [name, this.#link(name, title)])]);
    nav.append(el("ul", {}, ...this.links.values()));
    this.title = el("h2", { tabindex: "-1" });
    this.note = el("p", { class: "hint", role: "status" });
    this.body = el("div", {});
    element.append(this.title, this.note, this.body);
  }

  /** Shows the links that the caller may use. If the caller is an operator, the overview is requested repeatedly. */
  allow(operator) {
    this.operator = operator;
    for (const [name, , , restricted] of VIEWS) this.links.get(name).hidden = restricted && !operator;
    this.#revealLink();
    if (operator) this.feed.start();
    else this.feed.stop();
  }

  /** Shows the view that `query` selects. Returns false if there is no such view. */
  show(query) {
    const name = query.get("view") ?? "";
    for (const [key, item] of this.links) {
      const isCurrent = key === (name === "task" ? "tasks" : name);
      mark(item.firstChild, isCurrent);
    }
    this.#revealLink();
    const key = `${name} ${query.get("id") ?? ""} ${this.operator}`;
    const found = name === "task" ? ["task", "Timeline", TimelineView, true] : VIEWS.find(([one]) => one === name);
    if (this.#shown?.key === key) return Boolean(found);
    const moved = this.#shown !== null;
    this.#shown?.view?.leave();
    this.#shown = { key, view: null };
    this.element.hidden = !found;
    if (!found) return false;
    const [, title, View, restricted] = found;
    say(this.title, title);
    document.title = title;
    this.body.replaceChildren();
    const allowed = this.operator || !restricted;
    this.say(allowed ? "" : OPERATORS_ONLY, !allowed);
    if (moved) this.title.focus();
    if (!allowed) return true;
    if (!this.#made.has(name)) this.#made.set(name, new View(this));
    this.#shown.view = this.#made.get(name);
    this.body.append(this.#shown.view.element);
    this.#shown.view.enter(query);
    return true;
  }

  say(text, isProblem = false) {
    say(this.note, text);
    this.note.hidden = !text;
    this.note.classList.toggle("problem", isProblem);
  }

  /** Awaits `work()`. An error that it throws is shown above the view. */
  async attempt(work) {
    const shown = this.#shown;
    try {
      await work();
      if (shown === this.#shown) this.say("");
    } catch (raised) {
      const error = asError(raised);
      if (error.status === 401) this.app.notify(error);
      if (shown === this.#shown) this.say([explain(error), ...(error.violations ?? []).map(({ description }) => description)].join(" "), true);
    }
  }

  /** Returns the link to a task's timeline. */
  addressOf(id) {
    return `#${new URLSearchParams({ view: "task", id })}`;
  }

  /** Shows `number` at the link of a view, or no number for 0. `what` describes the number to screen readers. */
  count(name, number, what) {
    const badge = this.links.get(name).firstChild.lastChild;
    const text = `${number} ${what}`;
    if (badge.textContent === text && badge.hidden === !number) return;
    badge.hidden = !number;
    badge.replaceChildren(String(number), el("span", { class: "sr" }, ` ${what}`));
    this.#revealLink();
  }

  /** Scrolls the links, which a narrow window cannot show all, until the link of the current view is visible. */
  #revealLink() {
    const current = [...this.links.values()].find((item) => item.firstChild.hasAttribute("aria-current"));
    current?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  async #read() {
    try {
      this.overview = await this.api.overview();
    } catch (raised) {
      if ([401, 403].includes(asError(raised).status)) this.allow(false);
      this.overview = null;
    }
    if (this.overview) {
      this.samples.add(this.overview);
      this.count("dead", this.overview.deadLetters, "dead letters");
      this.count("webhooks", this.overview.webhooks.dead, "given up");
    }
    this.#made.get("overview")?.draw();
  }

  #link(name, title) {
    const href = name ? `#view=${name}` : "#";
    return el("li", {}, el("a", { href }, title, el("span", { class: "count", hidden: true })));
  }
}
