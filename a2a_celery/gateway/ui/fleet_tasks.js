/** Tasks for operators: open tasks of all owners by phase, failed tasks of all owners, and all tasks of one owner or
 * schedule. */

import { el, keyed, mark, say } from "./dom.js";
import { Poll } from "./poll.js";
import { Table, anchor, point } from "./table.js";
import { ALL, badge, showState, showTime, time, wordFor } from "./words.js";

const INTERVAL = 4000;
const ANY = "any";
const PHASES = [
  ["running", "Running", "Tasks that a worker is executing."],
  ["queued", "Waiting", "Tasks that no worker has started."],
  ["paused", "Need a person", "Tasks that wait for an answer or an authorization."],
  ["suspended", "Suspended", "Tasks that wait for a time or a signal."],
  ["blocked", "Blocked", "Tasks that wait for an earlier run of their context."],
  ["delegated", "Delegated", "Tasks that have started a Celery canvas and wait for its end."],
  ["failed", "Failed", "The newest 200 failed tasks of all owners."],
  [ANY, "By owner or schedule", "Open and ended tasks, newest status first."],
];
const FILTERS = ["owner", "tenant", "agent", "state", "schedule"];

export class FleetTasksView {
  #phase = "";
  #filters = {};
  #pages = [];
  #next = null;

