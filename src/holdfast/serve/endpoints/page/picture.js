// A picture as an input: drawn, chosen, dropped or pasted; brought to the model's size and range.

import { element } from "./element.js";
import { isWhole, nested, pictureOf, rangeOf } from "./signature.js";
import { Strokes } from "./strokes.js";

const PAD = 600; // pixels of what is drawn on
const DRAWN = 128; // the largest picture that is drawn by hand
const MOST_SIDE = 512; // where any size will do

export class PictureForm {
  #strokes = new Strokes();
  #image = null; // a canvas: what was chosen
  #example = false; // it shows the example, unchanged
  #changed;

  constructor(input, changed, hint = "") {
    this.input = input;
    this.picture = pictureOf(input);
    this.#changed = changed;
    this.draws = this.picture.channels === 1 && Math.max(this.picture.height, this.picture.width) <= DRAWN && this.picture.height > 0;
    const [black, white] = rangeOf(input);
    this.sample = input.example ? this.#sampled(black, white) : null;
    this.#build(black, white, hint);
    this.#show();
  }

  get ready() {
    return this.#image !== null || !this.#strokes.empty;
  }

  get asksAtOnce() {
    return true;
  }

  /** The values, nested as the input is shaped. */
  value() {
    if (!this.ready) throw new Error(this.draws ? "Draw something first, or choose a picture." : "Choose a picture first.");
    const { channels, order } = this.picture;
    const { height, width } = this.#size();
    const [black, white] = this.#range();
    const whole = isWhole(this.input.datatype);
    if (this.#example && !this.invert.checked) return nested(this.input.example.flat, this.input.example.shape);
    const pixels = this.#seen();
    const plane = (channel) => {
      const values = new Array(height * width);
      for (let k = 0; k < values.length; k++) {
        const grey = channels === 1
          ? 0.299 * pixels[4 * k] + 0.587 * pixels[4 * k + 1] + 0.114 * pixels[4 * k + 2] : pixels[4 * k + channel];
        const value = black + ((white - black) * grey) / 255;
        values[k] = whole ? Math.round(value) : Number(value.toFixed(4));
      }
      return values;
    };
    const planes = Array.from({ length: channels }, (_, channel) => plane(channel));
    if (order === "flat") return planes[0];
    if (order === "HW") return nested(planes[0], [height, width]);
    if (order === "CHW") return planes.map((one) => nested(one, [height, width]));
    return nested(planes[0].flatMap((_, k) => planes.map((one) => one[k])), [height, width, channels]);
  }

  showExample() {
    const { flat } = this.input.example;
    const { channels, order } = this.picture;
    const { height, width } = this.#size();
    const [black, white] = this.#range();
    const made = canvas(width, height);
    const image = made.context.createImageData(width, height);
    for (let k = 0; k < height * width; k++)
      for (let channel = 0; channel < 3; channel++) {
        const from = channels === 1 ? 0 : channel;
        const value = flat[order === "HWC" ? k * channels + from : from * height * width + k];
        image.data[4 * k + channel] = (255 * (value - black)) / (white - black || 1);
        image.data[4 * k + 3] = 255;
      }
    made.context.putImageData(image, 0, 0);
    this.#take(made.canvas, true);
  }

  /** A file of any kind that the browser can show. */
  async open(file) {
    this.#say("");
    try {
      const bitmap = await createImageBitmap(file);
      const scale = Math.min(1, 1600 / Math.max(bitmap.width, bitmap.height));
      const made = canvas(Math.max(1, Math.round(bitmap.width * scale)), Math.max(1, Math.round(bitmap.height * scale)));
      made.context.fillStyle = "#fff"; // what is transparent
      made.context.fillRect(0, 0, made.canvas.width, made.canvas.height);
      made.context.imageSmoothingQuality = "high";
      made.context.drawImage(bitmap, 0, 0, made.canvas.width, made.canvas.height);
      bitmap.close();
      this.#take(made.canvas, false);
    } catch {
      this.#say(`${file.name || "What was given"} is no picture that this browser can show. PNG and JPEG always work.`);
    }
  }

  // ------------------------------------------------------------ pixels

  #size() {
    let { height, width } = this.picture;
    if (height < 0 || width < 0) {
      const from = this.#image ?? { height: 224, width: 224 };
      const scale = Math.min(1, MOST_SIDE / Math.max(from.height, from.width));
      height = height < 0 ? Math.max(1, Math.round(from.height * scale)) : height;
      width = width < 0 ? Math.max(1, Math.round(from.width * scale)) : width;
    }
    return { height, width };
  }

