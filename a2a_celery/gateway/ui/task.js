/** Pane of one task: its state, its question, its messages, its artifacts, and its events as they arrive. */

import { confirmAction } from "./actions.js";
import { AnswerForm } from "./answer_form.js";
import { Composer } from "./composer.js";
import { el, newId, setText, throttleByFrame } from "./dom.js";
import { asError } from "./errors.js";
import { Family } from "./family.js";
import { Follower } from "./follower.js";
import { Log } from "./log.js";
import { partsElement } from "./parts.js";
import { addMessage } from "./task_reducer.js";
import { TaskView } from "./task_view.js";
import { explain, isTerminal } from "./texts.js";
import { Webhooks } from "./webhooks.js";

export class TaskPane {
  #follower = null;
  #abortController = new AbortController();

  constructor(element, app) {
    this.app = app;
    this.pane = element;
    this.draw = throttleByFrame(() => this.#draw());
    this.empty = el("p", { class: "empty" }, "Select a task or send a message to see its events here.");
    this.directAnswer = el("div", { class: "block", hidden: true });
    this.answerComposer = new Composer("Your answer", "Answer", (parts) => this.#sendAnswer(parts));
    this.answerForm = new AnswerForm((parts) => this.#sendAnswer(parts));
    this.view = new TaskView(el("div", {}, this.answerForm.element, this.answerComposer.element), (action, message) => this.#handleAction(action, message));
    this.webhooks = new Webhooks((error) => app.notify(error));
    this.family = new Family((agent, id) => app.addressOf(agent, id));
    this.view.element.append(this.family.element, this.webhooks.element);
    this.back = el("a", { class: "back", href: "#" }, "‹ Tasks");
    element.append(this.back, this.empty, this.directAnswer, this.view.element);
  }

  /** Show a task, or no task for an `id` of "". A task that is already shown stays unchanged. */
  show(entry, id) {
    if (entry) this.back.setAttribute("href", this.app.address(entry.cardUrl));
    if (this.#follower && this.#follower.id === id && this.#follower.agent === entry?.agent) return;
    if (!id || !entry?.agent) {
      this.#leave();
      this.view.element.hidden = true;
      this.empty.hidden = !this.directAnswer.hidden;
      document.title = "Agents";
      return;
    }
    this.#follow(entry.agent, id).run();
  }

  #handleAction(action, message) {
    if (action === "cancel") this.#cancel();
    else if (action === "redraw") this.draw();
    else {
      this.answerForm.show(message);
      this.answerComposer.element.hidden = !this.answerForm.element.hidden;
    }
  }

  /** Send the first message of a task. Return the task's id, or null if the agent has answered with a message.
   * Errors are shown and thrown. */
  async send(entry, message) {
    const { agent } = entry;
    this.directAnswer.hidden = true;
    const stream = agent.canStream ? agent.sendStreaming({ message }, (this.sendController = new AbortController()).signal) : null;
    try {
      if (stream === null) return this.#followResponse(agent, await agent.send({ message, configuration: { returnImmediately: true } }), message);
      const { value, done } = await stream.next();
      if (done) throw new Error("The agent’s stream ended without an event.");
      return this.#followResponse(agent, value.event, message, value, stream);
    } catch (cause) {
      const error = asError(cause);
      this.app.notify(error);
      error.hint = "Not sent.";
      throw error;
    }
  }

  #followResponse(agent, response, message, firstEvent = null, stream = null) {
    if (response?.message) {
      this.#showDirectAnswer(response.message);
      stream?.return();
      return null;
    }
    const id = response?.task?.id ?? response?.statusUpdate?.taskId ?? response?.artifactUpdate?.taskId;
    if (!id) throw new Error("The agent’s response is neither a task nor a message.");
    const follower = this.#follow(agent, id);
    const { sendController } = this;
    if (stream) follower.abortController.signal.addEventListener("abort", () => sendController.abort());
    if (firstEvent) follower.addEvent(firstEvent);
    follower.run(stream);
    if (follower.task) addMessage(follower.task, message);
    this.view.expectQuestion();
    return id;
  }

  #follow(agent, id) {
    this.#leave();
    this.log = new Log();
    this.agent = agent;
    this.view.reset(this.log.element);
    this.answerComposer.clear();
    this.answerForm.show(null);
    this.directAnswer.hidden = this.empty.hidden = true;
    this.webhooks.show(agent, id);
    this.#abortController = new AbortController();
    const ifCurrent = (callback) => (...values) => this.#follower === follower && callback(...values);
    const follower = new Follower(agent, id, {
      onEvent: ifCurrent((event) => this.log.add(event)),
      onChange: ifCurrent(() => this.draw()),
      onConnection: ifCurrent((kind, text) => this.#showConnection(kind, text)),
      onError: ifCurrent((error) => this.#showError(error)),
    });
    this.#follower = follower;
    this.family.show(agent, id);
    this.#showConnection("polling", "Connecting …");
    this.draw();
    return follower;
  }

  #leave() {
    this.#abortController.abort();
    this.webhooks.leave();
    this.family.leave();
    this.#follower?.stop();
    this.#follower = null;
  }

  #showError(error) {
    this.app.notify(error);
    if (!this.#follower?.task) {
      setText(this.empty, explain(error));
      this.empty.hidden = false;
      this.view.element.hidden = true;
    }
  }

  #showConnection(kind, text) {
    this.view.showConnection(kind, text);
    if (kind === "live" || kind === "ended") this.#fetchEarlier();
  }

  /** Read the events before the stream, once the version of the first received event is known or the task has
   * ended. */
  async #fetchEarlier() {
    const { signal } = this.#abortController;
    const follower = this.#follower;
    if (!follower || this.backfillFollower === follower || (follower.firstVersion === null && !isTerminal(follower.task?.status?.state))) return;
    this.backfillFollower = follower;
    const { log } = this;
    log.isLoading = true;
    this.draw();
    try {
      const events = await follower.readEarlierEvents(signal);
      if (signal.aborted || follower !== this.#follower) return;
      if (events === null) log.showNote("This server stores no events. The list begins when the page opened the task.");
      else log.addEarlier(events);
    } catch (error) {
      this.backfillFollower = null;
      log.showNote(`The earlier events are unavailable. ${explain(asError(error))}`);
    } finally {
      log.isLoading = false;
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
    if (this.#follower.firstVersion !== null) this.#fetchEarlier();
    this.app.tasksPane.rememberTask(this.agent, task);
  }

  #showDirectAnswer(message) {
    this.#leave();
    this.view.element.hidden = this.empty.hidden = true;
    this.directAnswer.hidden = false;
    this.directAnswer.replaceChildren(el("h3", {}, "Direct answer, without a task"), partsElement(message));
  }

  async #sendAnswer(parts) {
    const follower = this.#follower;
    const { id, contextId } = follower.task;
    const message = { messageId: newId(), role: "ROLE_USER", taskId: id, contextId, parts };
    let response;
    try {
      response = await this.agent.send({ message, configuration: { returnImmediately: true } });
    } catch (error) {
      this.app.notify(error);
      throw error;
    }
    follower.addSentMessage(message, response);
    this.app.tasksPane.refresh();
  }

  async #cancel() {
    const { agent } = this;
    if (this.view.cancel.ariaBusy) return;
    const follower = this.#follower;
    const isConfirmed = await confirmAction({
      title: "Cancel this task?",
      texts: ["The agent stops and cannot continue later. The artifacts that it has sent are kept."],
      action: "Cancel the task",
      keep: "Keep it running",
      danger: true,
      signal: this.#abortController.signal,
    });
    if (!isConfirmed) return;
    this.view.cancel.ariaBusy = "true";
    setText(this.view.cancel, "Canceling …");
    try {
      await agent.cancel(follower.id);
      follower.wake();
    } catch (error) {
      this.app.notify(error);
    } finally {
      this.view.cancel.ariaBusy = null;
      setText(this.view.cancel, "Cancel …");
      this.app.tasksPane.refresh();
    }
  }
}
