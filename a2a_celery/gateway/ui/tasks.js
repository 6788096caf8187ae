/** Pane of one agent: its description, an input box for a message, and its tasks. */

import { About } from "./about.js";
import { Composer } from "./composer.js";
import { el, keyed, mark, newId, say } from "./dom.js";
import { asError } from "./errors.js";
import { summary } from "./fold.js";
import { ALL, LIVE, badge, explain, isEnded, showState, showTime, time, wordFor } from "./words.js";

const EVERY = 2500;
const PAGE = 50;

export class TasksPane {
  #busy = false;
  #again = null;
  #view = "live";
  #groups = [];
  #token = "";
  #sent = new Map();

  constructor(element, app) {
    this.app = app;
    this.about = new About(() => this.composer);
    this.composer = new Composer("Message", "Send", (parts) => this.#send(parts));
    this.live = el("button", { type: "button", "aria-pressed": "true" }, "Live");
    this.recent = el("button", { type: "button", "aria-pressed": "false" }, "All");
    this.live.addEventListener("click", () => this.#choose("live"));
    this.recent.addEventListener("click", () => this.#choose("recent"));
    this.search = el("input", { type: "search", "aria-label": "Find in these tasks", placeholder: "Find a text or an id", spellcheck: "false", autocomplete: "off" });
    this.search.addEventListener("input", () => this.#draw());
    this.state = el("select", { "aria-label": "State", hidden: true }, el("option", { value: "" }, "Every state"), ...ALL.map((state) => el("option", { value: state }, wordFor(state))));
    this.state.addEventListener("change", () => this.#choose("recent"));
    this.note = el("p", { class: "hint", role: "status" });
    this.list = el("div", { class: "groups" });
    this.more = el("button", { type: "button", class: "wide", hidden: true }, "Show more");
    this.more.addEventListener("click", () => this.#load(this.#token));
    this.body = el(
      "div",
      { hidden: true },
      this.about.element,
      this.composer.element,
      el("div", { class: "head" }, el("h3", {}, "Tasks"), el("div", { class: "switch", role: "group", "aria-label": "Which tasks" }, this.live, this.recent)),
      el("div", { class: "row filters" }, this.search, this.state),
      this.note,
      this.list,
      this.more,
      this.#opener(),
    );
    this.problem = el("p", { class: "empty", hidden: true });
    element.append(el("a", { class: "back", href: "#" }, "‹ Agents"), this.problem, this.body);
  }

  show(entry, task) {
    const another = entry !== this.entry;
    this.entry = entry;
    this.task = task;
    this.body.hidden = !entry?.agent;
    this.problem.hidden = !entry?.error;
    if (entry?.error) {
      say(this.problem, [explain(entry.error), entry.error.message].filter((text, i, all) => text && all.indexOf(text) === i).join(" "));
      if (another && entry.error.status === 401) this.app.askCredentials(true);
    }
    if (!entry?.agent) return;
    this.about.show(entry.agent);
    if (another) {
      this.#groups = [];
      this.#token = "";
      this.note.textContent = "";
      this.composer.clear();
    }
    this.#draw();
    if (another) this.refresh();
  }

  /** Requests the tasks now, and then every few seconds. */
  refresh() {
    clearTimeout(this.#again);
    this.#again = null;
    if (this.entry?.agent) this.#load("");
  }

  #choose(view) {
    this.#view = view;
    this.live.setAttribute("aria-pressed", String(view === "live"));
    this.recent.setAttribute("aria-pressed", String(view === "recent"));
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
    if (!entry?.agent || this.#busy) return;
    this.#busy = true;
    let wait = EVERY;
    try {
      if (!entry.agent.lists) this.#fromHere();
      else if (view === "live") await this.#loadLive(entry);
      else await this.#loadRecent(entry, token);
    } catch (raised) {
      const error = asError(raised);
      wait = Math.max(EVERY * 3, (error.retryAfter ?? 0) * 1000);
      if (!entry.agent.lists) this.#fromHere();
      else if (entry === this.entry) {
        say(this.note, explain(error));
        if (error.status === 401) this.app.notify(error);
      }
    } finally {
      this.#busy = false;
    }
    if (entry === this.entry && view === this.#view && status === this.state.value) this.#draw();
    else wait = 0;
    clearTimeout(this.#again);
    this.#again = setTimeout(() => document.hidden || this.refresh(), wait);
  }

  async #loadLive(entry) {
    const pages = await Promise.all(LIVE.map((status) => entry.agent.list({ status, pageSize: PAGE, historyLength: 1 })));
    entry.counts = Object.fromEntries(pages.map((page, i) => [LIVE[i], page.totalSize ?? page.tasks?.length ?? 0]));
    if (entry !== this.entry || this.#view !== "live") return;
    this.#groups = pages.map((page, i) => ({ state: LIVE[i], many: entry.counts[LIVE[i]], tasks: page.tasks ?? [] }));
    this.#token = "";
    const any = this.#groups.some((group) => group.tasks.length);
    say(this.note, any ? "" : "No live tasks. Send a message, or select All.");
    this.app.agentsPane.show(entry);
  }

  async #loadRecent(entry, token) {
    const status = this.state.value;
    const query = { pageSize: PAGE, historyLength: 1, ...(status && { status }), ...(token ? { pageToken: token } : {}) };
    const page = await entry.agent.list(query);
    if (entry !== this.entry || this.#view !== "recent" || status !== this.state.value) return;
    const old = this.#groups[0]?.tasks ?? [];
    const fresh = page.tasks ?? [];
    const ids = new Set(fresh.map(({ id }) => id));
    const rest = old.filter(({ id }) => !ids.has(id));
    // the first page is requested repeatedly, and the tasks that "more" has added stay after it
    const tasks = token ? [...old.filter(({ id }) => !ids.has(id)), ...fresh] : old.length > PAGE ? [...fresh, ...rest] : fresh;
    if (token || old.length <= PAGE) this.#token = page.nextPageToken ?? "";
    this.#groups = [{ state: "", many: page.totalSize ?? tasks.length, tasks }];
    say(this.note, tasks.length ? "" : status ? "No task is in this state." : "No tasks yet. Send a message.");
  }

  #fromHere() {
    const tasks = [...(this.#sent.get(this.entry.cardUrl)?.values() ?? [])].reverse();
    const shown = this.#view === "live" ? tasks.filter(({ status }) => !isEnded(status?.state)) : tasks;
    this.#groups = [{ state: "", many: shown.length, tasks: shown }];
    say(this.note, "This agent does not list its tasks. These are the tasks that you sent or opened on this page.");
  }

  /** Remembers a task that this page has received. If the agent does not support ListTasks, the list shows
   * these tasks. */
  seen(agent, task) {
    const of = this.#sent.get(agent.cardUrl) ?? new Map();
    this.#sent.set(agent.cardUrl, of);
    const { id, status, history } = task;
    of.set(id, { id, status, history: history?.slice(0, 1) });
    if (!agent.lists && this.entry?.agent === agent) {
      this.#fromHere();
      this.#draw();
    }
  }

  #draw() {
    const word = this.search.value.trim().toLowerCase();
    const groups = this.#groups.map((group) => ({ ...group, tasks: group.tasks.filter((task) => textOf(task).toLowerCase().includes(word)) }));
    keyed(
      this.list,
      groups.filter((group) => group.tasks.length),
      (group) => group.state || "all",
      () => el("section", {}, el("h4", {}, badge(""), el("span", { class: "hint" })), el("ul", { class: "list" }), el("p", { class: "hint" })),
      (section, group) => this.#drawGroup(section, group),
    );
    this.more.hidden = this.#token === "";
  }

  #drawGroup(section, { state, many, tasks }) {
    const [head, list, rest] = section.children;
    head.hidden = state === "";
    showState(head.firstChild, state);
    say(head.lastChild, String(many));
    say(rest, state && many > tasks.length && !this.search.value.trim() ? `${many - tasks.length} more` : "");
    rest.hidden = rest.textContent === "";
    keyed(
      list,
      tasks,
      (task) => task.id,
      () => el("li", {}, el("a", {}, badge(""), el("span", { class: "line", dir: "auto" }), time(""))),
      (item, task) => {
        const [shown, text, when] = item.firstChild.children;
        item.firstChild.setAttribute("href", this.app.address(this.entry.cardUrl, task.id));
        mark(item.firstChild, task.id === this.task);
        shown.hidden = state !== ""; // the heading of the group shows the state
        showState(shown, task.status?.state);
        showTime(when, task.status?.timestamp);
        say(text, lineOf(task));
      },
    );
  }

  async #send(parts) {
    const { agent, cardUrl } = this.entry;
    const id = await this.app.taskPane.send(this.entry, { messageId: newId(), role: "ROLE_USER", parts });
    if (id) location.hash = this.app.address(cardUrl, id);
    if (agent === this.entry?.agent) this.refresh();
  }

  #opener() {
    const input = el("input", { id: "task-id", type: "text", spellcheck: "false", autocomplete: "off" });
    const form = el("form", { class: "fields" }, el("label", { for: "task-id" }, "Task id"), el("div", { class: "row" }, input, el("button", { type: "submit" }, "Open")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (input.value.trim()) location.hash = this.app.address(this.entry.cardUrl, input.value.trim());
      input.value = "";
    });
    return el("details", { class: "more" }, el("summary", {}, "Open a task by its id"), form);
  }
}

/** Returns the text of a task in the list. */
const lineOf = (task) => summary(task.status?.message) || summary(task.history?.at(-1)) || task.id;

/** Returns the text of a task that the search examines. */
const textOf = (task) => [task.id, task.contextId, lineOf(task), ...(task.history ?? []).map((message) => summary(message))].join(" ");
