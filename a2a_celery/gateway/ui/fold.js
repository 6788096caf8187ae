/**
 * Functions that apply events to a task. Applying a chunk takes time proportional to the chunk, however long its
 * artifact is.
 *
 * A StreamResponse has one of the fields task, message, statusUpdate and artifactUpdate (A2A specification 3.2.3).
 */

import { isSchemaPart } from "./answer_form.js";

/** Returns the kind of a StreamResponse: "task", "message", "statusUpdate" or "artifactUpdate", or "" if unknown. */
export const kindOf = (event) =>
  ["task", "message", "statusUpdate", "artifactUpdate"].find((kind) => event?.[kind] !== undefined) ?? "";

/** Returns `task` after `event`. The task is changed in place, unless the event is a complete task. An event of the
 * kind "message" does not change the task. */
export function apply(task, event) {
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

/** Adds a message to the history of `task`, unless the history contains it. */
export function addMessage(task, message) {
  if (!task.history.some((known) => known.messageId && known.messageId === message.messageId)) {
    task.history.push(message);
  }
}

function setStatus(task, status) {
  if (task.status?.message) addMessage(task, task.status.message);
  task.status = status;
}

function setArtifact(task, { artifact, append, lastChunk }) {
  if (!artifact) return;
  const at = task.artifacts.findIndex((known) => known.artifactId === artifact.artifactId);
  const parts = artifact.parts ?? [];
  if (at < 0) task.artifacts.push({ ...artifact, parts: [...parts], open: !lastChunk });
  else if (append) {
    const known = task.artifacts[at];
    for (const part of parts) known.parts.push(part); // spread would put a large array on the stack
    known.open = !lastChunk;
  } else task.artifacts[at] = { ...artifact, parts: [...parts], open: !lastChunk };
}

/** Returns the content of a message or an artifact on one line, truncated after `longest` characters. Data is shown as
 * JSON, and a file by its name, its URL or its media type. */
export function summary(holder, longest = 200) {
  let text = "";
  for (const part of holder?.parts ?? []) {
    if (text.length > longest) break;
    if (typeof part.text === "string") text += part.text;
    else if (isSchemaPart(part)) continue;
    else if ("data" in part) text += ` ${JSON.stringify(part.data)}`;
    else text += ` ${part.filename || part.url || part.mediaType || "file"}`;
  }
  text = text.slice(0, longest * 2).replace(/\s+/gu, " ").trim();
  return text.length > longest ? `${text.slice(0, longest)}…` : text;
}
