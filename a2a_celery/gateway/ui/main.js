/** The page, with its agents, its credentials, and the agent, task or view that the fragment of the URL selects. */

import { discover } from "./agent_client.js";
import { AgentsPane } from "./agents.js";
import { Credentials, showForm } from "./credentials.js";
import { el, keepFocus, setText } from "./dom.js";
import { asError, errorOf } from "./errors.js";
import { TaskPane } from "./task.js";
import { TasksPane } from "./tasks.js";
import { errorDetails, explain, updateTimes } from "./texts.js";
import { Views } from "./views.js";

const byId = (id) => document.getElementById(id);

class App {
  credentials = new Credentials();
  /** Entries `{ name, cardUrl, agent, error, cardRequest, counts }` of the agents, by the URL of the card. */
  agents = new Map();
  /** Name of the caller, or "" for an unauthenticated caller. */
  owner = "";

  constructor() {
    this.agentsPane = new AgentsPane(byId("agents"), this);
    this.tasksPane = new TasksPane(byId("tasks"), this);
    this.taskPane = new TaskPane(byId("task"), this);
    this.views = new Views(byId("view"), byId("views"), this);
    keepFocus();
    byId("credentials-button").addEventListener("click", () => this.toggleCredentials(byId("credentials").hidden));
    window.addEventListener("hashchange", () => this.show());
    // the browser may cache a page that the user has left, and its stream would occupy one of six connections
    window.addEventListener("pagehide", () => this.taskPane.show(null, ""));
    window.addEventListener("pageshow", (event) => event.persisted && this.show());
    document.addEventListener("visibilitychange", () => document.hidden || this.tasksPane.refresh());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.toggleCredentials(false));
    setInterval(() => document.hidden || updateTimes(), 1000);
  }

  headers = () => this.credentials.headers();

  async start() {
    this.#showCaller();
    const { agents, owner = "", operator = false, inbox = false, ...gateway } = await this.#readAgents();
    this.owner = owner;
    for (const { name, card } of agents) this.addAgent(card, name).isInInbox = inbox;
    this.views.setOperator(operator);
    this.#showGateway(owner, gateway);
    this.show(); // requests the data of the selected agent or view before the number of the inbox and the other cards
    this.views.setInbox(inbox);
    await this.readCards();
    this.show();
  }

  /** Read the cards of the agents that have not been read. */
  readCards() {
    const entries = [...this.agents.values()].filter(({ agent, error }) => agent === null && error === null);
    return Promise.all(entries.map((entry) => this.#readCard(entry, "low")));
  }

  /** Add the agent whose card is at `url`, and return its entry. Throw an Error for another origin, to which the
   * page may not send requests. */
  addAgent(url, name = "") {
    const cardUrl = new URL(url, document.baseURI);
    if (cardUrl.origin !== location.origin) {
      throw new Error(`The page can use only agents at ${location.origin}.`);
    }
    if (!this.agents.has(cardUrl.href)) {
      this.agents.set(cardUrl.href, { name, cardUrl: cardUrl.href, agent: null, error: null, cardRequest: null, counts: null, isInInbox: false });
    }
    return this.agents.get(cardUrl.href);
  }

  /** Return the entry of the agent `name` of this gateway. */
  agentOf(name) {
    return this.addAgent(`../agents/${encodeURIComponent(name)}/.well-known/agent-card.json`, name);
  }

  /** Return the link to an agent's task on this page or, without a task, to the agent. */
  address(cardUrl, task = "") {
    const url = new URL(cardUrl);
    const query = new URLSearchParams({ card: url.pathname + url.search });
    if (task) query.set("task", task);
    return `#${query}`;
  }

  /** Return the link to a task of the agent `name` of this gateway. */
  addressOf(name, task) {
    return this.address(new URL(`../agents/${encodeURIComponent(name)}/.well-known/agent-card.json`, document.baseURI), task);
  }

  async show() {
    const query = new URLSearchParams(location.hash.slice(1));
    const hasView = this.views.show(query);
    document.body.classList.toggle("with-view", hasView);
    if (hasView) return this.taskPane.show(null, "");
    let entry = null;
    try {
      entry = query.has("card") ? this.addAgent(query.get("card")) : null;
    } catch (error) {
      this.notify(error);
    }
    const task = entry ? (query.get("task") ?? "") : "";
    document.body.dataset.pane = task ? "task" : entry ? "tasks" : "agents";
    entry ??= this.agents.values().next().value ?? null;
    const { hash } = location;
    if (entry && !entry.agent && !entry.error) await this.#readCard(entry);
    if (location.hash !== hash) return; // the user has navigated while the card was being read
    this.agentsPane.show(entry);
    this.tasksPane.show(entry, task);
    this.taskPane.show(entry, task);
  }

  /** Show an error or a text as a notice, which screen readers announce. */
  notify(problem) {
    const error = typeof problem === "string" ? null : asError(problem);
    const detailPairs = error ? errorDetails(error) : [];
    const close = el("button", { type: "button", class: "quiet small", "aria-label": "Dismiss" }, "Dismiss");
    const notice = el(
      "div",
      { class: "notice" },
      el("p", {}, error ? explain(error) : problem, " ", close),
      detailPairs.length > 0 && el("dl", {}, ...detailPairs.flatMap(([name, text]) => [el("dt", {}, name), el("dd", { dir: "auto" }, text)])),
    );
    close.addEventListener("click", () => notice.remove());
    const notices = [...byId("notices").children];
    const duplicate = notices.find((candidate) => candidate.firstChild.textContent === notice.firstChild.textContent);
    if (duplicate) duplicate.replaceWith(notice);
    else byId("notices").append(notice);
    if (notices.length > 3) notices[0].remove();
    if (error?.status === 401) this.toggleCredentials(true);
  }

  toggleCredentials(open) {
    const sheet = byId("credentials");
    if (open && !sheet.hidden) return;
    if (!open && sheet.hidden) return;
    sheet.hidden = !open;
    byId("credentials-button").setAttribute("aria-expanded", String(open));
    if (!open) byId("credentials-button").focus();
    else this.#showCredentialsForm(sheet);
  }

  /** Show the form with the schemes of the shown agent's card, or of the public card at the root of the gateway. */
  async #showCredentialsForm(sheet) {
    let card = this.tasksPane.entry?.agent?.card;
    try {
      card ??= (await discover(new URL("../.well-known/agent-card.json", document.baseURI).href, () => ({}))).card;
    } catch {
      // without a card, the form offers only a bearer token
    }
    if (!sheet.hidden) showForm(sheet, this.credentials, card, () => this.#restart());
  }

  #restart() {
    this.toggleCredentials(false);
    byId("notices").replaceChildren();
    for (const entry of this.agents.values()) {
      entry.error = null;
      entry.agent = null; // the card may depend on the caller, so it is read again
    }
    this.taskPane.show(null, "");
    this.start();
  }

  #showCaller() {
    setText(byId("credentials-button"), this.credentials.isSet ? "Signed in" : "Sign in");
  }

  /** Show the caller and the version of the gateway. Only a gateway that accepts credentials from the page has a button
   * to sign in. Other servers do not say whether they accept credentials. */
  #showGateway(owner, { signIn = true, version = "" }) {
    byId("credentials-button").hidden = !signIn;
    if (owner) setText(byId("credentials-button"), `Signed in as ${owner}`);
    setText(byId("host"), !signIn && owner ? `${owner} at ${location.host}` : location.host);
    setText(byId("product"), version);
  }

  async #readAgents() {
    try {
      const response = await fetch("agents.json", { headers: this.headers(), redirect: "error" });
      if (response.ok) return { agents: [], ...(await response.json()) };
      if ([401, 403].includes(response.status)) {
        this.notify(await errorOf(response));
        return { agents: [] };
      }
    } catch {
      // another server serves this page, without the list of agents
    }
    return { agents: [{ name: "", card: "/.well-known/agent-card.json" }] };
  }

  #readCard(entry, priority = "auto") {
    entry.cardRequest ??= this.#discover(entry, priority).finally(() => (entry.cardRequest = null));
    return entry.cardRequest;
  }

  async #discover(entry, priority) {
    try {
      entry.agent = await discover(entry.cardUrl, this.headers, priority);
      entry.name = entry.agent.name || entry.name;
      entry.error = null;
    } catch (error) {
      entry.error = asError(error);
    }
  }
}

new App().start();
