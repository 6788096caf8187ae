/** Tasks for operators: all tasks of all owners, open tasks by phase, and failed tasks. */

import { el, reconcile, setCurrent, setText } from "./dom.js";
import { Poll } from "./poll.js";
import { Table, createLink, setLink } from "./table.js";
import { TaskFilters, filtersIn } from "./task_filters.js";
import { TaskSelection } from "./task_selection.js";
import { END_REASONS, badge, showState, showTime, timeElement } from "./texts.js";

const INTERVAL = 4000;
const ALL = "all";
const PHASES = [
  [ALL, "All", "Open and ended tasks of all owners, newest status first."],
  ["running", "Running", "Tasks that a worker is executing."],
  ["queued", "Waiting", "Tasks that no worker has started."],
  ["paused", "Need a person", "Tasks that wait for an answer or an authorization."],
  ["suspended", "Suspended", "Tasks that wait for a time or a signal."],
  ["blocked", "Blocked", "Tasks that wait for an earlier run of their context."],
  ["delegated", "Delegated", "Tasks that have started a Celery canvas and wait for its end."],
  ["failed", "Failed", "The newest 200 failed tasks of all owners."],
];

export class FleetTasksView {
  #phase = "";
  #filters = {};
  #pages = [];
  #nextCursor = null;

