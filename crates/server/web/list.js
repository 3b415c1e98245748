// A list of which only what can be seen is in the document. Rows may be of any height: they are measured once they are there, and
// guessed before. What the user looks at stays where it is, whatever happens above it.

/** So many pixels above and below the window are drawn, too. */
const BEYOND = 800;
const GUESS = 96;
/** Nearer to the end than this is at the end: what is new there is followed. */
const NEAR = 120;

export class VirtualList {
  #rows;
  #keys = [];
  #places = new Map();
  #heights = new Map();
  #offsets = [0];
  #elements = new Map();
  #pinned = new Set();
  #focused = null;
  #anchor = null;
  #isAtEnd = true;
  #isDue = false;
  #observer;
  #width = 0;
  #window = "";

  /** `rows.make(key)` gives the element of a row, `rows.signature(key)` a text that changes with what it shows. */
  constructor(container, rows) {
    this.container = container;
    this.#rows = rows;
    this.#observer = new ResizeObserver((seen) => this.#resized(seen));
    this.#observer.observe(container);
    addEventListener("scroll", () => this.#scrolled(), { passive: true });
    addEventListener("resize", () => this.draw());
    container.addEventListener("focusin", (event) => { this.#focused = event.target.closest("li[data-key]")?.dataset.key ?? null; });
    container.addEventListener("focusout", () => { this.#focused = null; });
  }

  get keys() { return this.#keys; }
  get isAtEnd() { return this.#isAtEnd; }

  /** Forgets everything, and begins at the end. */
  clear() {
    this.#observer.disconnect();
    this.#observer.observe(this.container);
    this.container.replaceChildren();
    for (const one of [this.#places, this.#heights, this.#elements, this.#pinned]) one.clear();
    [this.#keys, this.#offsets, this.#anchor, this.#isAtEnd, this.#focused] = [[], [0], null, true, null];
  }

  /** The rows, in their order; pinned ones are drawn wherever the user is. */
  set(keys, pinned) {
    this.#keys = keys;
    this.#places = new Map(keys.map((key, at) => [key, at]));
    this.#pinned = pinned;
    this.draw();
  }

  /** Draws at most once a frame, however much comes. */
  draw() {
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => { this.#isDue = false; this.#drawNow(); });
  }

  /** Brings a row into view; with the focus on it, if that is wanted. */
  reveal(key, { focus = false, block = "center" } = {}) {
    const at = this.#places.get(key);
    if (at === undefined) return;
    this.#isAtEnd = false;
    const room = document.scrollingElement;
    const above = block === "center" ? Math.max(0, (room.clientHeight - this.#height(key)) / 2) : 0;
    this.#anchor = { key, delta: -above };
    this.#drawNow();
    const element = this.#elements.get(key);
    if (!element) return;
    element.scrollIntoView({ block: block === "center" ? "center" : "nearest" });
    this.#scrolled();
    if (focus) element.focus({ preventScroll: true });
  }

  toEnd() {
    this.#isAtEnd = true;
    this.draw();
  }

  /** The row of an element, or the one at the top of the window. */
  current() {
    const own = document.activeElement?.closest?.("li[data-key]")?.dataset.key;
    return own && this.#places.has(own) ? own : this.#anchor?.key ?? this.#keys.at(-1);
  }

  /** The key so many rows further. */
  neighbour(key, step) {
    const at = this.#places.get(key) ?? this.#keys.length - 1;
    return this.#keys[Math.max(0, Math.min(this.#keys.length - 1, at + step))];
  }

  #height(key) { return this.#heights.get(key) ?? GUESS; }

  #layOut() {
    const offsets = new Array(this.#keys.length + 1);
    offsets[0] = 0;
    for (let at = 0; at < this.#keys.length; at += 1) offsets[at + 1] = offsets[at] + this.#height(this.#keys[at]);
    this.#offsets = offsets;
  }

  /** The row at a place. */
  #rowAt(y) {
    let [low, high] = [0, this.#keys.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#offsets[middle + 1] <= y) low = middle + 1;
      else high = middle;
    }
    return Math.min(low, Math.max(0, this.#keys.length - 1));
  }

  #top() { return this.container.getBoundingClientRect().top + document.scrollingElement.scrollTop; }

  #scrolled() {
    if (!this.container.isConnected || !this.container.offsetParent || !this.#keys.length) return;
    const room = document.scrollingElement;
    // A window of another size moves everything; that is no wish of the user's.
    if (this.#window !== `${innerWidth} ${innerHeight}`) return this.draw();
    this.#isAtEnd = room.scrollHeight - room.scrollTop - room.clientHeight < NEAR;
    const y = room.scrollTop - this.#top();
    const at = this.#rowAt(Math.max(0, y));
    this.#anchor = { key: this.#keys[at], delta: y - this.#offsets[at] };
    this.draw();
  }

  #resized(seen) {
    const width = this.container.clientWidth;
    if (width && width !== this.#width) {
      // Measured heights are still the best guesses.
      this.#width = width;
      this.draw();
    }
    if (seen.some(({ target }) => target !== this.container && this.#measure(target))) this.draw();
  }

  #measure(element) {
    const { key } = element.dataset;
    const height = element.offsetHeight;
    if (!height || this.#heights.get(key) === height) return false;
    this.#heights.set(key, height);
    return true;
  }

  #drawNow() {
    if (!this.container.offsetParent) return;
    this.#window = `${innerWidth} ${innerHeight}`;
    const room = document.scrollingElement;
    for (let round = 0; round < 4; round += 1) {
      this.#layOut();
      const [top, whole] = [this.#top(), this.#offsets.at(-1)];
      let y = room.scrollTop - top;
      if (this.#isAtEnd) y = whole - room.clientHeight;
      else if (this.#anchor && this.#places.has(this.#anchor.key)) y = this.#offsets[this.#places.get(this.#anchor.key)] + this.#anchor.delta;
      const first = this.#rowAt(Math.max(0, y - BEYOND));
      const last = this.#rowAt(Math.max(0, y + room.clientHeight + BEYOND));
      this.#place(first, last);
      let isNew = false;
      for (const element of this.#elements.values()) isNew = this.#measure(element) || isNew;
      if (!isNew) {
        if (this.#isAtEnd) {
          if (room.scrollHeight - room.clientHeight - room.scrollTop > 1) room.scrollTop = room.scrollHeight;
        } else if (this.#anchor && Math.abs(room.scrollTop - top - y) > 1) room.scrollTop = y + top;
        break;
      }
    }
    this.#rows.drawn?.();
    if (this.#keys.length && room.scrollTop - this.#top() < room.clientHeight) this.#rows.reachedStart?.();
  }

  /** Puts the rows `first` to `last` into the document, with those that are pinned, and room for all others. */
  #place(first, last) {
    const wanted = [];
    for (let at = first; at <= last && at < this.#keys.length; at += 1) wanted.push(at);
    for (const key of new Set([...this.#pinned, this.#focused])) {
      const at = this.#places.get(key);
      if (at !== undefined && (at < first || at > last)) wanted.push(at);
    }
    wanted.sort((one, other) => one - other);
    const kept = new Set(wanted.map((at) => this.#keys[at]));
    for (const [key, element] of this.#elements) {
      if (kept.has(key)) continue;
      this.#observer.unobserve(element);
      element.remove();
      this.#elements.delete(key);
    }
    // Rows keep their order, so that none of them is ever moved: an element that is moved loses the focus. Only the room between them is.
    const spare = [...this.container.querySelectorAll(":scope > li[data-gap]")];
    for (const gap of spare) gap.remove();
    let at = this.container.firstChild;
    const gap = (from, to) => {
      const height = this.#offsets[to] - this.#offsets[from];
      if (height <= 0) return;
      const element = spare.pop() ?? document.createElement("li");
      element.dataset.gap = "";
      element.setAttribute("aria-hidden", "true");
      element.style.height = `${height}px`;
      this.container.insertBefore(element, at);
    };
    let before = 0;
    for (const row of wanted) {
      gap(before, row);
      const isNext = at !== null && at === this.#elements.get(this.#keys[row]);
      const element = this.#element(this.#keys[row], row);
      // It may have been made anew in its place.
      if (isNext) at = element.nextSibling;
      else this.container.insertBefore(element, at);
      before = row + 1;
    }
    gap(before, this.#keys.length);
  }

  #element(key, row) {
    const signature = this.#rows.signature(key);
    let element = this.#elements.get(key);
    if (!element || element.signature !== signature) {
      const fresh = this.#rows.make(key);
      fresh.dataset.key = key;
      fresh.signature = signature;
      fresh.tabIndex = -1;
      if (element) {
        const hadFocus = element.contains(document.activeElement);
        // What the user has unfolded or scrolled stays so.
        const open = [...element.querySelectorAll("details")].map((one) => one.open);
        fresh.querySelectorAll("details").forEach((one, index) => { one.open = open[index] ?? one.open; });
        this.#observer.unobserve(element);
        element.replaceWith(fresh);
        if (hadFocus) fresh.focus({ preventScroll: true });
      }
      this.#observer.observe(fresh);
      this.#elements.set(key, fresh);
      element = fresh;
    }
    element.setAttribute("aria-posinset", String(row + 1));
    element.setAttribute("aria-setsize", String(this.#keys.length));
    return element;
  }
}
