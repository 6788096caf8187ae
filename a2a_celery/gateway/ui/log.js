/** Log of a task's events with their versions. Consecutive events of artifacts are one row, and only some rows have
 * elements, so that a long log stays responsive. */

import { el, setText } from "./dom.js";
import { kindOf, summary } from "./task_reducer.js";
import { formatClock, formatDuration, jsonText, stateName } from "./texts.js";

/** Number of newest rows that are shown, and of earlier rows, or of events of a row, that each click of a button adds. */
const PAGE_SIZE = 200;
/** Maximum number of events in memory. The oldest events are dropped. */
const MAX_EVENTS = 20_000;

const KINDS = { task: "Task", message: "Message", statusUpdate: "Status", artifactUpdate: "Artifact" };

export class Log {
  /** Events of each row, oldest first. */
  #groups = [];
  #eventCount = 0;
  #droppedCount = 0;
  #rowStart = 0; // index of the first group that has a row
  #rowEnd = 0;
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
    return this.#eventCount;
  }

  add(event) {
    addToGroups(this.#groups, event);
    this.#eventCount++;
    if (this.#eventCount <= MAX_EVENTS * 1.1) return;
    const excess = this.#eventCount - MAX_EVENTS;
    this.#eventCount = MAX_EVENTS;
    this.#droppedCount += excess;
    this.#groups = groupsOf(this.#groups.flat().slice(excess));
    this.#redraw();
  }

  /** Add events that precede all others. */
  addEarlier(events) {
    const newestEvents = events.slice(-MAX_EVENTS);
    this.#droppedCount += events.length - newestEvents.length;
    this.#eventCount += newestEvents.length;
    this.#groups = groupsOf([...newestEvents, ...this.#groups.flat()]);
    this.#redraw();
  }

  showNote(text) {
    this.note.hidden = !text;
    this.note.textContent = text;
  }

  /** Draw the events that were added since the last call. */
  draw() {
    const total = this.#eventCount + this.#droppedCount;
    const end = this.#groups.length;
    setText(this.count, this.isLoading ? "loading earlier events …" : total === 0 ? "none yet" : total.toLocaleString());
    const lastRow = this.rows.lastElementChild;
    const lastEvents = this.#groups[this.#rowEnd - 1];
    const hasGrown = lastRow !== null && lastRow.size !== lastEvents.length;
    if (hasGrown || this.#rowEnd < end) {
      const isAtEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
      if (hasGrown && lastRow.grow) lastRow.grow(lastEvents);
      else if (hasGrown) lastRow.replaceWith(groupRow(lastEvents));
      if (end - this.#rowEnd > PAGE_SIZE) {
        this.rows.replaceChildren();
        this.#rowStart = this.#rowEnd = end - PAGE_SIZE;
      }
      this.rows.append(...this.#groups.slice(this.#rowEnd).map(groupRow));
      this.#rowEnd = end;
      while (isAtEnd && this.rows.childElementCount > PAGE_SIZE * 2) {
        this.rows.firstElementChild.remove();
        this.#rowStart++;
      }
      if (isAtEnd) this.box.scrollTop = this.box.scrollHeight;
    }
    this.earlierButton.hidden = this.#rowStart === 0;
    setText(this.earlierButton, `Show earlier events (${this.#rowStart.toLocaleString()} more)`);
  }

  #redraw() {
    this.rows.replaceChildren();
    this.#rowStart = this.#rowEnd = Math.max(0, this.#groups.length - PAGE_SIZE);
    this.draw();
    this.box.scrollTop = this.box.scrollHeight;
  }

  #showEarlier() {
    const start = Math.max(0, this.#rowStart - PAGE_SIZE);
    const height = this.box.scrollHeight;
    this.rows.prepend(...this.#groups.slice(start, this.#rowStart).map(groupRow));
    this.#rowStart = start;
    this.draw();
    this.box.scrollTop += this.box.scrollHeight - height;
    if (this.earlierButton.hidden) this.box.focus();
  }
}

/** Add an event to the last group if both are events of artifacts, or as a new group. */
function addToGroups(groups, entry) {
  const isArtifact = ({ event }) => kindOf(event) === "artifactUpdate";
  if (groups.length && isArtifact(entry) && isArtifact(groups.at(-1)[0])) groups.at(-1).push(entry);
  else groups.push([entry]);
}

function groupsOf(events) {
  const groups = [];
  for (const entry of events) addToGroups(groups, entry);
  return groups;
}

/** Return the row of a group. `row.size` is the number of the group's events that the row shows, and `row.grow(events)`,
 * if it exists, updates the row. */
function groupRow(events) {
  const element = events.length === 1 ? row(events[0]) : artifactsRow(events);
  element.size = events.length;
  return element;
}

/** Return the row for several events of artifacts, which can be expanded to a row for each event. */
function artifactsRow(events) {
  const [first] = events;
  const [id, description] = [el("span", { class: "id", title: "Versions" }), el("span", { class: "description", dir: "auto" })];
  const rows = el("ol", { class: "events" });
  const moreButton = el("button", { type: "button", class: "quiet small" });
  const element = el("details", {}, el("summary", {}, id, clockOf(first), el("span", { class: "kind artifactUpdate" }, KINDS.artifactUpdate), description), rows, moreButton);
  const item = el("li", { class: "folded" }, element);
  let limit = PAGE_SIZE;
  item.grow = (events) => {
    item.size = events.length;
    setText(id, first.id === null ? "·" : `#${first.id} – #${events.at(-1).id}`);
    setText(description, artifactsText(events));
    if (element.open) rows.append(...events.slice(rows.childElementCount, limit).map(row));
    moreButton.hidden = rows.childElementCount === events.length;
    setText(moreButton, `Show more events (${(events.length - rows.childElementCount).toLocaleString()} more)`);
  };
  element.addEventListener("toggle", () => item.grow(events));
  moreButton.addEventListener("click", () => {
    limit += PAGE_SIZE;
    item.grow(events);
    if (moreButton.hidden) element.firstChild.focus();
  });
  item.grow(events);
  return item;
}

/** Return the artifacts, the number of events and the duration of a group, such as "response, 53 chunks, 2.1 s". */
function artifactsText(events) {
  const ids = new Set(events.map(({ event }) => event.artifactUpdate.artifact?.artifactId));
  const { name, artifactId } = events[0].event.artifactUpdate.artifact ?? {};
  const duration = formatDuration((events.at(-1).time - events[0].time) / 1000);
  return [ids.size === 1 ? name || artifactId : `${ids.size} artifacts`, `${events.length.toLocaleString()} chunks`, duration].filter(Boolean).join(", ");
}

const clockOf = ({ event, time }) => el("span", { class: "event-time" }, formatClock((event?.statusUpdate ?? event?.task)?.status?.timestamp ?? time));

function row(entry) {
  const { id, event } = entry;
  const kind = kindOf(event);
  const summaryElement = el(
    "summary",
    {},
    el("span", { class: "id", title: id === null ? "The events of this server have no versions" : "Version" }, id === null ? "·" : `#${id}`),
    clockOf(entry),
    el("span", { class: `kind ${kind}` }, KINDS[kind] ?? "Other"),
    el("span", { class: "description", dir: "auto" }, eventText(kind, event)),
  );
  const element = el("details", {}, summaryElement);
  element.addEventListener("toggle", () => {
    if (element.open && element.childElementCount === 1) {
      element.append(el("pre", { class: "data", tabindex: "0" }, jsonText(event, 2)));
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
      const text = summary(status?.message) || (metadata ? jsonText(metadata).slice(0, 200) : "");
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
