/** Pane of one task: its state, its question, its messages, its artifacts, and its events as they arrive. */

import { AnswerForm } from "./answer_form.js";
import { Composer } from "./composer.js";
import { el, newId, oncePerFrame, say } from "./dom.js";
import { asError } from "./errors.js";
import { Family } from "./family.js";
import { addMessage } from "./fold.js";
import { Follower } from "./follow.js";
import { Log } from "./log.js";
import { partsOf } from "./parts.js";
import { TaskView } from "./task_view.js";
import { Webhooks } from "./webhooks.js";
import { explain, isEnded } from "./words.js";

export class TaskPane {
  #follower = null;
  #looked = new AbortController();

  constructor(element, app) {
    this.app = app;
    this.pane = element;
    this.draw = oncePerFrame(() => this.#draw());
    this.empty = el("p", { class: "empty" }, "Select a task or send a message to see its events here.");
    this.direct = el("div", { class: "block", hidden: true });
    this.answer = new Composer("Your answer", "Answer", (parts) => this.#answer(parts));
    this.dialog = this.#confirmation();
    this.form = new AnswerForm((parts) => this.#answer(parts));
    this.view = new TaskView(el("div", {}, this.form.element, this.answer.element), (what, schema) => this.#asked(what, schema));
    this.webhooks = new Webhooks((error) => app.notify(error));
    this.family = new Family((agent, id) => app.addressOf(agent, id));
    this.view.element.append(this.family.element, this.webhooks.element);
    this.back = el("a", { class: "back", href: "#" }, "‹ Tasks");
    element.append(this.back, this.empty, this.direct, this.view.element, this.dialog);
  }

  /** Shows a task, or no task for an `id` of "". A task that is already shown stays unchanged. */
  show(entry, id) {
    if (entry) this.back.setAttribute("href", this.app.address(entry.cardUrl));
    if (this.#follower && this.#follower.id === id && this.#follower.agent === entry?.agent) return;
    if (!id || !entry?.agent) {
      this.#leave();
      this.view.element.hidden = true;
      this.empty.hidden = !this.direct.hidden;
      document.title = "Agents";
      return;
    }
    this.#begin(entry.agent, id).run();
  }

  #asked(what, schema) {
    if (what === "cancel") this.dialog.showModal();
    else if (what === "redraw") this.draw();
    else {
      this.form.show(schema);
      this.answer.element.hidden = schema !== null;
    }
  }

  /** Sends the first message of a task. Returns the task's id, or null if the agent has answered with a message.
   * Errors are shown and thrown. */
  async send(entry, message) {
    const { agent } = entry;
    this.direct.hidden = true;
    const stream = agent.streams ? agent.sendStreaming({ message }, (this.sending = new AbortController()).signal) : null;
    try {
      if (stream === null) return this.#sent(agent, await agent.send({ message, configuration: { returnImmediately: true } }), message);
      const { value, done } = await stream.next();
      if (done) throw new Error("The agent’s stream ended without an event.");
      return this.#sent(agent, value.event, message, value, stream);
    } catch (raised) {
      const error = asError(raised);
      this.app.notify(error);
      error.said = "Not sent.";
      throw error;
    }
  }

  #sent(agent, answer, message, first = null, stream = null) {
    if (answer?.message) {
      this.#answeredDirectly(answer.message);
      stream?.return();
      return null;
    }
    const id = answer?.task?.id ?? answer?.statusUpdate?.taskId ?? answer?.artifactUpdate?.taskId;
    if (!id) throw new Error("The agent’s response is neither a task nor a message.");
    const follower = this.#begin(agent, id);
    const { sending } = this;
    if (stream) follower.stopped.signal.addEventListener("abort", () => sending.abort());
    if (first) follower.take(first);
    follower.run(stream);
    if (follower.task) addMessage(follower.task, message);
    return id;
  }

  #begin(agent, id) {
    this.#leave();
    this.log = new Log();
    this.agent = agent;
    this.view.reset(this.log.element);
    this.answer.clear();
    this.form.show(null);
    this.direct.hidden = this.empty.hidden = true;
    this.webhooks.show(agent, id);
    this.#looked = new AbortController();
    const mine = (tell) => (...said) => this.#follower === follower && tell(...said);
    const follower = new Follower(agent, id, {
      event: mine((event) => this.log.add(event)),
      changed: mine(() => this.draw()),
      connection: mine((kind, text) => this.#connected(kind, text)),
      failed: mine((error) => this.#failed(error)),
    });
    this.#follower = follower;
    this.family.show(agent, id);
    this.#connected("looking", "Connecting …");
    this.draw();
    if (matchMedia("(max-width: 699px)").matches) requestAnimationFrame(() => this.view.title.focus());
    return follower;
  }

  #leave() {
    this.#looked.abort();
    this.webhooks.leave();
    this.family.leave();
    this.#follower?.stop();
    this.#follower = null;
    if (this.dialog.open) this.dialog.close();
  }

  #failed(error) {
    this.app.notify(error);
    if (!this.#follower?.task) {
      say(this.empty, explain(error));
      this.empty.hidden = false;
      this.view.element.hidden = true;
    }
  }

  #connected(kind, text) {
    this.view.connected(kind, text);
    if (kind === "live" || kind === "ended") this.#fetchEarlier();
  }

  /** Reads the events before the stream, once the version of the first received event is known or the task has
   * ended. */
  async #fetchEarlier() {
    const { signal } = this.#looked;
    const follower = this.#follower;
    if (!follower || this.asked === follower || (follower.first === null && !isEnded(follower.task?.status?.state))) return;
    this.asked = follower;
    const { log } = this;
    log.reading = true;
    this.draw();
    try {
      const found = await follower.earlier(signal);
      if (signal.aborted || follower !== this.#follower) return;
      if (found === null) log.say("This server stores no events. The list begins when the page opened the task.");
      else log.addEarlier(found);
    } catch (error) {
      this.asked = null;
      log.say(`The earlier events are unavailable. ${explain(asError(error))}`);
    } finally {
      log.reading = false;
    }
    this.draw();
  }

  #draw() {
    const task = this.#follower?.task;
    this.log?.draw();
    if (!task) return;
    this.view.element.hidden = false;
    this.empty.hidden = true;
    this.view.draw(task);
    if (this.#follower.first !== null) this.#fetchEarlier();
    this.app.tasksPane.seen(this.agent, task);
  }

  #answeredDirectly(message) {
    this.#leave();
    this.view.element.hidden = this.empty.hidden = true;
    this.direct.hidden = false;
    this.direct.replaceChildren(el("h3", {}, "Direct answer, without a task"), partsOf(message));
  }

