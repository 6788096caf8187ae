/** Log of a task's events with their versions. Only some events have elements, so that a long log stays responsive. */

import { el } from "./dom.js";
import { kindOf, summary } from "./task_reducer.js";
import { formatClock, stateName } from "./texts.js";

/** Number of newest events that are shown, and of earlier events that each click of the button adds. */
const PAGE_SIZE = 200;
/** Maximum number of events in memory. The oldest events are dropped. */
const MAX_EVENTS = 20_000;

const KINDS = { task: "Task", message: "Message", statusUpdate: "Status", artifactUpdate: "Artifact" };

export class Log {
  #events = [];
  #rowStart = 0; // index of the first event that has a row
  #rowEnd = 0;
  #droppedCount = 0;
  /** True while earlier events are being read. */
  isLoading = false;

  constructor() {
    this.earlierButton = el("button", { type: "button", class: "quiet small", hidden: true });
    this.earlierButton.addEventListener("click", () => this.#showEarlier());
    this.note = el("p", { class: "hint", hidden: true });
    this.rows = el("ol", { class: "events" });
    this.box = el(
      "div",
      { class: "log", role: "log", "aria-live": "off", "aria-label": "Events", tabindex: "0" },
      this.earlierButton,
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
    if (this.#events.length > MAX_EVENTS * 1.1) {
      const excess = this.#events.length - MAX_EVENTS;
      this.#events.splice(0, excess);
      this.#droppedCount += excess;
      this.#rowStart = Math.max(0, this.#rowStart - excess);
      this.#rowEnd = Math.max(0, this.#rowEnd - excess);
      this.#redraw();
    }
  }

  /** Add events that precede all others. */
  addEarlier(events) {
    const newestEvents = events.slice(-MAX_EVENTS);
    this.#droppedCount += events.length - newestEvents.length;
    this.#events.unshift(...newestEvents);
    this.#rowStart = this.#rowEnd = 0;
    this.#redraw();
  }

  showNote(text) {
    this.note.hidden = !text;
    this.note.textContent = text;
  }

  /** Draw the events that were added since the last call. */
  draw() {
    const count = this.#events.length;
    const total = count + this.#droppedCount;
    this.count.textContent = this.isLoading ? "loading earlier events …" : total === 0 ? "none yet" : total.toLocaleString();
    if (this.#rowEnd < count) {
      const isAtEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
      if (count - this.#rowEnd > PAGE_SIZE) {
        this.rows.replaceChildren();
        this.#rowStart = this.#rowEnd = count - PAGE_SIZE;
      }
      const fragment = document.createDocumentFragment();
      for (; this.#rowEnd < count; this.#rowEnd++) fragment.append(row(this.#events[this.#rowEnd]));
      this.rows.append(fragment);
      if (isAtEnd) {
        while (this.rows.childElementCount > PAGE_SIZE * 2) {
          this.rows.firstElementChild.remove();
          this.#rowStart++;
        }
        this.box.scrollTop = this.box.scrollHeight;
      }
    }
    this.earlierButton.hidden = this.#rowStart === 0;
    this.earlierButton.textContent = `Show earlier events (${this.#rowStart.toLocaleString()} more)`;
  }

  #redraw() {
    this.rows.replaceChildren();
    this.#rowStart = this.#rowEnd = Math.max(0, this.#events.length - PAGE_SIZE);
    this.draw();
    this.box.scrollTop = this.box.scrollHeight;
  }

  #showEarlier() {
    const start = Math.max(0, this.#rowStart - PAGE_SIZE);
    const height = this.box.scrollHeight;
    const fragment = document.createDocumentFragment();
    for (let index = start; index < this.#rowStart; index++) fragment.append(row(this.#events[index]));
    this.rows.prepend(fragment);
    this.#rowStart = start;
    this.draw();
    this.box.scrollTop += this.box.scrollHeight - height;
    if (this.earlierButton.hidden) this.box.focus();
  }
}

function row({ id, event, time }) {
  const kind = kindOf(event);
  const status = event?.statusUpdate?.status ?? event?.task?.status;
  const eventTime = formatClock(status?.timestamp ?? time);
  const summaryElement = el(
    "summary",
    {},
    el("span", { class: "id", title: id === null ? "The events of this server have no versions" : "Version" }, id === null ? "·" : `#${id}`),
    el("span", { class: "event-time" }, eventTime),
    el("span", { class: `kind ${kind}` }, KINDS[kind] ?? "Other"),
    el("span", { class: "description", dir: "auto" }, eventText(kind, event)),
  );
  const element = el("details", {}, summaryElement);
  element.addEventListener("toggle", () => {
    if (element.open && element.childElementCount === 1) {
      element.append(el("pre", { class: "data", tabindex: "0" }, JSON.stringify(event, null, 2)));
    }
  });
  return el("li", {}, element);
}

function eventText(kind, event) {
  switch (kind) {
    case "task":
      return statusText(event.task.status);
    case "statusUpdate": {
      const { status, metadata } = event.statusUpdate;
      const text = summary(status?.message) || (metadata ? JSON.stringify(metadata).slice(0, 200) : "");
      return statusText(status, text);
    }
    case "artifactUpdate": {
      const { artifact, append, lastChunk } = event.artifactUpdate;
      const words = [append ? "+" : "", summary(artifact), lastChunk ? "(last)" : ""];
      return words.filter(Boolean).join(" ");
    }
    case "message":
      return summary(event.message);
    default:
      return JSON.stringify(event).slice(0, 200);
  }
}

const statusText = (status, text = summary(status?.message)) => [stateName(status?.state), text].filter(Boolean).join(": ");
