// The page: which model is tried, with which form, and what is asked when.

import { AnswerView } from "./answer.js";
import { Connection } from "./connection.js";
import { byId, element } from "./element.js";
import { LiveView } from "./live.js";
import { PictureForm } from "./picture.js";
import { RequestView } from "./request.js";
import { formsOf, inputOf, written } from "./signature.js";
import { JsonForm, ListForm, NumbersForm, TextForm } from "./values.js";

const EVERY = 1000; // milliseconds between two looks at how the server is doing
const FORMS = {
  picture: ["Picture", PictureForm], numbers: ["Numbers", NumbersForm], list: ["List", ListForm], text: ["Text", TextForm],
  json: ["JSON", JsonForm],
};
const PLATFORMS = { pytorch_export: "PyTorch", pytorch_module: "PyTorch", onnxruntime: "ONNX", sklearn: "scikit-learn", python: "Python" };

const connection = new Connection(locked);
const answer = new AnswerView();
const live = new LiveView();
const request = new RequestView(connection, { send: ask, reset: () => compose() });

let models = []; // as the server last said
let model = null; // {name, version, inputs, forms, source}: the one that is shown
let asked = 0; // numbers what was asked, so that an older answer does not replace a newer one
let asking = false, again = false; // one request at a time; what changed meanwhile is asked afterwards
let timer = 0, looking = false;

// ------------------------------------------------------------ the server

function locked(message) {
  const shown = !byId("token").hidden;
  byId("token").hidden = false;
  byId("try").hidden = byId("live").hidden = true;
  byId("token-error").hidden = !connection.hasToken;
  byId("token-error").textContent = connection.hasToken ? `Not accepted. ${message}` : "";
  state("warn", "Token needed");
  clearTimeout(timer); // nothing will be told before there is one
  if (!shown || connection.hasToken) byId("token-value").focus();
  connection.use("");
}

byId("token").addEventListener("submit", async (event) => {
  event.preventDefault();
  connection.use(byId("token-value").value.trim());
  byId("token-value").value = "";
  await look();
  if (byId("token").hidden) byId("try").focus();
});

function state(kind, text) {
  byId("state").className = `state ${kind}`;
  if (byId("state-text").textContent !== text) byId("state-text").textContent = text;
}

