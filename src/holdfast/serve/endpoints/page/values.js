// Inputs that are typed: a table of numbers, a list of them, a text, or JSON for anything else.

import { element } from "./element.js";
import { count, isWhole, nested, written } from "./signature.js";

/** Numbers in cells, as many as the input has. */
export class NumbersForm {
  constructor(input, changed) {
    this.input = input;
    const { shape, datatype, name } = input;
    const columns = shape.length === 2 ? shape[1] : 0;
    this.cells = Array.from({ length: count(shape) }, (_, k) => {
      const place = columns ? `${Math.floor(k / columns) + 1}, ${(k % columns) + 1}` : `${k + 1}`;
      return element("input", {
        type: "number", step: isWhole(datatype) || datatype === "BOOL" ? "1" : "any", required: true, inputmode: "decimal",
        value: "0", min: datatype === "BOOL" || datatype.startsWith("U") ? 0 : null, max: datatype === "BOOL" ? 1 : null,
        "aria-label": count(shape) === 1 ? name : `${name}, number ${place}`, oninput: () => changed(false),
        onpaste: (event) => this.#paste(event, k, changed),
      });
    });
    this.element = element("div.table", {}, this.cells.map((cell, k) => (columns ? cell : element("label", {}, count(shape) === 1 ? "Value" : `${k + 1}`, cell))));
    if (columns) {
      this.element.classList.add("wide");
      this.element.style.setProperty("--columns", columns);
    }
    if (input.example) this.showExample();
  }

  get ready() {
    return this.cells.every((cell) => cell.value !== "" && cell.checkValidity());
  }

  value() {
    const wrong = this.cells.find((cell) => cell.value === "" || !cell.checkValidity());
    if (wrong) {
      wrong.focus();
      throw new Error(`${wrong.getAttribute("aria-label")}: ${wrong.validationMessage || "Type a number."}`);
    }
    return nested(this.cells.map((cell) => Number(cell.value)), this.input.shape);
  }

  showExample() {
    this.input.example.flat.forEach((value, k) => {
      if (this.cells[k]) this.cells[k].value = Number(value);
    });
  }

  /** A row that was copied out of a spreadsheet fills the cells from here. */
  #paste(event, from, changed) {
    const numbers = numbersIn(event.clipboardData.getData("text"));
    if (!numbers || numbers.length < 2) return;
    event.preventDefault();
    numbers.forEach((number, k) => {
      if (this.cells[from + k]) this.cells[from + k].value = number;
    });
    changed(false);
  }
}

/** Any number of numbers. */
export class ListForm {
  constructor(input, changed) {
    this.input = input;
    const size = input.shape.find((one) => one !== 1);
    this.area = element("textarea.code", { rows: 5, spellcheck: "false", "aria-label": `${input.name}, numbers`, oninput: () => changed(false) });
    const how = size > 0 ? `${size} numbers, with spaces or commas between them.` : "Numbers, with spaces or commas between them; as many as there are.";
    this.element = element("div", {}, this.area, element("p.quiet", {}, how));
    if (input.example) this.showExample();
  }

  get ready() {
    return Boolean(numbersIn(this.area.value)?.length);
  }

  value() {
    const numbers = numbersIn(this.area.value);
    if (!numbers?.length) {
      this.area.focus();
      throw new Error(`${this.input.name}: type numbers, with spaces or commas between them.`);
    }
    return nested(numbers, this.input.shape.map((size) => (size < 0 ? numbers.length : size)));
  }

  showExample() {
    this.area.value = this.input.example.flat.join(", ");
  }
}

function numbersIn(text) {
  const found = text.replace(/[[\];]/g, " ").split(/[\s,]+/).filter(Boolean).map(Number);
  return found.some((number) => !Number.isFinite(number)) ? null : found;
}

/** A text, or several: one a line. */
export class TextForm {
  constructor(input, changed) {
    this.input = input;
    this.single = !input.shape.some((size) => size !== 1);
    this.area = element("textarea", {
      rows: 5, "aria-label": `${input.name}, text`, placeholder: this.single ? "Type or paste a text" : "One text a line",
      oninput: () => changed(false),
    });
    this.element = element("div", {}, this.area, element("p.quiet", {}, "Ctrl+Enter asks."));
    if (input.example) this.showExample();
  }

  get ready() {
    return this.area.value !== "";
  }

  value() {
    if (this.single) return nested([this.area.value], this.input.shape);
    const lines = this.area.value.split("\n");
    return nested(lines, this.input.shape.map((size) => (size === 1 ? 1 : lines.length)));
  }

  showExample() {
    this.area.value = this.input.example.flat.join("\n");
  }
}

/** Whatever it is, as JSON. */
export class JsonForm {
  constructor(input, changed) {
    this.input = input;
    this.area = element("textarea.code", { rows: 10, spellcheck: "false", "aria-label": `${input.name}, JSON`, oninput: () => changed(false) });
    this.element = element("div", {}, this.area, element("p.quiet", {}, `One item: ${input.datatype}, shape [${input.shape.join(", ")}]${input.shape.includes(-1) ? ", -1 being any size" : ""}.`));
    if (input.example) this.showExample();
  }

  get ready() {
    return this.area.value.trim() !== "";
  }

  value() {
    try {
      return JSON.parse(this.area.value);
    } catch (error) {
      this.area.focus();
      throw new Error(`${this.input.name} is not JSON: ${error.message}.`);
    }
  }

  showExample() {
    this.area.value = written(nested(this.input.example.flat, this.input.example.shape));
  }
}
