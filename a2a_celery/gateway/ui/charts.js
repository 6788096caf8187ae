/** Small SVG charts of values over time. A gap in the samples interrupts the line, and a single sample is a point. */

import { el, setText } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 72;
const MINUTE = 60_000;
/** Number of intervals between two samples above which the line is interrupted. */
const GAP = 2.5;

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
    this.points = series.map(({ kind }) => svg("path", { class: `point ${kind}` }));
    this.image.append(svg("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }), ...this.areas, ...this.lines, ...this.points);
    const legend = el("dl", { class: "legend" }, ...series.map(({ name, kind }, i) => el("div", {}, el("dt", { class: `key ${kind}` }, name), this.values[i])));
    this.title = title;
    this.element = el("figure", { class: "card" }, el("figcaption", {}, el("h3", {}, title)), legend, this.image, el("div", { class: "head" }, this.window, this.scale));
  }

  /** Draw `samples`, a list of `[time in ms, [a value or null for each series]]` pairs, oldest first.
   *
   * Options: `end`, the time at the end of the time axis; `length`, the length of the time axis in ms; `interval`, the
   * usual number of ms between two samples; `totals`, the values since the store was created, which are shown if the
   * samples have no values. */
  draw(samples, { end, length, interval, totals = this.series.map(() => null) }) {
    const begin = end - length;
    const visibleSamples = samples.filter(([time]) => time >= begin);
    const values = visibleSamples.flatMap(([, values]) => values).filter((value) => value !== null);
    const maximum = Math.max(...values, 0) || 1;
    const showsTotals = !values.length && totals.some((value) => value !== null);
    const newestValues = (showsTotals ? totals : visibleSamples.at(-1)?.[1]) ?? totals;
    const texts = newestValues.map((value) => (value === null ? "–" : this.format(value)));
    texts.forEach((text, i) => setText(this.values[i], text));
    setText(this.window, showsTotals ? "since the store was created" : lastText(length));
    setText(this.scale, values.length ? `highest ${this.format(Math.max(...values))}` : showsTotals ? `none in the ${lastText(length)}` : "no values yet");
    this.image.setAttribute("aria-label", `${this.title}: ${this.series.map(({ name }, i) => `${name} ${texts[i]}`).join(", ")}; ${this.scale.textContent}`);
    this.series.forEach((_, i) => {
      const polylines = segments(visibleSamples, i, GAP * interval).map((segment) => segment.map(([time, value]) => [((time - begin) / length) * WIDTH, HEIGHT - 2 - (value / maximum) * (HEIGHT - 8)]));
      const curves = polylines.filter(({ length: count }) => count > 1);
      this.lines[i].setAttribute("d", curves.map(path).join(""));
      this.areas[i].setAttribute("d", curves.map((curve) => `${path(curve)}L${curve.at(-1)[0].toFixed(1)} ${HEIGHT}L${curve[0][0].toFixed(1)} ${HEIGHT}Z`).join(""));
      this.points[i].setAttribute("d", polylines.filter((polyline) => !curves.includes(polyline)).map((polyline) => `${path(polyline)}h0`).join(""));
    });
  }
}

/** Return an SVG path through points. */
const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

const lastText = (length) => (length > 120 * MINUTE ? `last ${length / (60 * MINUTE)} h` : `last ${length / MINUTE} min`);

/** Return the segments of a series, each a list of `[time, value]`. More than `gap` ms without a value end a segment. */
function segments(samples, series, gap) {
  const result = [];
  let lastTime = -Infinity;
  for (const [time, values] of samples) {
    const value = values[series];
    if (value === null) {
      lastTime = -Infinity;
      continue;
    }
    if (time - lastTime > gap) result.push([]);
    result.at(-1).push([time, value]);
    lastTime = time;
  }
  return result;
}
