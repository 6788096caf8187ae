/** Open tasks of all owners by phase, for operators. */

import { el, mark, say } from "./dom.js";
import { Poll } from "./poll.js";
import { Table, anchor, point } from "./table.js";
import { badge, showState, showTime, time } from "./words.js";

const INTERVAL = 4000;
const PHASES = [
  ["running", "Running", "A worker runs them."],
  ["queued", "Waiting", "No worker has begun them."],
  ["paused", "Need a person", "They wait for their client’s answer."],
  ["suspended", "Suspended", "They wait for a time or a signal."],
  ["blocked", "Blocked", "Another run of their context comes first."],
  ["delegated", "Delegated", "The canvas that their Celery task began has not ended."],
];

export class OpenTasksView {
  #phase = "";
  #pages = [];
  #next = null;

  constructor(views) {
    this.views = views;
    this.tabs = PHASES.map(([name, title]) => el("a", { href: `#view=open&phase=${name}` }, title));
    this.search = el("input", { type: "search", id: "open-search", spellcheck: "false", autocomplete: "off", placeholder: "Id, agent, owner, worker" });
    this.search.addEventListener("input", () => this.#draw());
    this.note = el("p", { class: "hint", role: "status" });
    this.table = new Table(
      "Open tasks",
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
    const form = el("form", { class: "row", role: "search" }, el("label", { for: "open-search", class: "sr" }, "Find a task"), this.search, el("button", { type: "submit" }, "Open by id"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.search.value.trim()) location.hash = views.addressOf(this.search.value.trim());
    });
    this.element = el("div", { class: "stack" }, el("nav", { class: "tabs", "aria-label": "Phases" }, ...this.tabs), form, this.note, this.table.element, this.more);
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

  #choose() {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (asked.get("view") !== "open") return;
    const phase = PHASES.find(([name]) => name === asked.get("phase"))?.[0] ?? "running";
    PHASES.forEach(([name], i) => mark(this.tabs[i], name === phase));
    if (phase !== this.#phase) {
      this.#pages = [];
      this.#next = null;
    }
    this.#phase = phase;
    this.#draw();
    this.poll.now();
  }

  async #load() {
    const phase = this.#phase;
    const page = await this.views.api.tasks(phase);
    if (phase !== this.#phase) return;
    if (this.#pages.length < 2) this.#next = page.next;
    this.#pages[0] = page.tasks;
    this.#draw();
  }

  #loadMore() {
    return this.views.attempt(async () => {
      const phase = this.#phase;
      const page = await this.views.api.tasks(phase, this.#next);
      if (phase !== this.#phase) return;
      this.#pages.push(page.tasks);
      this.#next = page.next;
      this.#draw();
    });
  }

  #draw() {
    const all = [...new Map(this.#pages.flat().map((task) => [task.id, task])).values()];
    const word = this.search.value.trim().toLowerCase();
    const shown = all.filter((task) => [task.id, task.agent, task.owner, task.tenant, task.contextId, task.worker].some((text) => text.toLowerCase().includes(word)));
    shown.sort((one, other) => (one.since < other.since ? 1 : -1));
    this.table.draw(shown);
    this.more.hidden = this.#next === null;
    const about = PHASES.find(([name]) => name === this.#phase)[2];
    const number = word ? `${shown.length} of ${all.length}` : `${all.length}`;
    say(this.note, this.#pages.length ? `${about} ${number} shown${this.#next === null ? "" : ", more exist"}.` : "Reads the tasks …");
  }
}

/** The owner of a task with its tenant. */
export const ownerOf = ({ owner, tenant }) => [owner || "–", tenant && `(${tenant})`].filter(Boolean).join(" ");
