/**
 * Functions that create and update elements. Untrusted strings are inserted as text, never as markup. The
 * Content-Security-Policy of the page (trusted types) enforces this rule.
 */

/** Return a new element. An attribute `on…` adds a listener, and null, undefined and false omit an attribute or a
 * child. Strings among the children become text. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Update the children of `parent` to one element for each of `items`, in order. The element of an item that was
 * already shown is reused, with focus and selection. Keys come from agents and clients, so several items may have the
 * same key. Each of these items has its own element. */
export function reconcile(parent, items, keyOf, create, update) {
  const previous = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const occurrences = new Map();
  const keys = items.map((item) => {
    const baseKey = keyOf(item);
    occurrences.set(baseKey, (occurrences.get(baseKey) ?? 0) + 1);
    return `${occurrences.get(baseKey)} ${baseKey}`;
  });
  const keySet = new Set(keys);
  // before the insertions, so that few elements are moved: in some browsers, a moved element loses the focus
  for (const [key, child] of previous) if (!keySet.has(key)) child.remove();
  let next = parent.firstElementChild;
  for (const [i, item] of items.entries()) {
    const key = keys[i];
    let child = previous.get(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    update(child, item);
    if (child === next) next = next.nextElementSibling;
    else if (child.isConnected && parent.moveBefore) parent.moveBefore(child, next);
    else parent.insertBefore(child, next);
  }
}

/** Set the text of `element` only if it changes, so that a selection in an unchanged text stays. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Mark `element` as the current item of its list, or remove the mark. */
export function setCurrent(element, isCurrent) {
  if (isCurrent) element.setAttribute("aria-current", "true");
  else element.removeAttribute("aria-current");
}

/** Move the focus to the heading of its pane when the focused element disappears. Otherwise, the next key would be
 * pressed in no element. */
export function keepFocus() {
  let element = null;
  let pane = null;
  const observer = new ResizeObserver(() => {
    if (element.checkVisibility() || ![element, document.body].includes(document.activeElement)) return;
    const headings = [pane, ...[...document.querySelectorAll("main > *")].reverse()].map((candidate) => candidate.querySelector("h2"));
    const heading = headings.find((candidate) => candidate?.checkVisibility());
    heading?.setAttribute("tabindex", "-1");
    heading?.focus({ preventScroll: true });
  });
  document.addEventListener("focusin", ({ target }) => {
    observer.disconnect();
    element = target;
    pane = target.closest("main > *");
    // the size of an inline element does not change when the element disappears
    if (pane) observer.observe(getComputedStyle(target).display === "inline" ? target.parentElement : target);
  });
}

/** Return a function that calls `draw` in the next frame, only once for all calls before this frame. */
export function throttleByFrame(draw) {
  let isScheduled = false;
  return () => {
    if (isScheduled) return;
    isScheduled = true;
    const run = () => {
      if (!isScheduled) return;
      isScheduled = false;
      draw();
    };
    requestAnimationFrame(run);
    setTimeout(run, 250); // a hidden page has no frames
  };
}

/** Return a link to `url` if its scheme is http or https. Any other URL, such as "javascript:…", becomes text. */
export function link(url, text = url) {
  let address;
  try {
    address = new URL(url);
  } catch {
    address = null;
  }
  if (address === null || !["http:", "https:"].includes(address.protocol)) {
    return el("span", { title: "Not a web address, so it is shown as text" }, text === url ? url : `${text} (${url})`);
  }
  return el("a", { href: address.href, target: "_blank", rel: "noopener noreferrer", title: address.href }, text);
}

/** Return a button that copies `text`. */
export function copyButton(text, label) {
  const button = el("button", { type: "button", class: "quiet small", "aria-label": label, title: label }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

/** Return a new message id. `crypto.randomUUID` is not used, because it is available only on https and localhost. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
