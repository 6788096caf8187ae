/** List of agents with the number of live tasks of each. */

import { el, reconcile, setCurrent, setText } from "./dom.js";
import { INTERRUPTED_STATES, LIVE_STATES, explain, stateName } from "./texts.js";

/** Milliseconds between two counts of live tasks. Each count requests the tasks of one agent that is not selected. */
const COUNT_INTERVAL = 2500;

export class AgentsPane {
  #nextIndex = 0;

  constructor(element, app) {
    this.app = app;
    this.list = el("ul", { class: "list" });
    this.empty = el("p", { class: "empty", hidden: true }, "No agents. Sign in, or add an agent.");
    element.append(el("h2", { class: "sr-only" }, "Agents"), this.list, this.empty, this.#addForm());
    setInterval(() => document.hidden || this.#count(), COUNT_INTERVAL);
  }

  show(selection) {
    const entries = [...this.app.agents.values()];
    const isNewSelection = selection !== this.selection;
    this.selection = selection;
    this.empty.hidden = entries.length > 0;
    const interruptedCounts = entries.filter(({ isInInbox }) => !isInInbox).flatMap(({ counts }) => INTERRUPTED_STATES.map((state) => counts?.[state] ?? 0));
    this.app.views.countWaiting({ lists: interruptedCounts.reduce((sum, count) => sum + count, 0) });
    reconcile(
      this.list,
      entries,
      (entry) => entry.cardUrl,
      () => el("li", {}, el("a", {}, el("strong", { dir: "auto" }), el("span", { class: "counts" }), el("span", { class: "hint line", dir: "auto" }))),
      (item, entry) => this.#draw(item.firstChild, entry),
    );
    if (isNewSelection) this.list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  #draw(anchor, entry) {
    const [name, counts, description] = anchor.children;
    anchor.setAttribute("href", this.app.address(entry.cardUrl));
    setCurrent(anchor, entry === this.selection);
    setText(name, entry.name || new URL(entry.cardUrl).pathname);
    setText(description, entry.error ? explain(entry.error) : (entry.agent?.card.description ?? "loading …"));
    const stateCounts = Object.entries(entry.counts ?? {}).filter(([, count]) => count > 0);
    const key = JSON.stringify(stateCounts);
    if (counts.dataset.key === key) return;
    counts.dataset.key = key;
    counts.replaceChildren(
      ...stateCounts.map(([state, count]) =>
        el("span", { class: "count", "data-state": state, title: `${stateName(state)}: ${count}` }, `${count}`, el("span", { class: "sr-only" }, ` ${stateName(state)}`)),
      ),
    );
  }

  async #count() {
    const candidates = [...this.app.agents.values()].filter(({ agent }) => agent?.canList);
    if (!candidates.length) return;
    const entry = candidates[this.#nextIndex++ % candidates.length];
    if (entry === this.selection) return; // TasksPane counts the tasks of the selected agent
    try {
      const pages = await Promise.all(LIVE_STATES.map((status) => entry.agent.list({ status, pageSize: 1, historyLength: 0 })));
      entry.counts = Object.fromEntries(pages.map((page, i) => [LIVE_STATES[i], page.totalSize ?? page.tasks?.length ?? 0]));
    } catch {
      entry.counts = null; // the error is shown when the user selects the agent
    }
    this.show(this.selection);
  }

  #addForm() {
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
        location.hash = this.app.address(this.app.addAgent(input.value.trim()).cardUrl);
        input.value = "";
      } catch (error) {
        this.app.notify(error.message);
      }
    });
    return el("details", { class: "more" }, el("summary", {}, "Add an agent"), form);
  }
}