function notice(text, kind = "") {
  byId("notice").className = `note ${kind}`;
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

/** See how everything is, and what there is that is new; again in a second, while anybody looks. */
async function look() {
  clearTimeout(timer);
  if (looking || document.hidden) return;
  looking = true;
  let wait = true;
  try {
    const { body } = await connection.get("page.json");
    byId("token").hidden = true;
    if (!byId("server").textContent) await greet();
    models = body.models;
    choose();
    const now = models.find((one) => one.name === chosen());
    if (now) await follow(now);
  } catch (error) {
    if (error.status === 401) wait = false;
    else if (error.status === undefined) throw error;
    else state("bad", error.status ? `Error ${error.status}` : "Unreachable");
  } finally {
    looking = false;
    if (wait && !document.hidden) timer = setTimeout(look, EVERY);
  }
}

async function greet() {
  const { body } = await connection.get("v2");
  byId("server").textContent = `${body.name} ${body.version}`;
}

document.addEventListener("visibilitychange", () => {
  live.forget();
  look();
});

// ------------------------------------------------------------ the model

function chosen() {
  const wanted = decodeURIComponent(location.hash.slice(1));
  return models.some((one) => one.name === wanted) ? wanted : models[0]?.name;
}

function choose() {
  const select = byId("models");
  const names = models.map((one) => one.name);
  if ([...select.options].map((one) => one.value).join("\n") !== names.join("\n"))
    select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  byId("choice").hidden = names.length < 2;
  select.value = chosen() ?? "";
}

byId("models").addEventListener("change", (event) => {
  location.hash = encodeURIComponent(event.target.value);
});
window.addEventListener("hashchange", () => {
  live.forget();
  look();
});

/** Show how the chosen model is doing; and its forms, if it or its version is another one than before. */
async function follow(now) {
  if (!now.version) state("warn", "Loading");
  else if (!now.ready) state("warn", "No replica is ready");
  else state("good", `Ready · version ${now.version}`);
  if (now.version && (model?.name !== now.name || model.version !== now.version)) await take(now);
  live.show(now, model?.name === now.name ? model.source : null, performance.now());
  byId("try").hidden = !model;
}

async function take(now) {
  const path = `v2/models/${encodeURIComponent(now.name)}`;
  const [{ body: metadata }, { body: config }] = await Promise.all([connection.get(path), connection.get(`${path}/config`)]);
  const known = model?.name === now.name ? model : null;
  const source = config.source ?? {};
  if (known) notice(`Version ${now.version} answers now; it was version ${known.version} before.`);
  else notice("");
  if (known && JSON.stringify(known.inputsTold) === JSON.stringify(metadata.inputs)) {
    // What a person has drawn or typed stays, and is asked of the new version.
    Object.assign(known, { version: now.version, source });
    if (known.forms.every((form) => form.ready)) ask();
    return;
  }
  const example = now.example ? (await connection.get(`example/${encodeURIComponent(now.name)}`)).body : null;
  const batched = config.max_batch_size > 0;
  const inputs = metadata.inputs.map((one) => inputOf(one, batched, example?.inputs?.find((item) => item.name === one.name)));
  model = { name: now.name, version: now.version, inputs, inputsTold: metadata.inputs, forms: [], source };
  byId("model-name").textContent = document.title = now.name;
  const classes = config.classes?.length ? ` · ${config.classes.length} classes` : "";
  byId("model-kind").textContent = `${PLATFORMS[metadata.platform] ?? metadata.platform}${classes}`;
  byId("example").hidden = !inputs.some((input) => input.example);
  byId("inputs").replaceChildren(...inputs.map((input, k) => field(input, k)));
  asked++; // an answer that is still to come is another model's
  answer.empty(model.forms.some((form) => form.asksAtOnce) ? "Draw or choose a picture: the answer appears here." : "Press Predict: the answer appears here.");
  compose();
}

/** One input with its form, or a choice of forms. */
function field(input, k) {
  const forms = formsOf(input);
  const made = element("fieldset");
  const put = (name) => {
    model.forms[k] = new FORMS[name][1](input, changed);
    made.querySelector(":scope > .picture, :scope > div")?.remove();
    made.append(model.forms[k].element);
  };
  const legend = element("legend", {}, element("b", {}, input.name), element("span.quiet", {}, input.shape.length ? `${input.datatype} [${input.shape.join(", ")}]` : input.datatype));
  if (forms.length > 1)
    legend.append(element("select", { "aria-label": `How ${input.name} is given`, onchange: (event) => {
      put(event.target.value);
      compose();
    } }, forms.map((name) => element("option", { value: name }, FORMS[name][0]))));
  made.append(legend);
  put(forms[0]);
  return made;
}

/** A form has changed; `complete`: so that it can be asked at once, as after a stroke. */
function changed(complete) {
  compose();
  const ready = model.forms.every((form) => form?.ready);
  if (complete && ready) ask();
  else if (model.forms.some((form) => form?.asksAtOnce && !form.ready)) {
    asked++;
    answer.empty("Draw or choose a picture: the answer appears here.");
  }
}

/** The request that the forms make; what is wrong with them is shown where the request would be. */
function compose() {
  const path = `predict/${encodeURIComponent(model.name)}`;
  let body = "", problem = "";
  try {
    if (model.forms.every((form) => form?.ready)) {
      const values = model.inputs.map((input, k) => [input.name, model.forms[k].value()]);
      body = written(Object.fromEntries(values));
    } else problem = "The form is not filled in yet.";
  } catch (error) {
    problem = error.message;
  }
  request.show(path, body, problem);
  return body;
}

// ------------------------------------------------------------ asking

async function ask() {
  if (asking) {
    again = true;
    return;
  }
  if (!request.edited) {
    try {
      model.forms.forEach((form) => form.value()); // says what is missing
    } catch (error) {
      answer.failed(error);
      return;
    }
  }
  const number = ++asked;
  asking = true;
  answer.pending();
  const began = performance.now();
  try {
    const { body } = await connection.post(request.path, request.body);
    if (number === asked) answer.show(body, performance.now() - began);
  } catch (error) {
    if (number === asked) answer.failed(error);
  } finally {
    asking = false;
    if (again) {
      again = false;
      ask();
    }
  }
}

byId("panel-form").addEventListener("submit", (event) => {
  event.preventDefault();
  compose(); // what the form says, even where the JSON was edited
  ask();
});
byId("panel-form").noValidate = true; // we say what is wrong, where it is
byId("panel-form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("panel-form").requestSubmit();
});
byId("example").addEventListener("click", () => {
  model.forms.forEach((form) => form.input.example && form.showExample());
  compose();
  ask();
});

// ------------------------------------------------------------ tabs, dropped and pasted pictures

function open(name) {
  for (const one of ["form", "json"]) {
    byId(`tab-${one}`).setAttribute("aria-selected", String(one === name));
    byId(`tab-${one}`).tabIndex = one === name ? 0 : -1;
    byId(`panel-${one}`).hidden = one !== name;
  }
}
for (const [name, other] of [["form", "json"], ["json", "form"]]) {
  byId(`tab-${name}`).addEventListener("click", () => open(name));
  byId(`tab-${name}`).addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    open(other);
    byId(`tab-${other}`).focus();
  });
}

document.addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"));
  const form = model?.forms.find((one) => one instanceof PictureForm);
  if (!file || !form) return;
  event.preventDefault();
  form.open(file);
});
// A picture that misses its place would be opened instead of this page.
for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());

look();
