/** Interrupted tasks of the caller at all agents, each with its question and a form for the answer. */

import { AnswerForm, isSchemaPart, schemaOf } from "./answer_form.js";
import { Composer } from "./composer.js";
import { el, newId, reconcile, setText } from "./dom.js";
import { asError } from "./errors.js";
import { partsElement } from "./parts.js";
import { Poll } from "./poll.js";
import { summary } from "./task_reducer.js";
import { INTERRUPTED_STATES, badge, explain, showState, showTime, timeElement } from "./texts.js";

const INTERVAL = 4000;
/** Maximum number of tasks that are shown for each agent and state. */
const MAX_TASKS = 20;

export class InboxView {
  #answeredKeys = new Set();

  constructor(views) {
    this.views = views;
    this.empty = el("p", { class: "empty", hidden: true }, "Nothing waits for you.");
    this.list = el("div", { class: "stack inbox" });
    this.moreNote = el("p", { class: "hint", hidden: true });
    this.element = el("div", { class: "narrow" }, this.list, this.moreNote, this.empty);
    this.poll = new Poll(() => this.views.attempt(() => this.#load()), INTERVAL);
  }

  enter() {
    if (!this.list.hasChildNodes()) this.views.showNote("Loading …");
    this.poll.start();
  }

  leave() {
    this.poll.stop();
  }

  async #load() {
    await this.views.app.readCards();
    const entries = [...this.views.app.agents.values()].filter(({ agent }) => agent?.canList);
    const query = { pageSize: MAX_TASKS, historyLength: 1 };
    const results = await Promise.allSettled(
      entries.flatMap((entry) => INTERRUPTED_STATES.map(async (status) => ({ entry, page: await entry.agent.list({ ...query, status }) }))),
    );
    const pages = results.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
    const items = pages.flatMap(({ entry, page }) => (page.tasks ?? []).map((task) => ({ entry, task, key: `${task.id} ${task.status.timestamp}` })));
    items.sort((a, b) => Date.parse(a.task.status.timestamp) - Date.parse(b.task.status.timestamp));
    this.#draw(items.filter(({ key }) => !this.#answeredKeys.has(key)));
    const hiddenCount = pages.reduce((sum, { page }) => sum + Math.max(0, (page.totalSize ?? 0) - (page.tasks ?? []).length), 0);
    setText(this.moreNote, `${hiddenCount} more tasks wait. They appear when you have answered these.`);
    this.moreNote.hidden = hiddenCount === 0;
    const failure = results.find(({ status }) => status === "rejected");
    if (failure) throw failure.reason;
  }

  #draw(items) {
    reconcile(this.list, items, ({ key }) => key, (item) => this.#card(item), (card, item) => showTime(card.statusTime, item.task.status.timestamp));
    this.empty.hidden = items.length > 0;
    this.views.setCount("inbox", items.length, "wait for an answer");
  }

  #card(item) {
    const { entry, task } = item;
    const { message, state } = task.status;
    const schema = schemaOf(message);
    const send = (parts) => this.#answer(item, parts);
    const form = new AnswerForm(send);
    form.show(schema);
    const text = new Composer("Your answer", "Answer", send);
    text.element.hidden = schema !== null;
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
    this.views.title.focus();
    this.poll.refresh();
  }
}

/** Return a line with the client's last message, which distinguishes equal questions of an agent, or "". */
function replyContext({ history }) {
  const message = history?.at(-1);
  const text = message?.role === "ROLE_USER" ? summary(message, 120) : "";
  return text && el("p", { class: "hint line", dir: "auto" }, `In reply to: ${text}`);
}
