/** List of agents with the number of live tasks of each. */

import { el, keyed, mark, say } from "./dom.js";
import { LIVE, PAUSED, explain, wordFor } from "./words.js";

/** Milliseconds between two counts of live tasks. Each count requests the tasks of one agent that is not selected. */
const ROUND = 2500;

export class AgentsPane {
  #next = 0;

  constructor(element, app) {
    this.app = app;
    this.list = el("ul", { class: "list" });
    this.empty = el("p", { class: "empty", hidden: true }, "No agents. Sign in, or add an agent.");
    element.append(el("h2", { class: "sr" }, "Agents"), this.list, this.empty, this.#adder());
    setInterval(() => document.hidden || this.#count(), ROUND);
  }

  show(selected) {
    const entries = [...this.app.agents.values()];
    this.selected = selected;
    this.empty.hidden = entries.length > 0;
    const waiting = entries.flatMap(({ counts }) => PAUSED.map((state) => counts?.[state] ?? 0));
    this.app.views.count("inbox", waiting.reduce((sum, many) => sum + many, 0), "wait for an answer");
    keyed(
      this.list,
      entries,
      (entry) => entry.cardUrl,
      () => el("li", {}, el("a", {}, el("strong", { dir: "auto" }), el("span", { class: "counts" }), el("span", { class: "hint line", dir: "auto" }))),
      (item, entry) => this.#draw(item.firstChild, entry),
    );
  }

  #draw(anchor, entry) {
    const [name, counts, about] = anchor.children;
    anchor.setAttribute("href", this.app.address(entry.cardUrl));
    mark(anchor, entry === this.selected);
    say(name, entry.name || new URL(entry.cardUrl).pathname);
    say(about, entry.error ? explain(entry.error) : (entry.agent?.card.description ?? "loading …"));
    const found = Object.entries(entry.counts ?? {}).filter(([, many]) => many > 0);
    const key = JSON.stringify(found);
    if (counts.dataset.key === key) return;
    counts.dataset.key = key;
    counts.replaceChildren(
      ...found.map(([state, many]) =>
        el("span", { class: "count", "data-state": state, title: `${wordFor(state)}: ${many}` }, `${many}`, el("span", { class: "sr" }, ` ${wordFor(state)}`)),
      ),
    );
  }

  async #count() {
    const others = [...this.app.agents.values()].filter(({ agent }) => agent?.lists);
    if (!others.length) return;
    const entry = others[this.#next++ % others.length];
    if (entry === this.selected) return; // TasksPane counts the tasks of the selected agent
    try {
      const pages = await Promise.all(LIVE.map((status) => entry.agent.list({ status, pageSize: 1, historyLength: 0 })));
      entry.counts = Object.fromEntries(pages.map((page, i) => [LIVE[i], page.totalSize ?? page.tasks?.length ?? 0]));
    } catch {
      entry.counts = null; // the error is shown when the user selects the agent
    }
    this.show(this.selected);
  }

  #adder() {
    const input = el("input", { id: "card-url", type: "text", inputmode: "url", placeholder: "/.well-known/agent-card.json", spellcheck: "false" });
    const form = el(
      "form",
      { class: "fields" },
      el("label", { for: "card-url" }, "Address of its agent card"),
      el("div", { class: "row" }, input, el("button", { type: "submit" }, "Add")),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!input.value.trim()) return;
      try {
        location.hash = this.app.address(this.app.know(input.value.trim()).cardUrl);
        input.value = "";
      } catch (error) {
        this.app.notify(error.message);
      }
    });
    return el("details", { class: "more" }, el("summary", {}, "Add an agent"), form);
  }
}
