/** Small SVG charts of values over time. A gap in the samples interrupts the line. */

import { el, setText } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 72;
const MINUTE = 60_000;
/** Minimum and maximum length of a chart's time axis, in milliseconds. */
const MIN_SPAN = 2 * MINUTE;
const MAX_SPAN = 30 * MINUTE;
/** Number of milliseconds between two samples above which the line is interrupted. */
const GAP = 20_000;

function svg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

export class Chart {
  /** `series` is a list of `{ name, kind }`; `kind` is a CSS class. `format(value)` returns the text of a value. */
  constructor(title, series, format) {
    this.series = series;
    this.format = format;
    this.values = series.map(() => el("dd", {}));
    this.scale = el("span", { class: "hint" });
    this.window = el("span", { class: "hint" });
    this.image = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "chart" });
    this.areas = series.map(({ kind }) => svg("path", { class: `area ${kind}` }));
    this.lines = series.map(({ kind }) => svg("path", { class: `line ${kind}` }));
    this.image.append(svg("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }), ...this.areas, ...this.lines);
    const legend = el("dl", { class: "legend" }, ...series.map(({ name, kind }, i) => el("div", {}, el("dt", { class: `key ${kind}` }, name), this.values[i])));
    this.title = title;
    this.element = el("figure", { class: "card" }, el("figcaption", {}, el("h3", {}, title)), legend, this.image, el("div", { class: "head" }, this.window, this.scale));
  }

  /** Draw `samples`, a list of `[time in ms, [a value or null for each series]]` pairs, oldest first. */
  draw(samples, end = Date.now()) {
    const span = Math.min(MAX_SPAN, Math.max(MIN_SPAN, end - (samples[0]?.[0] ?? end)));
    const visibleSamples = samples.filter(([time]) => time >= end - span);
    setText(this.window, `last ${Math.ceil(span / MINUTE)} min`);
    const values = visibleSamples.flatMap(([, values]) => values).filter((value) => value !== null);
    const maximum = Math.max(...values, 0) || 1;
    const newestValues = visibleSamples.at(-1)?.[1] ?? this.series.map(() => null);
    const texts = newestValues.map((value) => (value === null ? "–" : this.format(value)));
    texts.forEach((text, i) => setText(this.values[i], text));
    setText(this.scale, values.length ? `highest ${this.format(Math.max(...values))}` : "no values yet");
    this.image.setAttribute("aria-label", `${this.title}: ${this.series.map(({ name }, i) => `${name} ${texts[i]}`).join(", ")}; ${this.scale.textContent}`);
    this.series.forEach((_, i) => {
      const polylines = segments(visibleSamples, i).map((segment) => segment.map(([time, value]) => [((time - (end - span)) / span) * WIDTH, HEIGHT - 2 - (value / maximum) * (HEIGHT - 8)]));
      this.lines[i].setAttribute("d", polylines.map((polyline) => path(polyline)).join(""));
      this.areas[i].setAttribute("d", polylines.map((polyline) => `${path(polyline)}L${polyline.at(-1)[0].toFixed(1)} ${HEIGHT}L${polyline[0][0].toFixed(1)} ${HEIGHT}Z`).join(""));
    });
  }
}

/** Return an SVG path through points. A single point becomes a dot. */
const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("") + (points.length > 1 ? "" : "h0");

/** Return the uninterrupted segments of a series, each a list of `[time, value]`. */
function segments(samples, series) {
  const result = [];
  let lastTime = -Infinity;
  for (const [time, values] of samples) {
    const value = values[series];
    if (value === null) {
      lastTime = -Infinity;
      continue;
    }
    if (time - lastTime > GAP) result.push([]);
    result.at(-1).push([time, value]);
    lastTime = time;
  }
  return result;
}