  constructor(views) {
    this.views = views;
    this.tabs = PHASES.map(([name, title]) => el("a", { href: addressOf(name) }, title));
    this.search = el("input", { type: "search", id: "fleet-search", spellcheck: "false", autocomplete: "off", placeholder: "Id, agent, owner, reason" });
    this.search.addEventListener("input", () => {
      history.replaceState(null, "", addressOf(this.#phase, this.#filters, this.search.value.trim()));
      this.#draw();
    });
    this.selection = new TaskSelection(views, () => this.#draw(), () => this.poll.refresh());
    this.note = el("p", { class: "hint", role: "status" });
    this.empty = el("p", { class: "empty", hidden: true });
    this.table = new Table(
      "Tasks",
      [["Select", () => this.selection.createCell(), "select"], ["Task", createTitle], ["Agent", null, "word"], ["Owner"], ["State", () => badge("")], ["Reason", createReason], ["Since", () => timeElement("")], ["Attempt"], ["Worker", createLink]],
      ({ id }) => id,
      ([box, title, agent, owner, state, reason, since, attempt, worker], task) => {
        this.selection.showCell(box, task);
        showTitle(title, views.addressOf(task.id), task);
        setText(agent, task.agent);
        setText(owner, ownerOf(task));
        showState(state, task.state);
        showReason(reason, views.addressOf(task.id), task);
        showTime(since, task.since);
        setText(attempt, attemptsOf(task));
        setLink(worker, "#view=workers", task.worker || "–");
        worker.title = task.process ? `Process ${task.process}` : "";
        if (!task.worker) worker.removeAttribute("href");
      },
    );
    this.moreButton = el("button", { type: "button", hidden: true }, "Show more");
    this.moreButton.addEventListener("click", () => this.#loadMore());
    this.skippedList = el("ul", { class: "ticks" });
    this.ticks = el("section", { class: "card stack", hidden: true }, el("h3", {}, "Skipped ticks"), el("p", { class: "hint" }, "A task of the schedule was still running."), this.skippedList);
    this.filters = new TaskFilters((filters) => (location.hash = addressOf(ALL, filters, this.search.value.trim())));
    const form = el("form", { class: "row", role: "search" }, el("label", { for: "fleet-search", class: "sr-only" }, "Find a task"), this.search, el("button", { type: "submit" }, "Open by id"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.search.value.trim()) location.hash = views.addressOf(this.search.value.trim());
    });
    this.element = el("div", { class: "stack" }, el("nav", { class: "tabs", "aria-label": "Phases" }, ...this.tabs), this.filters.element, form, this.note, this.selection.element, this.table.element, this.empty, this.moreButton, this.ticks);
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
    this.selection.leave();
  }

  /** Read the phase, the filters and the searched text from the fragment of the page's URL. */
  #applyFragment() {
    const query = new URLSearchParams(location.hash.slice(1));
    if (query.get("view") !== "tasks") return;
    const phase = PHASES.find(([name]) => name === query.get("phase"))?.[0] ?? ALL;
    const filters = phase === ALL ? filtersIn(query) : {};
    PHASES.forEach(([name], i) => setCurrent(this.tabs[i], name === phase));
    if (phase !== this.#phase || JSON.stringify(filters) !== JSON.stringify(this.#filters)) {
      this.#pages = [];
      this.#nextCursor = null;
      this.ticks.hidden = true;
    }
    this.#phase = phase;
    this.#filters = filters;
    this.search.value = query.get("text") ?? "";
    this.filters.element.hidden = phase !== ALL;
    this.filters.show(filters, [...this.views.app.agents.values()].map(({ name }) => name));
    this.#draw();
    this.poll.refresh();
  }

  #request(cursor) {
    if (this.#phase !== ALL) return this.views.api.tasks(this.#phase, cursor);
    return this.views.api.storedTasks(this.#filters, cursor);
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
    const visibleTasks = tasks.filter((task) => searchText(task).toLowerCase().includes(term));
    if (this.#phase !== ALL) visibleTasks.sort((a, b) => (a.since < b.since ? 1 : -1));
    this.selection.draw(visibleTasks);
    this.table.draw(visibleTasks);
    this.moreButton.hidden = this.#nextCursor === null;
    this.empty.hidden = visibleTasks.length > 0 || !this.#pages.length;
    setText(this.empty, term && tasks.length ? "None of the loaded tasks matches." : this.#phase === ALL ? "No stored task matches." : "No task is in this phase.");
    const description = PHASES.find(([name]) => name === this.#phase)[2];
    const shownCount = term ? `${visibleTasks.length} of ${tasks.length}` : `${tasks.length}`;
    const countText = tasks.length ? ` ${shownCount} shown${this.#nextCursor === null ? "" : ", more exist"}.` : "";
    setText(this.note, this.#pages.length ? description + countText : "Loading …");
  }

  #drawTicks(ticks) {
    this.ticks.hidden = ticks.length === 0;
    reconcile(this.skippedList, ticks, (tick) => tick, (tick) => el("li", {}, new Date(tick).toLocaleString()), () => {});
  }
}

/** Return the address of a list in the page. `text` is searched in the loaded tasks. */
function addressOf(phase, filters = {}, text = "") {
  const query = phase === ALL ? filters : { phase };
  return `#${new URLSearchParams({ view: "tasks", ...query, ...(text && { text }) })}`;
}

/** Return an element with the title of a task as a link, and a second line. */
export const createTitle = () => el("div", { class: "task-title" }, createLink(), el("span", { class: "hint line", dir: "auto" }));

/** Show the request of a task, or its id if the operator may not read the request. The second line has the id and the
 * text of the status. */
export function showTitle({ firstChild: link, lastChild: second }, href, { id, request, text }) {
  setLink(link, href, request || id);
  link.classList.toggle("text", Boolean(request));
  setText(second, request ? [text, id].filter(Boolean).join(" · ") : "");
}

export const createReason = () => el("span", { class: "reason" }, el("span", {}), createLink({ class: "text" }), el("code", {}));

/** Show the reason of a failure with its reference. If `href` is not "", a dead letter has this link to its timeline,
 * which has a button that requeues it. */
export function showReason({ children: [name, link, reference] }, href, task) {
  setText(name, task.reason ? (END_REASONS[task.reason] ?? task.reason) : "–");
  setLink(link, href, task.deadLetter ? "Dead letter" : "");
  link.hidden = !task.deadLetter || !href;
  setText(reference, task.reference);
}

/** Return the text of a task that the search examines. */
const searchText = (task) => [END_REASONS[task.reason], task.reference, task.id, task.agent, task.owner, task.tenant, task.contextId, task.worker, task.request, task.text].join(" ");

/** Return the number of the attempt and the maximum, or "–" before the first attempt, whose worker knows the maximum. */
export const attemptsOf = ({ attempt, maxAttempts }) => (maxAttempts ? `${attempt} of ${maxAttempts}` : "–");

/** Return the owner and the tenant of a task as text. */
export const ownerOf = ({ owner, tenant }) => [owner || "–", tenant && `(${tenant})`].filter(Boolean).join(" ");