  /** The pixels that the model sees, as RGBA: made several times as large, then averaged, so that no line is lost. */
  #seen() {
    const { height, width } = this.#size();
    const finer = this.#example ? 1 : Math.max(1, Math.min(12, Math.floor(1024 / Math.max(height, width))));
    const { canvas: large, context } = canvas(width * finer, height * finer);
    if (this.#image) this.#place(context, large);
    else {
      context.fillStyle = "#000";
      context.fillRect(0, 0, large.width, large.height);
      context.strokeStyle = "#fff";
      const side = Math.min(large.width, large.height);
      context.translate((large.width - side) / 2, (large.height - side) / 2);
      this.#strokes.draw(context, side, this.#pen(), this.centre.checked ? this.#strokes.centred(this.#share(), this.#pen()) : undefined);
    }
    const from = context.getImageData(0, 0, large.width, large.height).data;
    const inverted = this.invert.checked;
    const pixels = new Float32Array(4 * height * width);
    for (let y = 0; y < height; y++)
      for (let x = 0; x < width; x++)
        for (let channel = 0; channel < 3; channel++) {
          let sum = 0;
          for (let v = 0; v < finer; v++)
            for (let u = 0; u < finer; u++) sum += from[4 * ((y * finer + v) * large.width + x * finer + u) + channel];
          const mean = sum / (finer * finer);
          pixels[4 * (y * width + x) + channel] = inverted ? 255 - mean : mean;
        }
    return pixels;
  }

  #place(context, into) {
    const { width, height } = this.#image;
    const across = into.width / width, down = into.height / height;
    const scale = this.fit.value === "whole" ? Math.min(across, down) : Math.max(across, down);
    const [w, h] = this.fit.value === "stretch" ? [into.width, into.height] : [width * scale, height * scale];
    context.drawImage(this.#image, 0, 0, 1, 1, 0, 0, into.width, into.height); // its corner's colour around it
    context.imageSmoothingQuality = "high";
    context.imageSmoothingEnabled = !this.#example;
    context.drawImage(this.#image, (into.width - w) / 2, (into.height - h) / 2, w, h);
  }

  #pen() {
    return 0.055 + 0.7 / Math.min(this.picture.height, this.picture.width);
  }

