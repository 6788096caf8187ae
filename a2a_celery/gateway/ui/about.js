/** Header of an agent, with the contents of its card and the features of this page that the agent does not support. */

import { el, link } from "./dom.js";

const BINDINGS = { JSONRPC: "JSON-RPC", "HTTP+JSON": "HTTP+JSON" };

export class About {
  #shown = null;

  constructor(composer) {
    this.composer = composer;
    this.element = el("header", { class: "about" });
  }

  show(agent) {
    if (agent === this.#shown) return;
    this.#shown = agent;
    const { card } = agent;
    this.element.replaceChildren(
      el("h2", { dir: "auto" }, card.name),
      el("p", { class: "lead", dir: "auto" }, card.description ?? ""),
      el("p", { class: "facts" }, ...facts(agent).map((fact) => el("span", {}, fact))),
      ...words(agent).map((text) => el("p", { class: "hint" }, text)),
      this.#more(agent),
    );
  }

  #more({ card, cardUrl, url }) {
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

function facts(agent) {
  const version = agent.card.supportedInterfaces?.find(({ protocolBinding }) => protocolBinding === agent.binding)?.protocolVersion;
  return [`A2A ${version ?? "1.0"}`, BINDINGS[agent.binding], agent.streams ? "streams" : "no streams", agent.pushes ? "webhooks" : "no webhooks"];
}

function words(agent) {
  const found = [];
  if (!agent.streams) found.push("This agent does not stream. The page reads its tasks every two seconds.");
  if (agent.elsewhere) found.push(`The card names ${agent.elsewhere}. The page sends requests to its own address, ${location.origin}, instead.`);
  const required = (agent.card.capabilities?.extensions ?? []).filter((extension) => extension.required);
  if (required.length) found.push(`This agent requires ${required.map(({ uri }) => uri).join(", ")}, which this page does not support. It may refuse your messages.`);
  return found;
}
