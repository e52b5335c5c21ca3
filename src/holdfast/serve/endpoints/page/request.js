// The request as it is sent: its JSON, which may be edited, and the line for curl that does the same.

import { byId, element } from "./element.js";

const MOST_SHOWN = 20_000; // characters; more would stop the browser, and nobody reads them
const MOST_IN_LINE = 1500; // characters that a line for a shell may have

export class RequestView {
  #body = "";
  #edited = false;
  #file = null;

  /** `connection` knows whether there is a token; `send()` asks; `reset()` goes back to the form. */
  constructor(connection, { send, reset }) {
    this.connection = connection;
    this.area = element("textarea.code", { id: "body", spellcheck: "false", rows: 14, "aria-describedby": "body-note", oninput: () => this.#edit() });
    this.note = element("p.quiet", { id: "body-note" });
    this.reset = element("button", { type: "button", hidden: true, onclick: reset }, "Back to the form's");
    this.curl = element("pre", { tabindex: 0, "aria-label": "The same with curl" });
    this.download = element("a.button", { download: "request.json", hidden: true }, "request.json");
    this.copied = element("button", { type: "button", onclick: () => this.#copy() }, "Copy");
    byId("panel-json").append(element("div.json", {},
      element("label", { for: "body" }, element("b", {}, "Request"), " ", this.where = element("code", {})),
      this.area, this.note,
      element("div.actions", {}, element("button.primary", { type: "button", onclick: send }, "Send"), this.reset),
      element("div.copy", {}, element("b", {}, "With curl"), element("span.row", {}, this.download, this.copied)),
      this.curl));
  }

  get edited() {
    return this.#edited;
  }

  get body() {
    return this.#body;
  }

  /** Show another request; `path` is where it goes, `problem` why there is none. */
  show(path, body, problem = "") {
    this.path = path;
    this.#body = body;
    this.#edited = false;
    const large = body.length > MOST_SHOWN;
    this.area.readOnly = large;
    this.area.value = large ? `${body.slice(0, 2000)}\n…` : body;
    this.note.textContent = problem || (large ? `${body.length.toLocaleString("en")} characters, of which these are the first. All of them are sent.` : "Sent as it stands here; it may be edited.");
    this.#others();
  }

  #edit() {
    this.#edited = true;
    this.#body = this.area.value;
    this.#others();
  }

  #others() {
    this.reset.hidden = !this.#edited;
    this.where.textContent = `POST /${this.path}`;
    const compact = this.#compact();
    const inline = compact.length <= MOST_IN_LINE;
    const token = this.connection.hasToken ? ` -H "authorization: Bearer $TOKEN"` : "";
    const data = inline ? `'${compact.replaceAll("'", "'\\''")}'` : "@request.json";
    this.curl.textContent = `curl${token} -d ${data} ${new URL(this.path, document.baseURI)}`;
    if (this.#file) URL.revokeObjectURL(this.#file);
    this.#file = inline ? null : URL.createObjectURL(new Blob([this.#body], { type: "application/json" }));
    this.download.hidden = inline;
    if (this.#file) this.download.href = this.#file;
  }

  #compact() {
    if (this.#body.length > MOST_SHOWN) return this.#body;
    try {
      return JSON.stringify(JSON.parse(this.#body));
    } catch {
      return this.#body;
    }
  }

  async #copy() {
    const text = this.curl.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // over plain HTTP from another machine, a browser has no clipboard for pages: select it, then
      const range = document.createRange();
      range.selectNodeContents(this.curl);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      this.copied.textContent = "Selected";
      return;
    }
    this.copied.textContent = "Copied";
    setTimeout(() => (this.copied.textContent = "Copy"), 1500);
  }
}
