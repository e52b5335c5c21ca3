// The answer: a label with its probabilities where the model has classes, else its outputs; or why there is none.

import { byId, element, told } from "./element.js";

const MOST_NUMBERS = 60;
const MOST_SHOWN = 20_000; // characters of JSON

export class AnswerView {
  constructor() {
    this.box = byId("answer");
    this.time = byId("answer-time");
    // On a phone the answer lies below what is drawn: as long as it is out of sight, its label is shown at the edge.
    this.glance = byId("glance");
    new IntersectionObserver(([seen]) => this.glance.classList.toggle("away", seen.isIntersecting)).observe(this.box);
  }

  empty(sentence) {
    this.#put("", "", element("p.empty", {}, sentence));
  }

  pending() {
    this.box.classList.add("stale");
  }

  /** `error` as the server has said it. */
  failed(error) {
    const title = error.status ? `Not answered (${error.status})` : "Not asked";
    this.#put("", title, element("div.failure", {}, element("b", {}, title), error.message));
  }

  show(answer, milliseconds) {
    const parts = typeof answer.label === "string" ? labelled(answer) : Object.entries(answer.outputs).map(([name, value]) => output(name, value));
    const all = JSON.stringify(answer, null, 1).replace(/\[\s+([^[\]{}]*?)\s+\]/g, (_, inner) => `[${inner.replace(/\s+/g, " ")}]`);
    const raw = all.length > MOST_SHOWN ? `${all.slice(0, MOST_SHOWN)}\n… ${all.length - MOST_SHOWN} characters more` : all;
    const details = element("details", { open: this.open }, element("summary", {}, "All of it, as JSON"), element("pre", { tabindex: 0 }, raw));
    details.addEventListener("toggle", () => (this.open = details.open));
    const glance = typeof answer.label === "string" ? `${answer.label} · ${percent(answer.probabilities[answer.label])}` : "Answered";
    this.#put(`${milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds)} ms · version ${answer.version}`, glance, ...parts, details);
  }

  #put(time, glance, ...parts) {
    this.glance.textContent = glance;
    this.glance.hidden = !glance;
    this.box.classList.remove("stale");
    this.time.textContent = time;
    this.box.replaceChildren(...parts);
  }
}

function labelled({ label, probabilities }) {
  const share = probabilities[label];
  const rows = Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
  return [
    element(label.length > 8 ? "p.label.long" : "p.label", { id: "label" }, label),
    element("p.sure", {}, `${percent(share)} sure`),
    bars(rows.map(([name, value]) => [name, value, percent(value)]), 1, label),
  ];
}

/** Rows of [name, value, how the value is written]; the bar of `most` is full. */
function bars(rows, most, best) {
  return element("ul.bars", {}, rows.map(([name, value, text]) => {
    const fill = element("div.fill");
    fill.style.width = `${Math.max(0, Math.min(100, (100 * value) / most))}%`;
    return element(name === best ? "li.most" : "li", {}, element("span.what", {}, name), element("div.track", { "aria-hidden": "true" }, fill), element("span.much", {}, text));
  }));
}

function percent(share) {
  if (share > 0.999 && share < 1) return ">99.9%";
  if (share < 0.001 && share > 0) return "<0.1%";
  return `${Number((100 * share).toFixed(share < 0.1 || share > 0.99 ? 1 : 0))}%`;
}

function output(name, value) {
  const shape = shapeOf(value);
  const flat = [value].flat(Infinity);
  const head = element("h3", {}, shape.length ? `${name} [${shape.join(", ")}]` : name);
  return element("div.output", {}, head, body(flat, shape));
}

function body(flat, shape) {
  if (flat.every((one) => typeof one === "string")) return element("p.said", {}, flat.join("\n"));
  if (flat.length === 1) return element("p.single", {}, typeof flat[0] === "number" ? told(flat[0]) : String(flat[0]));
  const shown = flat.slice(0, MOST_NUMBERS);
  const list = element("ul.numbers", {}, shown.map((one, k) => element("li", {}, element("span", {}, place(k, shape)), typeof one === "number" ? told(one) : String(one))));
  if (shown.length === flat.length) return list;
  return element("div", {}, element("p.quiet", {}, `${flat.length.toLocaleString("en")} values; the first ${shown.length}:`), list);
}

function place(k, shape) {
  const at = [];
  for (const size of [...shape].reverse()) {
    at.unshift(k % size);
    k = Math.floor(k / size);
  }
  return at.join(", ");
}

function shapeOf(value) {
  const shape = [];
  for (let inner = value; Array.isArray(inner); inner = inner[0]) shape.push(inner.length);
  return shape;
}