  #share() {
    return this.sample?.share ?? 0.75;
  }

  #range() {
    const [black, white] = [Number(this.black.value), Number(this.white.value)];
    return [Number.isFinite(black) ? black : 0, Number.isFinite(white) ? white : 1];
  }

  /** What the example shows: how much of its square is drawn on, and whether on white. */
  #sampled(black, white) {
    const { height, width, channels } = this.picture;
    const grey = this.input.example.flat.map((value) => (value - black) / (white - black || 1));
    if (channels !== 1 || grey.length !== height * width) return null;
    const edge = grey.filter((_, k) => k < width || k >= (height - 1) * width);
    const light = edge.reduce((sum, one) => sum + one, 0) / edge.length > 0.5;
    const rows = [], columns = [];
    grey.forEach((one, k) => {
      if ((light ? 1 - one : one) > 0.25) {
        rows.push(Math.floor(k / width));
        columns.push(k % width);
      }
    });
    if (!rows.length) return null;
    const span = (list) => Math.max(...list) - Math.min(...list) + 1;
    const share = Math.max(span(rows) / height, span(columns) / width);
    return { light, share: Math.min(1, Math.max(0.4, share)) };
  }

  // ------------------------------------------------------------ the page

  #build(black, white, hint) {
    const { height, width } = this.picture;
    this.pad = canvas(PAD, PAD);
    this.small = element("canvas", { role: "img", "aria-label": "The picture in the model's size" });
    const name = this.input.name;
    this.pad.canvas.setAttribute("role", "img");
    this.pad.canvas.setAttribute("aria-label", this.draws ? `Drawing area for ${name}; a picture can be chosen instead` : `The picture for ${name}`);
    this.hint = element("p.hint", {}, hint || (this.draws ? "Draw here, or drop a picture" : "Drop or paste a picture, or choose one"));
    this.area = element("div.pad", {}, this.pad.canvas, this.hint);
    this.area.classList.add(this.draws ? "draws" : "free");
    this.file = element("input", { type: "file", accept: "image/*", id: `file-${name}`, onchange: () => {
      if (this.file.files[0]) this.open(this.file.files[0]);
      this.file.value = "";
    } });
    this.error = element("p.error", { role: "alert", hidden: true });
    this.invert = element("input", { type: "checkbox", onchange: () => this.#show(true) });
    this.invert.checked = this.draws && (this.sample?.light ?? false);
    this.centre = element("input", { type: "checkbox", onchange: () => this.#show(true) });
    this.centre.checked = true;
    const option = (value, text) => element("option", { value }, text);
    this.fit = element("select", { onchange: () => this.#show(true) }, option("fill", "Fill, and cut off"), option("whole", "Show all of it"), option("stretch", "Stretch"));
    this.fit.value = this.draws ? "whole" : "fill";
    this.black = element("input", { type: "number", step: "any", value: black, onchange: () => this.#show(true) });
    this.white = element("input", { type: "number", step: "any", value: white, onchange: () => this.#show(true) });
    const size = height > 0 && width > 0 ? `${width} × ${height}` : "its own size";
    this.element = element("div.picture", {}, this.area, element("div.side", {},
      element("div.sees", {}, this.small, element("p.quiet", {}, `What the model sees: ${size}`)),
      element("div.tools", {},
        this.draws ? element("button", { type: "button", onclick: () => this.#undo() }, "Undo") : null,
        element("button", { type: "button", onclick: () => this.clear() }, "Clear"),
        this.file, element("label.button", { for: this.file.id }, "Choose…")),
      element("div.options", {},
        element("label.check", {}, this.invert, "Invert"),
        this.draws ? element("label.check", {}, this.centre, "Centre what I draw") : null,
        element("details", {}, element("summary", {}, "Size and range"), element("div", {},
          element("label", {}, "A picture of another shape", this.fit),
          element("div.pair", {}, element("label", {}, "Black is", this.black), element("label", {}, "White is", this.white))))),
      this.error));
    this.#listen();
  }

  #listen() {
    const area = this.area;
    area.addEventListener("dragover", (event) => {
      event.preventDefault();
      area.classList.add("over");
    });
    area.addEventListener("dragleave", () => area.classList.remove("over"));
    area.addEventListener("drop", (event) => {
      event.preventDefault();
      area.classList.remove("over");
      const file = event.dataTransfer.files[0];
      if (file) this.open(file);
      else this.#say("That was no file. Save the picture first, or copy it and paste it here.");
    });
    if (!this.draws) return;
    const at = (event) => {
      const box = area.getBoundingClientRect();
      return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    };
    let drawing = null;
    area.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || drawing !== null) return;
      event.preventDefault();
      drawing = event.pointerId;
      area.setPointerCapture(drawing);
      if (this.#image) this.clear();
      this.#strokes.begin(at(event));
      this.#show();
    });
    area.addEventListener("pointermove", (event) => {
      if (event.pointerId !== drawing) return;
      for (const one of event.getCoalescedEvents?.() ?? [event]) this.#strokes.extend(at(one));
      this.#show();
    });
    const end = (event) => {
      if (event.pointerId !== drawing) return;
      drawing = null;
      this.#changed(true);
    };
    area.addEventListener("pointerup", end);
    area.addEventListener("pointercancel", end);
  }

  clear() {
    this.#strokes.clear();
    this.#image = null;
    this.#example = false;
    this.#say("");
    this.#show(true);
  }

  #undo() {
    if (this.#image) return this.clear();
    this.#strokes.undo();
    this.#show(true);
  }

  #take(image, example) {
    this.#strokes.clear();
    this.#image = image;
    this.#example = example;
    // On paper one draws dark on light; a model that has learned light on dark sees the same when that is inverted.
    if (this.draws && !example) this.invert.checked = isLight(image) !== (this.sample?.light ?? false);
    if (example) this.invert.checked = false;
    this.#show(!example);
  }

  #say(sentence) {
    this.error.textContent = sentence;
    this.error.hidden = !sentence;
  }

  #show(changed = false) {
    const { canvas: pad, context } = this.pad;
    const light = !this.#image && this.invert.checked;
    this.area.classList.toggle("light", light);
    this.hint.hidden = this.ready;
    context.clearRect(0, 0, PAD, PAD);
    if (this.#image) {
      const scale = Math.min(PAD / this.#image.width, PAD / this.#image.height);
      const [w, h] = [this.#image.width * scale, this.#image.height * scale];
      context.imageSmoothingEnabled = !this.#example;
      context.drawImage(this.#image, (PAD - w) / 2, (PAD - h) / 2, w, h);
    } else if (this.draws) {
      context.fillStyle = light ? "#f3f6f5" : "#101614";
      context.fillRect(0, 0, pad.width, pad.height);
      context.strokeStyle = light ? "#101614" : "#f3f6f5";
      this.#strokes.draw(context, PAD, this.#pen());
    }
    this.#showSeen();
    if (changed) this.#changed(this.ready);
  }

  #showSeen() {
    const { height, width } = this.#size();
    if (this.small.width !== width || this.small.height !== height) [this.small.width, this.small.height] = [width, height];
    const context = this.small.getContext("2d");
    context.clearRect(0, 0, width, height);
    if (!this.ready) return;
    const pixels = this.#seen();
    const image = context.createImageData(width, height);
    for (let k = 0; k < height * width; k++) {
      for (let channel = 0; channel < 3; channel++) image.data[4 * k + channel] = pixels[4 * k + channel];
      if (this.picture.channels === 1) {
        const grey = 0.299 * pixels[4 * k] + 0.587 * pixels[4 * k + 1] + 0.114 * pixels[4 * k + 2];
        image.data[4 * k] = image.data[4 * k + 1] = image.data[4 * k + 2] = grey;
      }
      image.data[4 * k + 3] = 255;
    }
    context.putImageData(image, 0, 0);
  }
}

function canvas(width, height) {
  const made = document.createElement("canvas");
  [made.width, made.height] = [width, height];
  return { canvas: made, context: made.getContext("2d", { willReadFrequently: true }) };
}

/** Is its edge light, as paper is? */
function isLight(image) {
  const { context } = canvas(16, 16);
  context.drawImage(image, 0, 0, 16, 16);
  const { data } = context.getImageData(0, 0, 16, 16);
  let sum = 0, edge = 0;
  for (let k = 0; k < 256; k++) {
    const [x, y] = [k % 16, Math.floor(k / 16)];
    if (x > 0 && x < 15 && y > 0 && y < 15) continue;
    sum += (data[4 * k] + data[4 * k + 1] + data[4 * k + 2]) / 3;
    edge++;
  }
  return sum / edge > 127;
}
