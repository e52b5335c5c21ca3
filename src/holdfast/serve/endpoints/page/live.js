// How a model is doing now: latency, batches, version, replicas and queue, from what the server says every second.

import { byId, drawn, element, told } from "./element.js";

const [WIDTH, HEIGHT] = [600, 72]; // of the chart, in its own units

export class LiveView {
  #before = null; // {at, requests} of the look before

  constructor() {
    this.rate = element("dd", {}, "–");
    this.p50 = element("dd", {}, "–");
    this.p99 = element("dd", {}, "–");
    this.queue = element("dd", {}, "–");
    this.failed = element("dd", {}, "–");
    this.chart = drawn("svg.chart", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.goal = element("p.quiet");
    this.batches = element("ul.columns");
    this.batched = element("p.quiet");
    this.replicas = element("ul.replicas");
    this.version = element("p.quiet.wide-text");
    const figure = (name, value) => element("div", {}, element("dt", {}, name), value);
    byId("live").append(
      element("div.head", {}, element("h2", { id: "live-title" }, "Live"), this.since = element("p.quiet")),
      element("dl.figures", {}, figure("p50", this.p50), figure("p99", this.p99), figure("requests a second", this.rate), figure("waiting", this.queue), figure("failed or refused", this.failed)),
      element("div.facts", {},
        element("div", {}, element("h3", {}, "Latency"), this.chart, this.goal),
        element("div", {}, element("h3", {}, "Batch sizes"), this.batches, this.batched),
        element("div", {}, element("h3", {}, "Replicas"), this.replicas, this.version)));
  }

  forget() {
    this.#before = null;
  }

  show(model, source, at) {
    byId("live").hidden = false;
    const times = model.recent.map(([time]) => time);
    this.p50.textContent = times.length ? milliseconds(quantile(times, 0.5)) : "–";
    this.p99.textContent = times.length ? milliseconds(quantile(times, 0.99)) : "–";
    const before = this.#before;
    if (before) {
      const rate = Math.max(0, model.requests - before.requests) / ((at - before.at) / 1000);
      this.rate.textContent = String(Number(rate.toFixed(rate < 10 ? 1 : 0)));
    }
    this.#before = { at, requests: model.requests };
    this.queue.textContent = told(model.waiting);
    this.failed.textContent = told(model.failed + model.refused);
    this.since.textContent = `${model.requests.toLocaleString("en")} request${model.requests === 1 ? "" : "s"} so far`;
    this.#draw(model, times);
    this.#columns(model.batches);
    this.replicas.replaceChildren(...model.replicas.map((one) => {
      const state = one.stage === "ready" ? (one.busy ? "computing" : "ready") : one.stage;
      const kind = one.stage === "ready" ? "good" : "warn";
      const memory = one.memory ? ` · ${Math.round(one.memory / 2 ** 20)} MiB` : "";
      return element(`li.${kind}`, {}, element("span.dot", { "aria-hidden": "true" }), `${one.replica}: ${state}`, element("span.quiet", {}, `version ${one.version}${memory}`));
    }));
    if (!model.replicas.length) this.replicas.append(element("li.bad", {}, element("span.dot", { "aria-hidden": "true" }), "none"));
    this.version.textContent = versionText(model, source);
  }

  #draw(model, times) {
    if (!times.length) {
      this.chart.replaceChildren();
      this.goal.textContent = `No request yet. The objective is ${milliseconds(model.objective_ms)}.`;
      return;
    }
    const goal = model.objective_ms;
    const most = Math.max(...times);
    const top = most > goal / 2 ? Math.max(most, goal) * 1.08 : most * 1.15;
    const x = (k) => (times.length > 1 ? (WIDTH * k) / (times.length - 1) : WIDTH / 2);
    const y = (time) => HEIGHT - (HEIGHT * time) / top;
    const points = times.length > 1 ? times.map((time, k) => `${x(k).toFixed(1)},${y(time).toFixed(1)}`) : [`0,${y(times[0]).toFixed(1)}`, `${WIDTH},${y(times[0]).toFixed(1)}`];
    const flips = model.recent.flatMap(([, , version], k) => (k && version !== model.recent[k - 1][2] ? [drawn("line.flip", { x1: x(k), x2: x(k), y1: 0, y2: HEIGHT })] : []));
    this.chart.replaceChildren(
      drawn("polygon.area", { points: `0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}` }),
      ...flips,
      drawn("polyline.line", { points: points.join(" ") }),
      ...(goal <= top ? [drawn("line.goal", { x1: 0, x2: WIDTH, y1: y(goal), y2: y(goal) })] : []));
    this.chart.setAttribute("aria-label", `Latency of the last ${times.length} requests: at most ${milliseconds(most)}`);
    this.goal.textContent = `${times.length === 1 ? "The last request" : `The last ${times.length} requests`}, up to ${milliseconds(most)}; the objective is ${milliseconds(goal)}${goal <= top ? ", dashed" : ""}.`;
  }

  #columns(batches) {
    const sums = new Map();
    let all = 0, items = 0;
    for (const [size, times] of batches) {
      const low = 2 ** Math.floor(Math.log2(Math.max(1, size)));
      sums.set(low, (sums.get(low) ?? 0) + times);
      all += times;
      items += size * times;
    }
    const most = Math.max(1, ...sums.values());
    const last = Math.max(8, ...sums.keys());
    const columns = [];
    for (let low = 1; low <= last; low *= 2) {
      const times = sums.get(low) ?? 0;
      const bar = element(times ? "i" : "i.none");
      bar.style.height = `${times ? Math.max(3, (60 * times) / most) : 0}px`;
      const name = low === 1 ? "1" : `${low}–${2 * low - 1}`;
      columns.push(element("li", { title: `${times} batches of ${name}` }, bar, low === 1 || last <= 32 ? name : `${low}+`));
    }
    this.batches.replaceChildren(...columns);
    this.batched.textContent = all ? `${all.toLocaleString("en")} batch${all === 1 ? "" : "es"}, ${told(Number((items / all).toPrecision(3)))} item${items === all ? "" : "s"} each on average.` : "None yet.";
  }
}

function versionText(model, source) {
  const parts = [model.version ? `Version ${model.version} answers` : "No version answers"];
  if (source?.run) parts[0] += `; it is from ${source.run}${source.step ? `, step ${source.step}` : ""}`;
  if (Number(model.newest) > Number(model.version) && !model.rejected.includes(Number(model.newest))) parts.push(`version ${model.newest} is loading`);
  if (model.rejected.length) parts.push(`rejected: ${model.rejected.join(", ")} (the server's log says why)`);
  return `${parts.join("; ")}.`;
}

const milliseconds = (time) => (time >= 1000 ? `${(time / 1000).toPrecision(3)} s` : `${time < 10 ? Number(time.toFixed(2)) : Number(time.toPrecision(3))} ms`);

/** The nearest rank: a time that was measured. */
function quantile(times, share) {
  const sorted = [...times].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)];
}
