/** Interrupted tasks of the caller at all agents, each with its question and a form for the answer. */

import { requestJson } from "./agent_client.js";
import { AnswerForm, isSchemaPart } from "./answer_form.js";
import { Composer } from "./composer.js";
import { el, newId, reconcile, setText } from "./dom.js";
import { asError } from "./errors.js";
import { partsElement } from "./parts.js";
import { Poll } from "./poll.js";
import { summary } from "./task_reducer.js";
import { INTERRUPTED_STATES, badge, explain, showState, showTime, timeElement } from "./texts.js";

const INTERVAL = 4000;
const PAGE_SIZE = 20;
/** Maximum number of tasks that one request returns. */
const MAX_SIZE = 99;

/** Client of the inbox of this gateway, which A2A does not define. */
export class InboxApi {
  /** `headers()` returns the headers that authenticate a request. */
  constructor(headers) {
    this.headers = headers;
  }

  /** Return `{ tasks, totals, next }`, a page of the caller's waiting tasks, oldest status first. */
  read(query) {
    const url = new URL(`inbox.json?${new URLSearchParams(query)}`, document.baseURI);
    return requestJson(url.href, { headers: { Accept: "application/json", ...this.headers() } });
  }
}

export const sumOf = (totals) => Object.values(totals).reduce((sum, count) => sum + count, 0);

export class InboxView {
  #answeredKeys = new Set();
  #size = PAGE_SIZE;