  constructor(views) {
    this.views = views;
    this.tabs = PHASES.map(([name, title]) => el("a", { href: `#view=tasks&phase=${name}` }, title));
    this.search = el("input", { type: "search", id: "fleet-search", spellcheck: "false", autocomplete: "off", placeholder: "Id, agent, owner, worker" });
    this.search.addEventListener("input", () => this.#draw());
    this.note = el("p", { class: "hint", role: "status" });
    this.empty = el("p", { class: "empty", hidden: true });
    this.table = new Table(
      "Tasks",
      [["Task", anchor], ["Agent"], ["Owner"], ["State", () => badge("")], ["Since", () => time("")], ["Attempt"], ["Worker"]],
      ({ id }) => id,
      ([link, agent, owner, state, since, attempt, worker], task) => {
        point(link, views.addressOf(task.id), task.id);
        say(agent, task.agent);
        say(owner, ownerOf(task));
        showState(state, task.state);
        showTime(since, task.since);
        say(attempt, task.attempt ? `${task.attempt} of ${task.maxAttempts}` : "–");
        say(worker, task.worker || "–");
      },
    );
    this.more = el("button", { type: "button", hidden: true }, "Show more");
    this.more.addEventListener("click", () => this.#loadMore());
    this.skipped = el("ul", { class: "ticks" });
    this.ticks = el("section", { class: "card stack", hidden: true }, el("h3", {}, "Skipped ticks"), el("p", { class: "hint" }, "A task of the schedule was still running."), this.skipped);
    this.filters = this.#filterForm();
    const form = el("form", { class: "row", role: "search" }, el("label", { for: "fleet-search", class: "sr" }, "Find a task"), this.search, el("button", { type: "submit" }, "Open by id"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.search.value.trim()) location.hash = views.addressOf(this.search.value.trim());
    });
    this.element = el("div", { class: "stack" }, el("nav", { class: "tabs", "aria-label": "Phases" }, ...this.tabs), this.filters, form, this.note, this.table.element, this.empty, this.more, this.ticks);
    this.poll = new Poll(() => views.attempt(() => this.#load()), INTERVAL);
    this.follow = () => this.#choose();
  }

  enter() {
    window.addEventListener("hashchange", this.follow);
    this.#choose();
  }

  leave() {
    window.removeEventListener("hashchange", this.follow);
    this.poll.stop();
  }

  /** Reads the phase and the filters from the fragment of the page's URL. */
  #choose() {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (asked.get("view") !== "tasks") return;
    const phase = PHASES.find(([name]) => name === asked.get("phase"))?.[0] ?? "running";
    const filters = phase === ANY ? Object.fromEntries(FILTERS.map((name) => [name, asked.get(name) ?? ""])) : {};
    PHASES.forEach(([name], i) => mark(this.tabs[i], name === phase));
    if (phase !== this.#phase || JSON.stringify(filters) !== JSON.stringify(this.#filters)) {
      this.#pages = [];
      this.#next = null;
      this.ticks.hidden = true;
    }
    this.#phase = phase;
    this.#filters = filters;
    this.#showFilters();
    this.#draw();
    this.poll.now();
  }

  #request(cursor) {
    return this.#phase === ANY ? this.views.api.storedTasks(this.#filters, cursor) : this.views.api.tasks(this.#phase, cursor);
  }

  async #load() {
    const filters = this.#filters;
    let page;
    try {
      page = await this.#request(0);
    } catch (error) {
      say(this.note, "");
      throw error;
    }
    if (filters !== this.#filters) return;
    if (this.#pages.length < 2) this.#next = page.next;
    this.#pages[0] = page.tasks;
    this.#drawTicks(page.skippedTicks ?? []);
    this.#draw();
  }

  #loadMore() {
    return this.views.attempt(async () => {
      const filters = this.#filters;
      const page = await this.#request(this.#next);
      if (filters !== this.#filters) return;
      this.#pages.push(page.tasks);
      this.#next = page.next;
      this.#draw();
    });
  }

  #draw() {
    const all = [...new Map(this.#pages.flat().map((task) => [task.id, task])).values()];
    const word = this.search.value.trim().toLowerCase();
    const shown = all.filter((task) => [task.id, task.agent, task.owner, task.tenant, task.contextId, task.worker].some((text) => text.toLowerCase().includes(word)));
    if (this.#phase !== ANY) shown.sort((one, other) => (one.since < other.since ? 1 : -1));
    this.table.draw(shown);
    this.more.hidden = this.#next === null;
    this.empty.hidden = shown.length > 0 || !this.#pages.length;
    say(this.empty, word && all.length ? "None of the loaded tasks matches." : this.#phase === ANY ? "No stored task matches." : "No task is in this phase.");
    const about = PHASES.find(([name]) => name === this.#phase)[2];
    const number = word ? `${shown.length} of ${all.length}` : `${all.length}`;
    const counted = all.length ? ` ${number} shown${this.#next === null ? "" : ", more exist"}.` : "";
    say(this.note, this.#pages.length ? about + counted : "Loading …");
  }

  #drawTicks(ticks) {
    this.ticks.hidden = ticks.length === 0;
    keyed(this.skipped, ticks, (tick) => tick, (tick) => el("li", {}, new Date(tick).toLocaleString()), () => {});
  }

  #filterForm() {
    const input = (name, label, hint) => [name, label, el("input", { type: "text", spellcheck: "false", autocomplete: "off", placeholder: hint, dir: "auto" })];
    const choice = (name, label, first) => [name, label, el("select", {}, el("option", { value: "" }, first))];
    this.fields = [input("owner", "Owner", "none"), input("tenant", "Tenant", "none"), choice("agent", "Agent", "Every agent"), choice("state", "State", "Every state"), input("schedule", "Or a schedule", "name")];
    this.controls = Object.fromEntries(this.fields.map(([name, , control]) => [name, control]));
    this.controls.state.append(...ALL.map((state) => el("option", { value: state }, wordFor(state))));
    const form = el("form", { class: "card filter-form", hidden: true, "aria-label": "Filters" });
    for (const [name, label, control] of this.fields) {
      control.id = `filter-${name}`;
      form.append(el("div", {}, el("label", { for: control.id }, label), control));
    }
    form.append(el("button", { type: "submit", class: "primary" }, "Show"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const chosen = FILTERS.map((name) => [name, this.controls[name].value.trim()]).filter(([, value]) => value);
      location.hash = `#${new URLSearchParams([["view", "tasks"], ["phase", ANY], ...chosen])}`;
    });
    return form;
  }

  #showFilters() {
    this.filters.hidden = this.#phase !== ANY;
    if (this.filters.hidden) return;
    const { agent } = this.controls;
    const names = new Set([...this.views.app.agents.values()].map(({ name }) => name));
    if (this.#filters.agent) names.add(this.#filters.agent);
    agent.replaceChildren(agent.firstChild, ...[...names].filter(Boolean).map((name) => el("option", { value: name }, name)));
    for (const name of FILTERS) this.controls[name].value = this.#filters[name];
  }
}

/** Returns the owner and the tenant of a task as text. */
export const ownerOf = ({ owner, tenant }) => [owner || "–", tenant && `(${tenant})`].filter(Boolean).join(" ");
