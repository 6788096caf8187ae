/** Header of an agent, with the contents of its card and the features of this page that the agent does not support. */

import { el, link } from "./dom.js";

const BINDINGS = { JSONRPC: "JSON-RPC", "HTTP+JSON": "HTTP+JSON" };

export class AgentHeader {
  #agent = null;

  constructor(composer) {
    this.composer = composer;
    this.element = el("header", { class: "about" });
  }

  show(agent) {
    if (agent === this.#agent) return;
    this.#agent = agent;
    const { card } = agent;
    this.element.replaceChildren(
      el("h2", { dir: "auto" }, card.name),
      el("p", { class: "lead", dir: "auto" }, card.description ?? ""),
      el("p", { class: "facts" }, ...featureNames(agent).map((name) => el("span", {}, name))),
      ...warnings(agent).map((text) => el("p", { class: "hint" }, text)),
      this.#details(agent),
    );
  }

  #details({ card, cardUrl, url }) {
    const pairs = [
      ["Version", card.version],
      ["Provider", card.provider?.organization],
      ["Address", url],
      ["Input", card.defaultInputModes?.join(", ")],
      ["Output", card.defaultOutputModes?.join(", ")],
      ["Extensions", card.capabilities?.extensions?.map(({ uri, required }) => uri + (required ? " (required)" : "")).join(", ")],
      ["Sign-in", Object.keys(card.securitySchemes ?? {}).join(", ")],
    ].filter(([, text]) => text);
    return el(
      "details",
      { class: "more" },
      el("summary", {}, "About this agent"),
      el("dl", {}, ...pairs.flatMap(([name, text]) => [el("dt", {}, name), el("dd", { dir: "auto" }, text)])),
      ...(card.skills ?? []).map((skill) => this.#skill(skill)),
      el("p", { class: "links" }, link(cardUrl, "Agent card"), card.documentationUrl && " ", card.documentationUrl && link(card.documentationUrl, "Documentation")),
    );
  }

  #skill(skill) {
    const examples = (skill.examples ?? []).map((text) => {
      const button = el("button", { type: "button", class: "example", dir: "auto" }, text);
      button.addEventListener("click", () => this.composer().fill(text));
      return button;
    });
    return el("section", { class: "skill" }, el("h3", { dir: "auto" }, skill.name ?? skill.id ?? ""), el("p", { dir: "auto" }, skill.description ?? ""), ...examples);
  }
}

function featureNames(agent) {
  const version = agent.card.supportedInterfaces?.find(({ protocolBinding }) => protocolBinding === agent.binding)?.protocolVersion;
  return [`A2A ${version ?? "1.0"}`, BINDINGS[agent.binding], agent.canStream ? "streams" : "no streams", agent.canPush ? "webhooks" : "no webhooks"];
}

function warnings(agent) {
  const warningTexts = [];
  if (!agent.canStream) warningTexts.push("This agent does not stream. The page reads its tasks every two seconds.");
  if (agent.cardOrigin) warningTexts.push(`The card names ${agent.cardOrigin}. The page sends requests to its own address, ${location.origin}, instead.`);
  const required = (agent.card.capabilities?.extensions ?? []).filter((extension) => extension.required);
  if (required.length) warningTexts.push(`This agent requires ${required.map(({ uri }) => uri).join(", ")}, which this page does not support. It may refuse your messages.`);
  return warningTexts;
}
