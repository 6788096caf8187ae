/** Tasks for operators: open tasks of all owners by phase, failed tasks of all owners, and all tasks of one owner or
 * schedule. */

import { el, reconcile, setCurrent, setText } from "./dom.js";
import { Poll } from "./poll.js";
import { Table, createLink, setLink } from "./table.js";
import { ALL_STATES, badge, showState, showTime, stateName, timeElement } from "./texts.js";

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
  #nextCursor = null;

  constructor(views) {
    this.views = views;
    this.tabs = PHASES.map(([name, title]) => el("a", { href: `#view=tasks&phase=${name}` }, title));
    this.search = el("input", { type: "search", id: "fleet-search", spellcheck: "false", autocomplete: "off", placeholder: "Id, agent, owner, worker" });
    this.search.addEventListener("input", () => this.#draw());
    this.note = el("p", { class: "hint", role: "status" });
    this.empty = el("p", { class: "empty", hidden: true });
    this.table = new Table(
      "Tasks",
      [["Task", createLink], ["Agent", null, "word"], ["Owner"], ["State", () => badge("")], ["Since", () => timeElement("")], ["Attempt"], ["Worker"]],
      ({ id }) => id,
      ([link, agent, owner, state, since, attempt, worker], task) => {
        setLink(link, views.addressOf(task.id), task.id);
        setText(agent, task.agent);
        setText(owner, ownerOf(task));
        showState(state, task.state);
        showTime(since, task.since);
        setText(attempt, task.attempt ? `${task.attempt} of ${task.maxAttempts}` : "–");
        setText(worker, task.worker || "–");
      },
    );
    this.moreButton = el("button", { type: "button", hidden: true }, "Show more");
    this.moreButton.addEventListener("click", () => this.#loadMore());
    this.skippedList = el("ul", { class: "ticks" });
    this.ticks = el("section", { class: "card stack", hidden: true }, el("h3", {}, "Skipped ticks"), el("p", { class: "hint" }, "A task of the schedule was still running."), this.skippedList);
    this.filters = this.#filterForm();
    const form = el("form", { class: "row", role: "search" }, el("label", { for: "fleet-search", class: "sr-only" }, "Find a task"), this.search, el("button", { type: "submit" }, "Open by id"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.search.value.trim()) location.hash = views.addressOf(this.search.value.trim());
    });
    this.element = el("div", { class: "stack" }, el("nav", { class: "tabs", "aria-label": "Phases" }, ...this.tabs), this.filters, form, this.note, this.table.element, this.empty, this.moreButton, this.ticks);
    this.poll = new Poll(() => views.attempt(() => this.#load()), INTERVAL);
    this.onHashChange = () => this.#applyFragment();
  }

  enter() {
    window.addEventListener("hashchange", this.onHashChange);
    this.#applyFragment();
  }

  leave() {
    window.removeEventListener("hashchange", this.onHashChange);
    this.poll.stop();
  }

  /** Read the phase and the filters from the fragment of the page's URL. */
  #applyFragment() {
    const query = new URLSearchParams(location.hash.slice(1));
    if (query.get("view") !== "tasks") return;
    const phase = PHASES.find(([name]) => name === query.get("phase"))?.[0] ?? "running";
    const filters = phase === ANY ? Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""])) : {};
    PHASES.forEach(([name], i) => setCurrent(this.tabs[i], name === phase));
    if (phase !== this.#phase || JSON.stringify(filters) !== JSON.stringify(this.#filters)) {
      this.#pages = [];
      this.#nextCursor = null;
      this.ticks.hidden = true;
    }
    this.#phase = phase;
    this.#filters = filters;
    this.#showFilters();
    this.#draw();
    this.poll.refresh();
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
      setText(this.note, "");
      throw error;
    }
    if (filters !== this.#filters) return;
    if (this.#pages.length < 2) this.#nextCursor = page.next;
    this.#pages[0] = page.tasks;
    this.#drawTicks(page.skippedTicks ?? []);
    this.#draw();
  }

  #loadMore() {
    return this.views.attempt(async () => {
      const filters = this.#filters;
      const page = await this.#request(this.#nextCursor);
      if (filters !== this.#filters) return;
      this.#pages.push(page.tasks);
      this.#nextCursor = page.next;
      this.#draw();
    });
  }

  #draw() {
    const tasks = [...new Map(this.#pages.flat().map((task) => [task.id, task])).values()];
    const term = this.search.value.trim().toLowerCase();
    const visibleTasks = tasks.filter((task) => [task.id, task.agent, task.owner, task.tenant, task.contextId, task.worker].some((text) => text.toLowerCase().includes(term)));
    if (this.#phase !== ANY) visibleTasks.sort((a, b) => (a.since < b.since ? 1 : -1));
    this.table.draw(visibleTasks);
    this.moreButton.hidden = this.#nextCursor === null;
    this.empty.hidden = visibleTasks.length > 0 || !this.#pages.length;
    setText(this.empty, term && tasks.length ? "None of the loaded tasks matches." : this.#phase === ANY ? "No stored task matches." : "No task is in this phase.");
    const description = PHASES.find(([name]) => name === this.#phase)[2];
    const shownCount = term ? `${visibleTasks.length} of ${tasks.length}` : `${tasks.length}`;
    const countText = tasks.length ? ` ${shownCount} shown${this.#nextCursor === null ? "" : ", more exist"}.` : "";
    setText(this.note, this.#pages.length ? description + countText : "Loading …");
  }

  #drawTicks(ticks) {
    this.ticks.hidden = ticks.length === 0;
    reconcile(this.skippedList, ticks, (tick) => tick, (tick) => el("li", {}, new Date(tick).toLocaleString()), () => {});
  }

  #filterForm() {
    const input = (name, label, hint) => [name, label, el("input", { type: "text", spellcheck: "false", autocomplete: "off", placeholder: hint, dir: "auto" })];
    const choice = (name, label, placeholder) => [name, label, el("select", {}, el("option", { value: "" }, placeholder))];
    this.fields = [input("owner", "Owner", "none"), input("tenant", "Tenant", "none"), choice("agent", "Agent", "Every agent"), choice("state", "State", "Every state"), input("schedule", "Or a schedule", "name")];
    this.controls = Object.fromEntries(this.fields.map(([name, , control]) => [name, control]));
    this.controls.state.append(...ALL_STATES.map((state) => el("option", { value: state }, stateName(state))));
    const form = el("form", { class: "card filter-form", hidden: true, "aria-label": "Filters" });
    for (const [name, label, control] of this.fields) {
      control.id = `filter-${name}`;
      form.append(el("div", {}, el("label", { for: control.id }, label), control));
    }
    form.append(el("button", { type: "submit", class: "primary" }, "Show"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const entries = FILTERS.map((name) => [name, this.controls[name].value.trim()]).filter(([, value]) => value);
      location.hash = `#${new URLSearchParams([["view", "tasks"], ["phase", ANY], ...entries])}`;
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

/** Return the owner and the tenant of a task as text. */
export const ownerOf = ({ owner, tenant }) => [owner || "–", tenant && `(${tenant})`].filter(Boolean).join(" ");
