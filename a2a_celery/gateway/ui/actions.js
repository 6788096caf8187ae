/** Actions that change tasks, webhooks or workers: the dialog before an action, and its result. */

import { el, setText } from "./dom.js";
import { stateName } from "./texts.js";

/** Maximum number of tasks that one request cancels. */
const BATCH = 100;

let dialogCount = 0;

/** Ask for a confirmation. Return a promise of true if the user confirms, and of false if the user does not or `signal`
 * is aborted. `texts` are the paragraphs of the dialog, `fields` are elements below them, and `action` and `keep` are the
 * names of the buttons. */
export function confirmAction({ title, texts, action, keep = "Go back", fields = [], danger = false, signal = null }) {
  const id = `dialog-${++dialogCount}`;
  const keepButton = el("button", { type: "button", autofocus: fields.length === 0 }, keep);
  const actionButton = el("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
  const form = el("form", { method: "dialog", class: "stack" }, ...texts.map((text) => el("p", { dir: "auto" }, text)), ...fields, el("div", { class: "row" }, keepButton, actionButton));
  const dialog = el("dialog", { "aria-labelledby": id }, el("h3", { id, dir: "auto" }, title), form);
  document.body.append(dialog);
  return new Promise((resolve) => {
    let isConfirmed = false;
    keepButton.addEventListener("click", () => dialog.close());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      isConfirmed = true;
      dialog.close();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(isConfirmed);
    });
    signal?.addEventListener("abort", () => dialog.close());
    dialog.showModal();
  });
}

/** Result of the last action of a view. Screen readers announce the summary. */
export class ActionResult {
  constructor() {
    this.summary = el("p", { role: "status" });
    this.items = el("ul", {});
    this.details = el("details", { class: "more", hidden: true }, el("summary", {}, "Result for each"), this.items);
    this.element = el("div", { class: "result" }, this.summary, this.details);
  }

  /** Show the children of the summary, and an item for each of `items`, which are lists of children. */
  show(children, items = []) {
    this.summary.replaceChildren(...[children].flat());
    this.items.replaceChildren(...items.map((item) => el("li", {}, ...[item].flat())));
    this.details.hidden = items.length < 2;
  }

  clear() {
    this.show([]);
  }
}

const CANCEL_TEXTS = {
  canceled: "canceled",
  requested: "stopped by their workers",
  ended: "had already ended",
  missing: "no longer stored",
};

/** Cancel tasks of any owner, and show the results, of each batch as soon as the batch is done. */
export async function cancelTasks(views, ids, result) {
  const results = [];
  for (let first = 0; first < ids.length; first += BATCH) {
    const page = await views.api.cancel(ids.slice(first, first + BATCH));
    results.push(...page.results);
    const counts = Object.entries(CANCEL_TEXTS)
      .map(([name, text]) => [results.filter((each) => each.result === name).length, text])
      .filter(([count]) => count)
      .map(([count, text]) => `${count} ${text}`);
    const remaining = ids.length - first - BATCH > 0 ? ` ${ids.length - first - BATCH} remain.` : "";
    result.show(
      `${count(results.length, "task")}: ${counts.join(", ")}.${remaining}`,
      results.map(({ task, result: outcome, state }) => [
        el("a", { href: views.addressOf(task) }, task),
        ` ${{ requested: "its worker stops the agent", ended: `had already ended: ${stateName(state)}` }[outcome] ?? CANCEL_TEXTS[outcome] ?? outcome}`,
      ]),
    );
  }
}

/** Return a number with a noun, such as "1 task" or "2 tasks". */
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

/** Risk of a requeue, which the dialogs name. */
export const REQUEUE_RISK = "lost run may have done part of its work, which is then done twice.";

/** Requeue one dead letter, and show the new task. Return true if it was requeued, and false if the user has not
 * confirmed. */
export async function requeueTask(views, id, result) {
  const isConfirmed = await confirmAction({
    title: "Requeue this task?",
    texts: [`Task ${id}`, "Its message is sent again, as a new task of the same owner. Recorded steps are not executed again.", `The ${REQUEUE_RISK}`],
    action: "Requeue the task",
  });
  if (!isConfirmed) return false;
  const { task, before } = await views.api.requeue(id);
  result.show([before ? "Already requeued as " : "Requeued as ", el("a", { href: views.addressOf(task) }, task)]);
  return true;
}

/** Button that ignores clicks while `act()` runs. It is not disabled, so that the focus returns to it from a dialog.
 * An error is the result of the action, which stays when the view reads its data again. */
export function actionButton(views, result, text, act, attributes = {}) {
  const button = el("button", { type: "button", class: "small", ...attributes }, text);
  button.addEventListener("click", async () => {
    if (button.ariaBusy) return;
    button.ariaBusy = "true";
    try {
      await act(button);
    } catch (error) {
      result.show(error.reason === "UNSUPPORTED_OPERATION" ? error.message : views.errorText(error)); // the server names the reason
    }
    button.ariaBusy = null;
  });
  return button;
}

/** Set the text and the label of a button that acts on one item. */
export function labelButton(button, text, label) {
  setText(button, text);
  button.setAttribute("aria-label", label);
}
