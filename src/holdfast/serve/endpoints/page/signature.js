// What a model takes, and in which forms a person can give it. Nothing here touches the page.

const WHOLE = /^U?INT\d+$/;
const NUMBER = /^(U?INT\d+|FP(16|32|64)|BOOL)$/;
const MOST_CELLS = 64;

export const isWhole = (datatype) => WHOLE.test(datatype);
export const isNumber = (datatype) => NUMBER.test(datatype);

/** An input as the page sees it: one item of it, without the dimension that counts items. */
export function inputOf(metadata, batched, example) {
  const shape = batched ? metadata.shape.slice(1) : metadata.shape;
  const item = example && exampleItem(example, batched);
  return { name: metadata.name, datatype: metadata.datatype, shape, batched, example: item };
}

function exampleItem(example, batched) {
  const shape = batched ? example.shape.slice(1) : example.shape;
  const size = shape.reduce((all, one) => all * one, 1);
  const flat = example.data.flat(Infinity).slice(0, size);
  return flat.length === size ? { shape, flat } : null;
}

/** The forms that suit an input, the best first. */
export function formsOf(input) {
  const { datatype, shape } = input;
  if (datatype === "BYTES") return shape.filter((size) => size !== 1).length <= 1 ? ["text", "json"] : ["json"];
  if (!isNumber(datatype)) return ["json"];
  const forms = [];
  if (datatype !== "BOOL" && pictureOf(input)) forms.push("picture");
  if (shape.length <= 2 && !shape.includes(-1) && count(shape) <= MOST_CELLS) forms.push("numbers");
  else if (shape.filter((size) => size !== 1).length <= 1) forms.push("list");
  if (shape.length === 1 && count(shape) < 64) forms.reverse(); // a short row is one of numbers more often
  return [...forms, "json"];
}

export const count = (shape) => shape.reduce((all, size) => all * size, 1);

/** How an input is a picture: {channels, height, width, order}, -1 where a size may vary; null: it is none. */
export function pictureOf({ shape, example }) {
  const of = (channels, height, width, order) => {
    const like = example && example.shape.length === shape.length ? example.shape : shape;
    const at = order === "HWC" ? 0 : shape.length - 2;
    return { channels, height: height < 0 ? like[at] : height, width: width < 0 ? like[at + 1] : width, order };
  };
  const large = (...sizes) => sizes.every((size) => size < 0 || size >= 4);
  if (shape.length === 3) {
    const [a, b, c] = shape;
    if ((a === 1 || a === 3) && large(b, c)) return of(a, b, c, "CHW");
    if ((c === 1 || c === 3) && large(a, b)) return of(c, a, b, "HWC");
  }
  if (shape.length === 2 && shape[0] >= 8 && shape[1] >= 8 && shape[0] <= 2 * shape[1] && shape[1] <= 2 * shape[0])
    return of(1, shape[0], shape[1], "HW");
  if (shape.length === 1 && shape[0] >= 49) {
    const side = Math.sqrt(shape[0]);
    if (Number.isInteger(side)) return { channels: 1, height: side, width: side, order: "flat" };
  }
  return null;
}

/** Flat values as nested lists of this shape. */
export function nested(flat, shape) {
  if (!shape.length) return flat[0];
  let level = Array.from(flat);
  for (const size of shape.slice(1).reverse()) {
    const next = [];
    for (let k = 0; k < level.length; k += size) next.push(level.slice(k, k + size));
    level = next;
  }
  return level;
}

/** JSON in which a row of values is one line. */
export function written(value, indent = "") {
  if (Array.isArray(value)) {
    if (!value.some((one) => typeof one === "object" && one !== null)) return `[${value.map((one) => JSON.stringify(one)).join(", ")}]`;
    const inner = `${indent}  `;
    return `[\n${value.map((one) => inner + written(one, inner)).join(",\n")}\n${indent}]`;
  }
  if (typeof value === "object" && value !== null) {
    const inner = `${indent}  `;
    const rows = Object.entries(value).map(([name, one]) => `${inner}${JSON.stringify(name)}: ${written(one, inner)}`);
    return rows.length ? `{\n${rows.join(",\n")}\n${indent}}` : "{}";
  }
  return JSON.stringify(value);
}

/** Between which numbers a picture's values lie: [of black, of white]; guessed from an example. */
export function rangeOf({ datatype, example }) {
  const values = example?.flat.length ? example.flat : [0];
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const round = (number) => Number(number.toPrecision(4));
  if (low === high) return isWhole(datatype) ? [0, 255] : [0, 1];
  if (low >= 0 && high <= 1 && !isWhole(datatype)) return [0, 1];
  if (low >= 0) return high <= 16 ? [0, 16] : high <= 255 ? [0, 255] : [round(low), round(high)];
  return low >= -1 && high <= 1 ? [-1, 1] : [round(low), round(high)];
}
