// An element of the page. Text goes in as text only: nothing that a server or a person says becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** element("p.quiet", {id: "x", onclick: f}, "text", child, null) */
export function element(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return filled(document.createElement(name), classes, attributes, children);
}

/** The same for pictures. */
export function drawn(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return filled(document.createElementNS(SVG, name), classes, attributes, children);
}

function filled(made, classes, attributes, children) {
  if (classes.length) made.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** A number for people: short, and never more digits than mean something. */
export function told(number) {
  if (!Number.isFinite(number)) return String(number);
  if (Number.isInteger(number) && Math.abs(number) < 1e15) return String(number);
  const size = Math.abs(number);
  return size >= 1e6 || size < 1e-4 ? number.toExponential(3) : String(Number(number.toPrecision(5)));
}