  async #answer(parts) {
    const follower = this.#follower;
    const { id, contextId } = follower.task;
    const message = { messageId: newId(), role: "ROLE_USER", taskId: id, contextId, parts };
    try {
      await this.agent.send({ message, configuration: { returnImmediately: true } });
    } catch (error) {
      this.app.notify(error);
      throw error;
    }
    follower.sent(message);
    this.app.tasksPane.refresh();
  }

  #confirmation() {
    const keep = el("button", { type: "button", autofocus: true }, "Keep it running");
    const stop = el("button", { type: "button", class: "danger" }, "Cancel the task");
    const dialog = el(
      "dialog",
      { "aria-labelledby": "cancel-title" },
      el("h3", { id: "cancel-title" }, "Cancel this task?"),
      el("p", {}, "The agent stops and cannot continue later. The artifacts that it has sent are kept."),
      el("div", { class: "row" }, keep, stop),
    );
    keep.addEventListener("click", () => dialog.close());
    stop.addEventListener("click", async () => {
      dialog.close();
      const { agent } = this;
      const { id } = this.#follower ?? {};
      this.view.cancel.disabled = true;
      say(this.view.cancel, "Canceling …");
      try {
        await agent.cancel(id);
        this.#follower?.wake();
      } catch (error) {
        this.app.notify(error);
      } finally {
        this.view.cancel.disabled = false;
        say(this.view.cancel, "Cancel …");
        this.app.tasksPane.refresh();
      }
    });
    return dialog;
  }
}
