// The server: what is asked of it, and what it says when it does not answer. The token is kept here, and nowhere else.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Connection {
  #token = "";
  #locked;

  /** `locked(message)` is called when the server asks for a token, or for another one. */
  constructor(locked) {
    this.#locked = locked;
  }

  get hasToken() {
    return this.#token !== "";
  }

  use(token) {
    this.#token = token;
  }

  get(path) {
    return this.#ask(path, {});
  }

  post(path, body) {
    return this.#ask(path, { method: "POST", body, headers: { "content-type": "application/json" } });
  }

  async #ask(path, options) {
    const headers = { ...options.headers };
    if (this.#token) headers.authorization = `Bearer ${this.#token}`;
    let response, text;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
      text = await response.text();
    } catch {
      throw new Refused(0, "The server cannot be reached.");
    }
    let body;
    try {
      body = JSON.parse(text);
    } catch {
      throw new Refused(response.status, `The server gave something else than JSON (status ${response.status}).`);
    }
    if (response.ok) return { body, text };
    const message = typeof body?.error === "string" ? body.error : `The server answered with status ${response.status}.`;
    if (response.status === 401) this.#locked(message);
    throw new Refused(response.status, message);
  }
}
