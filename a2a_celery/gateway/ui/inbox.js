/** Interrupted tasks of the caller at all agents, each with its question and a form for the answer. */

import { AnswerForm, isSchemaPart, schemaOf } from "./answer_form.js";
import { Composer } from "./composer.js";
import { el, keyed, newId, say } from "./dom.js";
import { asError } from "./errors.js";
import { summary } from "./fold.js";
import { partsOf } from "./parts.js";
import { Poll } from "./poll.js";
import { PAUSED, badge, explain, showState, showTime, time } from "./words.js";

const INTERVAL = 4000;
/** Maximum number of tasks that are shown for each agent and state. */
const MOST = 20;

export class InboxView {
  #answered = new Set();

  constructor(views) {
    this.views = views;
    this.empty = el("p", { class: "empty", hidden: true }, "Nothing waits for you.");
    this.list = el("div", { class: "stack inbox" });
    this.more = el("p", { class: "hint", hidden: true });
    this.element = el("div", { class: "narrow" }, this.list, this.more, this.empty);
    this.poll = new Poll(() => this.views.attempt(() => this.#load()), INTERVAL);
  }

  enter() {
    if (!this.list.hasChildNodes()) this.views.say("Loading …");
    this.poll.start();
  }

  leave() {
    this.poll.stop();
  }

  async #load() {
    await this.views.app.cards;
    const entries = [...this.views.app.agents.values()].filter(({ agent }) => agent?.lists);
    const query = { pageSize: MOST, historyLength: 1 };
    const found = await Promise.allSettled(
      entries.flatMap((entry) => PAUSED.map(async (status) => ({ entry, page: await entry.agent.list({ ...query, status }) }))),
    );
    const pages = found.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
    const items = pages.flatMap(({ entry, page }) => (page.tasks ?? []).map((task) => ({ entry, task, key: `${task.id} ${task.status.timestamp}` })));
    items.sort((one, other) => Date.parse(one.task.status.timestamp) - Date.parse(other.task.status.timestamp));
    this.#draw(items.filter(({ key }) => !this.#answered.has(key)));
    const left = pages.reduce((sum, { page }) => sum + Math.max(0, (page.totalSize ?? 0) - (page.tasks ?? []).length), 0);
    say(this.more, `${left} more tasks wait. They appear when you have answered these.`);
    this.more.hidden = left === 0;
    const failed = found.find(({ status }) => status === "rejected");
    if (failed) throw failed.reason;
  }

  #draw(items) {
    keyed(this.list, items, ({ key }) => key, (item) => this.#card(item), (card, item) => showTime(card.when, item.task.status.timestamp));
    this.empty.hidden = items.length > 0;
    this.views.count("inbox", items.length, "wait for an answer");
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
    const when = time("");
    const card = el(
      "article",
      { class: "card", "aria-label": label },
      el("div", { class: "head" }, el("h3", {}, el("a", { dir: "auto", href: this.views.app.address(entry.cardUrl, task.id) }, entry.name)), el("span", { class: "line-up" }, showState(badge(""), state), when)),
      asker(task),
      message ? partsOf(question) : el("p", { class: "hint" }, "The agent sent no question."),
      form.element,
      text.element,
    );
    return Object.assign(card, { when });
  }

  async #answer({ entry, task, key }, parts) {
    const message = { messageId: newId(), role: "ROLE_USER", taskId: task.id, contextId: task.contextId, parts };
    try {
      await entry.agent.send({ message, configuration: { returnImmediately: true } });
    } catch (raised) {
      const error = asError(raised);
      if (!error.violations?.length) this.views.app.notify(error);
      error.said = explain(error);
      throw error;
    }
    this.#answered.add(key);
    this.views.title.focus();
    this.poll.now();
  }
}

/** Returns a line with the client's last message, which distinguishes equal questions of an agent, or "". */
function asker({ history }) {
  const last = history?.at(-1);
  const text = last?.role === "ROLE_USER" ? summary(last, 120) : "";
  return text && el("p", { class: "hint line", dir: "auto" }, `In reply to: ${text}`);
}
