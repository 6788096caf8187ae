/** Log of a task's events with their versions. Only some events have elements, so that a long log stays responsive. */

import { el } from "./dom.js";
import { kindOf, summary } from "./fold.js";
import { clock, wordFor } from "./words.js";

/** Number of newest events that are shown, and of earlier events that each click of the button adds. */
const ROWS = 200;
/** Maximum number of events in memory. The oldest events are dropped. */
const KEPT = 20_000;

const KINDS = { task: "Task", message: "Message", statusUpdate: "Status", artifactUpdate: "Artifact" };

export class Log {
  #events = [];
  #drawnFrom = 0; // index of the first event that has a row
  #drawnTo = 0;
  #dropped = 0;
  /** True while earlier events are being read. */
  reading = false;

  constructor() {
    this.earlier = el("button", { type: "button", class: "quiet small", hidden: true });
    this.earlier.addEventListener("click", () => this.#showEarlier());
    this.note = el("p", { class: "hint", hidden: true });
    this.rows = el("ol", { class: "events" });
    this.box = el(
      "div",
      { class: "log", role: "log", "aria-live": "off", "aria-label": "Events", tabindex: "0" },
      this.earlier,
      this.rows,
    );
    this.count = el("span", { class: "hint" });
    this.element = el(
      "section",
      { class: "block" },
      el("div", { class: "head" }, el("h3", {}, "Events"), this.count),
      this.note,
      this.box,
    );
  }

  get length() {
    return this.#events.length;
  }

  add(event) {
    this.#events.push(event);
    if (this.#events.length > KEPT * 1.1) {
      const gone = this.#events.length - KEPT;
      this.#events.splice(0, gone);
      this.#dropped += gone;
      this.#drawnFrom = Math.max(0, this.#drawnFrom - gone);
      this.#drawnTo = Math.max(0, this.#drawnTo - gone);
      this.#redraw();
    }
  }

  /** Adds events that precede all others. */
  addEarlier(events) {
    const kept = events.slice(-KEPT);
    this.#dropped += events.length - kept.length;
    this.#events.unshift(...kept);
    this.#drawnFrom = this.#drawnTo = 0;
    this.#redraw();
  }

  say(text) {
    this.note.hidden = !text;
    this.note.textContent = text;
  }

  /** Draws the events that were added since the last call. */
  draw() {
    const many = this.#events.length;
    const all = many + this.#dropped;
    this.count.textContent = this.reading ? "loading earlier events …" : all === 0 ? "none yet" : all.toLocaleString();
    if (this.#drawnTo < many) {
      const atEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
      if (many - this.#drawnTo > ROWS) {
        this.rows.replaceChildren();
        this.#drawnFrom = this.#drawnTo = many - ROWS;
      }
      const fresh = document.createDocumentFragment();
      for (; this.#drawnTo < many; this.#drawnTo++) fresh.append(row(this.#events[this.#drawnTo]));
      this.rows.append(fresh);
      if (atEnd) {
        while (this.rows.childElementCount > ROWS * 2) {
          this.rows.firstElementChild.remove();
          this.#drawnFrom++;
        }
        this.box.scrollTop = this.box.scrollHeight;
      }
    }
    this.earlier.hidden = this.#drawnFrom === 0;
    this.earlier.textContent = `Show earlier events (${this.#drawnFrom.toLocaleString()} more)`;
  }

  #redraw() {
    this.rows.replaceChildren();
    this.#drawnFrom = this.#drawnTo = Math.max(0, this.#events.length - ROWS);
    this.draw();
    this.box.scrollTop = this.box.scrollHeight;
  }

  #showEarlier() {
    const from = Math.max(0, this.#drawnFrom - ROWS);
    const height = this.box.scrollHeight;
    const fresh = document.createDocumentFragment();
    for (let at = from; at < this.#drawnFrom; at++) fresh.append(row(this.#events[at]));
    this.rows.prepend(fresh);
    this.#drawnFrom = from;
    this.draw();
    this.box.scrollTop += this.box.scrollHeight - height;
    if (this.earlier.hidden) this.box.focus();
  }
}

function row({ id, event, at }) {
  const kind = kindOf(event);
  const status = event?.statusUpdate?.status ?? event?.task?.status;
  const when = clock(status?.timestamp ?? at);
  const line = el(
    "summary",
    {},
    el("span", { class: "id", title: id === null ? "The events of this server have no versions" : "Version" }, id === null ? "·" : `#${id}`),
    el("span", { class: "when" }, when),
    el("span", { class: `kind ${kind}` }, KINDS[kind] ?? "Other"),
    el("span", { class: "what", dir: "auto" }, what(kind, event)),
  );
  const detail = el("details", {}, line);
  detail.addEventListener("toggle", () => {
    if (detail.open && detail.childElementCount === 1) {
      detail.append(el("pre", { class: "data", tabindex: "0" }, JSON.stringify(event, null, 2)));
    }
  });
  return el("li", {}, detail);
}

function what(kind, event) {
  switch (kind) {
    case "task":
      return stated(event.task.status);
    case "statusUpdate": {
      const { status, metadata } = event.statusUpdate;
      const told = summary(status?.message) || (metadata ? JSON.stringify(metadata).slice(0, 200) : "");
      return stated(status, told);
    }
    case "artifactUpdate": {
      const { artifact, append, lastChunk } = event.artifactUpdate;
      const how = [append ? "+" : "", summary(artifact), lastChunk ? "(last)" : ""];
      return how.filter(Boolean).join(" ");
    }
    case "message":
      return summary(event.message);
    default:
      return JSON.stringify(event).slice(0, 200);
  }
}

const stated = (status, told = summary(status?.message)) => [wordFor(status?.state), told].filter(Boolean).join(": ");