  constructor(views) {
    this.views = views;
    this.empty = el("p", { class: "empty", hidden: true }, "Nothing waits for you.");
    this.agent = el("select", { id: "inbox-agent" }, el("option", { value: "" }, "Every agent"));
    this.agent.addEventListener("change", () => this.#restart());
    this.filter = el("div", { class: "row", hidden: true }, el("label", { for: "inbox-agent" }, "Agent"), this.agent);
    this.list = el("div", { class: "stack inbox" });
    this.moreButton = el("button", { type: "button", hidden: true }, "Show more");
    this.moreButton.addEventListener("click", () => {
      this.#size += PAGE_SIZE;
      this.poll.refresh();
    });
    this.countNote = el("p", { class: "hint", role: "status" });
    this.element = el("div", { class: "narrow stack" }, this.filter, this.countNote, this.list, this.moreButton, this.empty);
    this.poll = new Poll(() => this.views.attempt(() => this.#load()), INTERVAL);
  }

  enter() {
    if (!this.list.hasChildNodes()) this.views.showNote("Loading …");
    this.poll.start();
  }

  leave() {
    this.poll.stop();
  }

  #restart() {
    this.#size = PAGE_SIZE;
    this.poll.refresh();
  }

  async #load() {
    const { app } = this.views;
    const agent = this.agent.value;
    await app.readCards();
    const entries = [...app.agents.values()];
    const inbox = entries.some(({ isInInbox }) => isInInbox) ? await this.#readInbox(agent) : { items: [], totals: {} };
    const lists = await this.#readLists(entries.filter((entry) => !entry.isInInbox && entry.agent?.canList));
    if (agent !== this.agent.value) return;
    const items = [...inbox.items, ...lists.items.filter(({ entry }) => !agent || entry.name === agent)];
    items.sort((a, b) => Date.parse(a.task.status.timestamp) - Date.parse(b.task.status.timestamp));
    const totals = { ...lists.totals, ...inbox.totals };
    this.#draw(items.filter(({ key }) => !this.#answeredKeys.has(key)).slice(0, this.#size), agent ? (totals[agent] ?? 0) : sumOf(totals));
    this.#drawAgents(totals, agent);
    if (!agent) this.views.countWaiting({ inbox: sumOf(inbox.totals), lists: sumOf(lists.totals) });
    if (lists.hiddenCount) setText(this.countNote, `${this.countNote.textContent} ${lists.hiddenCount} older tasks may be missing, because the server lists the newest tasks first.`);
    if (lists.failure) throw lists.failure;
  }

  /** Return the oldest tasks of the gateway's agents, or of one of them. */
  async #readInbox(agent) {
    const tasks = [];
    let page = { next: "" };
    while (page.next !== null && tasks.length < this.#size) {
      page = await this.views.inbox.read({ size: Math.min(MAX_SIZE, this.#size - tasks.length), cursor: page.next, agent });
      tasks.push(...page.tasks);
    }
    return { items: tasks.map(({ agent, task }) => itemOf(this.views.app.agentOf(agent), task)), totals: page.totals };
  }

  /** Return the newest tasks of other agents, for which only ListTasks exists. */
  async #readLists(entries) {
    const query = { pageSize: 100, historyLength: 1 };
    const results = await Promise.allSettled(
      entries.flatMap((entry) => INTERRUPTED_STATES.map(async (status) => ({ entry, page: await entry.agent.list({ ...query, status }) }))),
    );
    const lists = { items: [], totals: {}, hiddenCount: 0, failure: results.find(({ status }) => status === "rejected")?.reason };
    for (const { value } of results.filter(({ status }) => status === "fulfilled")) {
      const { entry, page } = value;
      const tasks = page.tasks ?? [];
      const total = page.totalSize ?? tasks.length;
      lists.items.push(...tasks.map((task) => itemOf(entry, task)));
      lists.totals[entry.name] = (lists.totals[entry.name] ?? 0) + total;
      lists.hiddenCount += Math.max(0, total - tasks.length);
    }
    return lists;
  }

  #draw(items, total) {
    reconcile(this.list, items, ({ key }) => key, (item) => this.#card(item), (card, item) => showTime(card.statusTime, item.task.status.timestamp));
    this.empty.hidden = items.length > 0;
    this.moreButton.hidden = items.length >= total || items.length < this.#size;
    setText(this.countNote, items.length < total ? `The ${items.length} oldest of ${total} waiting tasks.` : "");
    this.countNote.hidden = items.length >= total;
  }

  #drawAgents(totals, agent) {
    const names = Object.keys(totals).filter((name) => totals[name] || name === agent);
    this.filter.hidden = names.length < 2 && !agent;
    reconcile(this.agent, ["", ...names], (name) => name, (name) => el("option", { value: name }), (option, name) => setText(option, name ? `${name} (${totals[name] ?? 0})` : "Every agent"));
  }

  #card(item) {
    const { entry, task } = item;
    const { message, state } = task.status;
    const send = async (parts) => {
      await this.#answer(item, parts);
      this.#focusNext(card);
      this.poll.refresh();
    };
    const form = new AnswerForm(send);
    form.show(message);
    const text = new Composer("Your answer", "Answer", send);
    text.element.hidden = !form.element.hidden;
    const question = { parts: (message?.parts ?? []).filter((part) => !isSchemaPart(part)) };
    const label = `${entry.name}: ${summary(question, 80)}`;
    const statusTime = timeElement("");
    const card = el(
      "article",
      { class: "card", "aria-label": label },
      el("div", { class: "head" }, el("h3", {}, el("a", { dir: "auto", href: this.views.app.address(entry.cardUrl, task.id) }, entry.name)), el("span", { class: "line-up" }, showState(badge(""), state), statusTime)),
      replyContext(task),
      message ? partsElement(question) : el("p", { class: "hint" }, "The agent sent no question."),
      form.element,
      text.element,
    );
    return Object.assign(card, { statusTime });
  }

  async #answer({ entry, task, key }, parts) {
    const message = { messageId: newId(), role: "ROLE_USER", taskId: task.id, contextId: task.contextId, parts };
    try {
      await entry.agent.send({ message, configuration: { returnImmediately: true } });
    } catch (cause) {
      const error = asError(cause);
      if (!error.violations?.length) this.views.app.notify(error);
      error.hint = explain(error);
      throw error;
    }
    this.#answeredKeys.add(key);
  }

  /** Move the focus from an answered question to the next question, unless the user has moved the focus. */
  #focusNext(card) {
    if (!card.contains(document.activeElement)) return;
    const next = card.nextElementSibling ?? card.previousElementSibling;
    const fields = [...(next?.querySelectorAll("input, select, textarea") ?? [])];
    (fields.find((field) => field.checkVisibility()) ?? this.views.title).focus();
  }
}

const itemOf = (entry, task) => ({ entry, task, key: `${task.id} ${task.status.timestamp}` });

/** Return a line with the client's last message, which distinguishes equal questions of an agent, or "". */
function replyContext({ history }) {
  const message = history?.at(-1);
  const text = message?.role === "ROLE_USER" ? summary(message, 120) : "";
  return text && el("p", { class: "hint line", dir: "auto" }, `In reply to: ${text}`);
}
