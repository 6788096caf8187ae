/** Pane of one agent: its description, an input box for a message, and its tasks. */

import { AgentHeader } from "./agent_header.js";
import { Composer } from "./composer.js";
import { el, newId, reconcile, setCurrent, setText } from "./dom.js";
import { asError } from "./errors.js";
import { shorten, summary } from "./task_reducer.js";
import { ALL_STATES, LIVE_STATES, badge, explain, isTerminal, showState, showTime, stateName, timeElement } from "./texts.js";

const INTERVAL = 2500;
const PAGE_SIZE = 50;
/** Number of messages of each task that are read to find the request. */
const HISTORY_LENGTH = 10;
const MAX_TITLE = 100;

export class TasksPane {
  #isLoading = false;
  #timer = null;
  #view = "live";
  #groups = [];
  #token = "";
  #knownTasks = new Map();
  #openTask = null;
  /** Requests by task id. The request of a task with a long history is known only while its history was short. */
  #requests = new Map();

  constructor(element, app) {
    this.app = app;
    this.header = new AgentHeader(() => this.composer);
    this.composer = new Composer("Message", "Send", (parts) => this.#send(parts));
    this.liveButton = el("button", { type: "button", "aria-pressed": "true" }, "Live");
    this.allButton = el("button", { type: "button", "aria-pressed": "false" }, "All");
    this.liveButton.addEventListener("click", () => this.#selectView("live"));
    this.allButton.addEventListener("click", () => this.#selectView("recent"));
    this.search = el("input", { type: "search", "aria-label": "Find in these tasks", placeholder: "Find a text or an id", spellcheck: "false", autocomplete: "off" });
    this.search.addEventListener("input", () => this.#draw());
    this.state = el("select", { "aria-label": "State", hidden: true }, el("option", { value: "" }, "Every state"), ...ALL_STATES.map((state) => el("option", { value: state }, stateName(state))));
    this.state.addEventListener("change", () => this.#selectView("recent"));
    this.note = el("p", { class: "hint", role: "status" });
    this.list = el("div", { class: "groups" });
    this.moreButton = el("button", { type: "button", class: "wide", hidden: true }, "Show more");
    this.moreButton.addEventListener("click", () => this.#load(this.#token));
    this.body = el(
      "div",
      { hidden: true },
      this.header.element,
      this.composer.element,
      el("div", { class: "head" }, el("h3", {}, "Tasks"), el("div", { class: "switch", role: "group", "aria-label": "Which tasks" }, this.liveButton, this.allButton)),
      el("div", { class: "row filters" }, this.search, this.state),
      this.note,
      this.list,
      this.moreButton,
      this.#openForm(),
    );
    this.problem = el("p", { class: "empty", hidden: true });
    element.append(el("a", { class: "back", href: "#" }, "‹ Agents"), this.problem, this.body);
  }

  show(entry, task) {
    const isNewEntry = entry !== this.entry;
    this.entry = entry;
    this.task = task;
    this.body.hidden = !entry?.agent;
    this.problem.hidden = !entry?.error;
    if (entry?.error) {
      setText(this.problem, [explain(entry.error), entry.error.message].filter((text, i, all) => text && all.indexOf(text) === i).join(" "));
      if (isNewEntry && entry.error.status === 401) this.app.toggleCredentials(true);
    }
    if (!entry?.agent) return;
    this.header.show(entry.agent);
    if (isNewEntry) {
      this.#groups = [];
      this.#token = "";
      this.#openTask = null;
      this.#requests.clear();
      this.note.textContent = "";
      this.composer.clear();
    }
    this.#draw();
    if (isNewEntry) this.refresh();
  }

  /** Request the tasks now, and then every few seconds. */
  refresh() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.entry?.agent) this.#load("");
  }

  #selectView(view) {
    this.#view = view;
    this.liveButton.setAttribute("aria-pressed", String(view === "live"));
    this.allButton.setAttribute("aria-pressed", String(view === "recent"));
    this.state.hidden = view !== "recent";
    this.#groups = [];
    this.#token = "";
    this.#draw();
    this.refresh();
  }

  async #load(token) {
    const entry = this.entry;
    const view = this.#view;
    const status = this.state.value;
    if (!entry?.agent || this.#isLoading) return;
    this.#isLoading = true;
    let delay = INTERVAL;
    try {
      if (!entry.agent.canList) this.#listKnownTasks();
      else if (view === "live") await this.#loadLive(entry);
      else await this.#loadRecent(entry, token);
    } catch (cause) {
      const error = asError(cause);
      delay = Math.max(INTERVAL * 3, (error.retryAfter ?? 0) * 1000);
      if (!entry.agent.canList) this.#listKnownTasks();
      else if (entry === this.entry) {
        setText(this.note, explain(error));
        if (error.status === 401) this.app.notify(error);
      }
    } finally {
      this.#isLoading = false;
    }
    if (entry === this.entry && view === this.#view && status === this.state.value) {
      if (entry.agent.canList) this.#mergeOpenTask();
      this.#draw();
    }
    else delay = 0;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => document.hidden || this.refresh(), delay);
  }

  async #loadLive(entry) {
    const pages = await Promise.all(LIVE_STATES.map((status) => entry.agent.list({ status, pageSize: PAGE_SIZE, historyLength: HISTORY_LENGTH })));
    entry.counts = Object.fromEntries(pages.map((page, i) => [LIVE_STATES[i], page.totalSize ?? page.tasks?.length ?? 0]));
    if (entry !== this.entry || this.#view !== "live") return;
    this.#groups = pages.map((page, i) => ({ state: LIVE_STATES[i], total: entry.counts[LIVE_STATES[i]], tasks: page.tasks ?? [] }));
    this.#token = "";
    const hasTasks = this.#groups.some((group) => group.tasks.length);
    setText(this.note, hasTasks ? "" : "No live tasks. Send a message, or select All.");
    this.app.agentsPane.show(entry);
  }

  async #loadRecent(entry, token) {
    const status = this.state.value;
    const query = { pageSize: PAGE_SIZE, historyLength: HISTORY_LENGTH, ...(status && { status }), ...(token ? { pageToken: token } : {}) };
    const page = await entry.agent.list(query);
    if (entry !== this.entry || this.#view !== "recent" || status !== this.state.value) return;
    const previous = this.#groups[0]?.tasks ?? [];
    const newTasks = page.tasks ?? [];
    const ids = new Set(newTasks.map(({ id }) => id));
    const remainder = previous.filter(({ id }) => !ids.has(id));
    // the first page is requested repeatedly, and the tasks that the button has added stay after it
    const tasks = token ? [...previous.filter(({ id }) => !ids.has(id)), ...newTasks] : previous.length > PAGE_SIZE ? [...newTasks, ...remainder] : newTasks;
    if (token || previous.length <= PAGE_SIZE) this.#token = page.nextPageToken ?? "";
    this.#groups = [{ state: "", total: page.totalSize ?? tasks.length, tasks }];
    setText(this.note, tasks.length ? "" : status ? "No task is in this state." : "No tasks yet. Send a message.");
  }

  #listKnownTasks() {
    const tasks = [...(this.#knownTasks.get(this.entry.cardUrl)?.values() ?? [])].reverse();
    const visibleTasks = this.#view === "live" ? tasks.filter(({ status }) => !isTerminal(status?.state)) : tasks;
    this.#groups = [{ state: "", total: visibleTasks.length, tasks: visibleTasks }];
    setText(this.note, "This agent does not list its tasks. These are the tasks that you sent or opened on this page.");
  }

  /** Remember a task that this page has received. If the agent does not support ListTasks, the list shows
   * these tasks. */
  rememberTask(agent, task) {
    const tasks = this.#knownTasks.get(agent.cardUrl) ?? new Map();
    this.#knownTasks.set(agent.cardUrl, tasks);
    const { id, status, history } = task;
    const openTask = { id, contextId: task.contextId, status, history: history?.slice(0, 1) };
    tasks.set(id, openTask);
    if (this.entry?.agent !== agent) return;
    const isChanged = this.#openTask?.id !== id || this.#openTask.status?.timestamp !== status?.timestamp;
    this.#openTask = openTask;
    if (!agent.canList) this.#listKnownTasks();
    else if (isChanged) this.#mergeOpenTask();
    if (isChanged || !agent.canList) this.#draw();
  }

  /** Bring the row of the open task up to date with the events that the page has received, which may be newer than the
   * list. */
  #mergeOpenTask() {
    const task = this.#openTask;
    const { state, timestamp } = task?.status ?? {};
    if (!timestamp || !this.#groups.length) return;
    const previousGroup = this.#groups.find(({ tasks }) => tasks.some(({ id }) => id === task.id));
    const previous = previousGroup?.tasks.find(({ id }) => id === task.id);
    if (previous && Date.parse(previous.status?.timestamp) >= Date.parse(timestamp)) return;
    const group = this.#groups.find((candidate) => candidate.state === state || (candidate.state === "" && (previous || !this.state.value)));
    const isListed = previous || (group && group.tasks.length === group.total);
    if (previousGroup && previousGroup !== group) previousGroup.total--;
    if (previousGroup) previousGroup.tasks = previousGroup.tasks.filter(({ id }) => id !== task.id);
    if (!group || !isListed) return;
    if (previousGroup !== group) group.total++;
    group.tasks = [{ ...previous, ...task }, ...group.tasks];
  }

  #draw() {
    const term = this.search.value.trim().toLowerCase();
    const groups = this.#groups.map((group) => ({ ...group, tasks: group.tasks.filter((task) => this.#searchText(task).toLowerCase().includes(term)) }));
    reconcile(
      this.list,
      groups.filter((group) => group.tasks.length),
      (group) => group.state || "all",
      () => el("section", {}, el("h4", {}, badge(""), el("span", { class: "hint" })), el("ul", { class: "list" }), el("p", { class: "hint" })),
      (section, group) => this.#drawGroup(section, group),
    );
    this.moreButton.hidden = this.#token === "";
  }

  #drawGroup(section, { state, total, tasks }) {
    const [heading, list, remainder] = section.children;
    heading.hidden = state === "";
    showState(heading.firstChild, state);
    setText(heading.lastChild, String(total));
    setText(remainder, state && total > tasks.length && !this.search.value.trim() ? `${total - tasks.length} more` : "");
    remainder.hidden = remainder.textContent === "";
    reconcile(
      list,
      tasks,
      (task) => task.id,
      () => el("li", {}, el("a", {}, badge(""), el("span", { class: "lines" }, el("span", { class: "request", dir: "auto" }), el("span", { class: "hint line", dir: "auto" })), timeElement(""))),
      (item, task) => {
        const [stateBadge, lines, statusTime] = item.firstChild.children;
        const [title, text] = lines.children;
        item.firstChild.setAttribute("href", this.app.address(this.entry.cardUrl, task.id));
        setCurrent(item.firstChild, task.id === this.task);
        stateBadge.hidden = state !== ""; // the heading of the group shows the state
        showState(stateBadge, task.status?.state);
        showTime(statusTime, task.status?.timestamp);
        setText(title, shorten(this.#requestOf(task), MAX_TITLE));
        title.title = task.id;
        setText(text, summary(task.status?.message));
      },
    );
  }

  async #send(parts) {
    const { agent, cardUrl } = this.entry;
    const id = await this.app.taskPane.send(this.entry, { messageId: newId(), role: "ROLE_USER", parts });
    if (id) location.hash = this.app.address(cardUrl, id);
    if (agent === this.entry?.agent) this.refresh();
  }

  #openForm() {
    const input = el("input", { id: "task-id", type: "text", spellcheck: "false", autocomplete: "off" });
    const form = el("form", { class: "fields" }, el("label", { for: "task-id" }, "Task id"), el("div", { class: "row" }, input, el("button", { type: "submit" }, "Open")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (input.value.trim()) location.hash = this.app.address(this.entry.cardUrl, input.value.trim());
      input.value = "";
    });
    return el("details", { class: "more" }, el("summary", {}, "Open a task by its id"), form);
  }

  /** Return the request of a task, that is, the first message of its client, or the task's id. */
  #requestOf({ id, history = [] }) {
    const request = summary(history.find(({ role }) => role === "ROLE_USER"), 1000);
    if (request && (history.length < HISTORY_LENGTH || !this.#requests.has(id))) this.#requests.set(id, request);
    return this.#requests.get(id) || id;
  }

  /** Return the text of a task that the search examines. */
  #searchText(task) {
    return [task.id, task.contextId, this.#requestOf(task), ...[task.status?.message, ...(task.history ?? [])].map((message) => summary(message))].join(" ");
  }
}
