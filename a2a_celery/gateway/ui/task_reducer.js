/**
 * Functions that apply events to a task. Applying a chunk takes time proportional to the chunk, however long its
 * artifact is.
 *
 * A StreamResponse has one of the fields task, message, statusUpdate and artifactUpdate (A2A specification 3.2.3).
 */

import { isSchemaPart } from "./answer_form.js";
import { isInterrupted } from "./texts.js";

/** Return the kind of a StreamResponse: "task", "message", "statusUpdate" or "artifactUpdate", or "" if unknown. */
export const kindOf = (event) =>
  ["task", "message", "statusUpdate", "artifactUpdate"].find((kind) => event?.[kind] !== undefined) ?? "";

/** Return `task` after `event`. The task is changed in place, unless the event is a complete task. An event of the
 * kind "message" does not change the task. */
export function applyEvent(task, event) {
  switch (kindOf(event)) {
    case "task":
      return { ...event.task, artifacts: event.task.artifacts ?? [], history: event.task.history ?? [] };
    case "statusUpdate":
      if (task) setStatus(task, event.statusUpdate.status ?? {});
      return task;
    case "artifactUpdate":
      if (task) setArtifact(task, event.artifactUpdate);
      return task;
    default:
      return task;
  }
}

/** Add a message to the history of `task`, unless the history contains it. */
export function addMessage(task, message) {
  if (!task.history.some((entry) => entry === message || (entry.messageId && entry.messageId === message.messageId))) {
    task.history.push(message);
  }
}

/** Insert the client's `message` into the history of `task`, after the messages that precede it in `serverHistory`. If
 * `serverHistory` lacks the message, it follows the question of an interrupted task. */
export function insertMessage(task, message, serverHistory = []) {
  const position = serverHistory.findIndex(({ messageId }) => messageId === message.messageId);
  if (position < 0) {
    if (isInterrupted(task.status?.state) && task.status.message) addMessage(task, task.status.message);
    addMessage(task, message);
    return;
  }
  const earlier = serverHistory.slice(0, position + 1);
  const ids = new Set(earlier.map(({ messageId }) => messageId));
  task.history = [...earlier, ...task.history.filter(({ messageId }) => !ids.has(messageId))];
}

function setStatus(task, status) {
  if (task.status?.message) addMessage(task, task.status.message);
  task.status = status;
}

function setArtifact(task, { artifact, append, lastChunk }) {
  if (!artifact) return;
  const index = task.artifacts.findIndex((entry) => entry.artifactId === artifact.artifactId);
  const parts = artifact.parts ?? [];
  if (index < 0) task.artifacts.push({ ...artifact, parts: [...parts], isOpen: !lastChunk });
  else if (append) {
    const entry = task.artifacts[index];
    for (const part of parts) entry.parts.push(part); // spread would put a large array on the stack
    entry.isOpen = !lastChunk;
  } else task.artifacts[index] = { ...artifact, parts: [...parts], isOpen: !lastChunk };
}

/** Return the content of a message or an artifact on one line, truncated after `maxLength` characters. Data is shown as
 * JSON, and a file by its name, its URL or its media type. */
export function summary(content, maxLength = 200) {
  let text = "";
  for (const part of content?.parts ?? []) {
    if (text.length > maxLength) break;
    if (typeof part.text === "string") text += part.text;
    else if (isSchemaPart(part)) continue;
    else if ("data" in part) text += ` ${JSON.stringify(part.data)}`;
    else text += ` ${part.filename || part.url || part.mediaType || "file"}`;
  }
  text = text.slice(0, maxLength * 2).replace(/\s+/gu, " ").trim();
  return text.length > maxLength ? `${text.slice(0, maxLength)}…` : text;
}

/** Return `text` with at most `maxLength` characters. The middle is left out, so that texts with a common beginning
 * differ. */
export function shorten(text, maxLength) {
  if (text.length <= maxLength) return text;
  const headLength = Math.ceil(maxLength * 0.6);
  return `${text.slice(0, headLength).trimEnd()} … ${text.slice(text.length - (maxLength - headLength)).trimStart()}`;
}
