/* The Select page: a list of any length, as a grid that contains only the rows in sight.

   `pane.actions` are the page's handlers: `tick(pane, row)`, `tickAll(pane)`, `open(pane, row)`,
   `sort(pane, column)`, `move(pane, step)` to another list, `ask()` for rows. */
"use strict";

(function () {
  const { h, setText, setAttribute, swatch, refill, clock } = window.radt;

  const ROW_PX = 24;
  const GAP_PX = 12;
  const BOX_PX = 14;
  /* Rows that are requested, and drawn, beyond those in sight. */
  const SPARE_ROWS = 40;
  const SPARE_DRAWN = 8;
  const MAX_ROWS = 400;
  const SCROLL_PAUSE_MS = 60;
  const OFF = 0;
  const ON = 1;
  const MIXED = 2;

  const checked = (tick) => (tick === MIXED ? "mixed" : String(tick === ON));
  const widthOf = (columns) =>
    columns.reduce((sum, column) => sum + GAP_PX + column.min_px, BOX_PX + 20);

  class Pane {
    constructor(name, title, actions) {
      Object.assign(this, { name, actions, list: null, total: 0, focus: -1, active: -1, sort: "",
        tick: OFF, columns: [], rows: new Map(), drawn: new Map() });
      this.note = h("span", { class: "select-note" });
      this.links = h("span", { class: "select-links" });
      this.head = h("div", { class: "select-row select-columns", role: "row", "aria-rowindex": 1 });
      this.body = h("div", { class: "select-body", role: "rowgroup" });
      this.none = h("div", { class: "select-none", hidden: true });
      this.grid = h("div", {
        class: "select-grid", id: `select-${name}`, role: "grid", tabindex: 0, "aria-label": title,
        onscroll: () => this.scrolled(), onkeydown: (event) => this.key(event),
        onfocus: () => this.activate(this.active < 0 ? Math.max(0, this.focus) : this.active),
      }, h("div", { role: "rowgroup", class: "select-columns-box" }, this.head), this.body);
      this.section = h("section", { class: `select-pane select-pane-${name}`, "aria-label": title },
        h("div", { class: "select-head" }, h("h2", {}, title), this.note, this.links),
        this.grid, this.none);
      new ResizeObserver(() => {
        if (this.sent) this.drawColumns();
        this.paint();
      }).observe(this.grid);
    }

    /* ---- which rows ---------------------------------------------------------------------- */

    get first() {
      return Math.floor(this.grid.scrollTop / ROW_PX);
    }

    get inSight() {
      return Math.ceil(this.grid.clientHeight / ROW_PX) + 1;
    }

    /* The rows to request: those in sight and some around them. */
    request() {
      const { first } = this;
      const anchor = first > 0 ? this.rows.get(first) : null;
      return {
        list: this.list,
        start: Math.max(0, first - SPARE_ROWS),
        count: Math.min(MAX_ROWS, this.inSight + 2 * SPARE_ROWS),
        anchor: anchor ? anchor.id : "",
        anchor_at: first,
      };
    }

    scrolled() {
      this.paint();
      clearTimeout(this.timer);
      this.timer = setTimeout(() => {
        if (!this.grid.isConnected) return;
        const last = Math.min(this.total, this.first + this.inSight);
        for (let index = this.first; index < last; index += 1)
          if (!this.rows.has(index)) return this.actions.ask();
      }, SCROLL_PAUSE_MS);
    }

    /* Draw what the server sent for this list. */
    draw(sent, noneText) {
      const before = this.first;
      const isSame = this.list === sent.list;
      this.sent = sent;
      this.tick = sent.tick || OFF;
      for (const name of ["list", "total", "sort", "focus"]) this[name] = sent[name];
      this.drawColumns();
      if (this.all) {
        this.all.hidden = this.total === 0;
        setAttribute(this.all, "aria-checked", checked(this.tick));
      }
      this.rows.clear();
      sent.rows.forEach((row, index) => this.rows.set(sent.start + index, row));
      this.body.style.height = `${this.total * ROW_PX}px`;
      this.grid.setAttribute("aria-rowcount", this.total + 1);
      if (!isSame) {
        this.active = -1;
        const room = this.inSight - 2;
        const away = this.focus < before || this.focus >= before + room;
        if (this.focus < 0) this.grid.scrollTop = 0;
        else if (away) this.grid.scrollTop = Math.max(0, this.focus - (room >> 1)) * ROW_PX;
      } else if (sent.anchor_at >= 0 && before > 0 && sent.anchor_at !== before) {
        // Rows were inserted before those in sight, which keep their position.
        this.grid.scrollTop += (sent.anchor_at - before) * ROW_PX;
        if (this.active >= 0) this.active += sent.anchor_at - before;
      }
      this.none.hidden = this.total > 0;
      setText(this.none, noneText);
      this.paint();
    }

    /* ---- the keyboard ---------------------------------------------------------------------- */

    activate(index) {
      if (!this.total) return;
      this.active = Math.max(0, Math.min(this.total - 1, index));
      const top = this.active * ROW_PX;
      const room = this.grid.clientHeight - ROW_PX; // below the column names
      if (top < this.grid.scrollTop) this.grid.scrollTop = top;
      else if (top + ROW_PX > this.grid.scrollTop + room) this.grid.scrollTop = top + ROW_PX - room;
      this.paint();
    }

    key(event) {
      if (event.target !== this.grid || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = Math.max(1, this.inSight - 3);
      const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
      const sides = { ArrowRight: 1, ArrowLeft: -1 };
      const row = this.rows.get(this.active);
      if (event.key in steps) this.activate(Math.max(0, this.active) + steps[event.key]);
      else if (event.key in sides) this.actions.move(this, sides[event.key]);
      else if (event.key === "Home") this.activate(0);
      else if (event.key === "End") this.activate(this.total - 1);
      else if (event.key === " " && row) this.actions.tick(this, row);
      else if (event.key === "Enter" && row) this.actions.open(this, row);
      else return;
      event.preventDefault();
    }

    /* ---- columns --------------------------------------------------------------------------- */

    drawColumns() {
      const columns = [...this.sent.columns];
      // A narrow list drops its last columns; the list of runs scrolls instead.
      const room = this.name === "runs" ? Infinity : this.grid.clientWidth;
      while (columns.length > 2 && widthOf(columns) > room) columns.pop();
      const known = JSON.stringify([columns, this.sort]);
      if (known === this.columnsKnown) return;
      this.columnsKnown = known;
      this.columns = columns;
      this.drawn.forEach((element) => element.remove());
      this.drawn.clear();
      this.grid.setAttribute("aria-colcount", columns.length + 1);
      const tracks = columns.map((column) =>
        column.flex ? `minmax(${column.min_px}px, ${column.flex}fr)` : `${column.min_px}px`);
      this.grid.style.setProperty("--select-columns", `${BOX_PX}px ${tracks.join(" ")}`);
      this.grid.style.setProperty("--select-width", `${widthOf(columns)}px`);
      this.all = this.name === "experiments" ? null : this.allBox();
      refill(this.head,
        h("span", { role: "columnheader", class: "select-cell", "aria-colindex": 1 },
          this.all || h("span", { class: "unseen" }, "Picked")),
        columns.map((column, index) => this.columnHead(column, index)));
    }

    allBox() {
      const label = `All ${this.name} listed`;
      const tickAll = () => this.actions.tickAll(this);
      return h("span", {
        class: "select-box", role: "checkbox", tabindex: 0, "aria-label": label, title: label,
        onclick: tickAll,
        onkeydown: (event) => {
          if (event.key !== " ") return;
          event.preventDefault();
          tickAll();
        },
      });
    }

    columnHead(column, index) {
      const order = { [column.key]: "ascending", [`-${column.key}`]: "descending" }[this.sort];
      return h("span", {
        role: "columnheader", class: "select-cell", "data-kind": column.kind,
        "aria-colindex": index + 2, "aria-sort": order,
      }, h("button", {
        type: "button", title: `Sort by ${column.title.toLowerCase()}`, "data-focus": column.key,
        onclick: () => this.actions.sort(this, column),
      }, column.label));
    }

    /* ---- rows ------------------------------------------------------------------------------ */

    /* Draw the rows in sight from the received data; the rest of the list is only a height. */
    paint() {
      const first = Math.max(0, this.first - SPARE_DRAWN);
      const last = Math.min(this.total, first + this.inSight + 2 * SPARE_DRAWN);
      for (const [index, element] of this.drawn)
        if (index < first || index >= last) {
          element.remove();
          this.drawn.delete(index);
        }
      for (let index = first; index < last; index += 1) {
        let element = this.drawn.get(index);
        if (!element) {
          element = this.newRow(index);
          this.drawn.set(index, element);
          this.body.append(element);
        }
        this.fillRow(element, index);
      }
      const active = this.drawn.get(this.active);
      setAttribute(this.grid, "aria-activedescendant", active ? active.id : null);
    }

    newRow(index) {
      const element = h("div", {
        class: "select-row", role: "row", id: `select-${this.name}-${index}`,
        "aria-rowindex": index + 2,
        onclick: (event) => {
          const row = this.rows.get(index);
          if (!row) return;
          this.active = index;
          if (element.firstChild.contains(event.target)) this.actions.tick(this, row);
          else this.actions.open(this, row);
        },
      },
        h("span", { role: "gridcell", class: "select-cell select-box-cell" },
          h("span", { class: "select-box", role: "checkbox" })),
        this.columns.map((column) =>
          h("span", { role: "gridcell", class: "select-cell", "data-kind": column.kind })));
      element.style.transform = `translateY(${index * ROW_PX}px)`;
      return element;
    }

    fillRow(element, index) {
      const row = this.rows.get(index);
      setAttribute(element, "data-active", index === this.active && "yes");
      setAttribute(element, "data-loading", !row && "yes");
      const box = element.firstChild.firstChild;
      setAttribute(box, "aria-checked", checked(row ? row.tick : OFF));
      if (!row) return;
      const title = row.title || row.id;
      setAttribute(element, "aria-selected", String(row.focus));
      setAttribute(element, "title", title);
      setAttribute(box, "aria-label", title);
      this.columns.forEach((column, place) => {
        const element_ = element.children[place + 1];
        const cell = row.cells[place];
        const { text, status, live } = formatted(cell, column.kind);
        if (place === 0 && row.swatch) setNamed(element_, row.swatch, text);
        else setText(element_, text);
        setAttribute(element_, "data-status", status);
        setAttribute(element_, "data-live", live);
      });
    }
  }

  /* The name of a run beside its colour. */
  function setNamed(element, colours, text) {
    const known = colours.join();
    if (element.dataset.colours !== known) {
      element.dataset.colours = known;
      element.replaceChildren(swatch("select-swatch", ...colours), h("span", {}));
    }
    setText(element.lastChild, text);
  }

  /* ---- cells (`Kind` in frontend/pages/select_lists.py) --------------------------------------- */

  function formatted(cell, kind) {
    if (cell === null || cell === undefined) return { text: "" };
    if (kind === "status") return { text: cell[1], status: cell[0] };
    if (kind === "outcome") {
      const isTimed = cell[2] && ["FINISHED", "RUNNING"].includes(cell[0]);
      return { text: isTimed ? tookText(cell[2]) : cell[1], status: cell[0] };
    }
    if (kind === "clock") return { text: tookText(cell), live: cell[1] === null };
    if (kind === "age" && typeof cell === "number") return { text: cell ? ageText(cell) : "" };
    return { text: String(cell), live: kind === "age" };
  }

  /* The server's clock; the browser's may differ. */
  const nowMs = () => Date.now() + Pane.aheadMs;
  Pane.aheadMs = 0;

  function tookText([startMs, endMs]) {
    const seconds = Math.max(0, (endMs === null ? nowMs() : endMs) - startMs) / 1000;
    if (endMs === null) return clock(Math.floor(seconds)).padStart(5, "0");
    if (seconds >= 59.95) return clock(seconds);
    return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  }

  const AGES = [[60, 1, "s"], [3600, 60, "min"], [86_400, 3600, "h"], [14 * 86_400, 86_400, "d"],
    [60 * 86_400, 7 * 86_400, "wk"], [730 * 86_400, 30.44 * 86_400, "mo"],
    [Infinity, 365.25 * 86_400, "y"]];

  function ageText(atMs) {
    const seconds = Math.max(0, nowMs() - atMs) / 1000;
    if (seconds < 10) return "now";
    const [, size, unit] = AGES.find(([below]) => seconds < below);
    return `${Math.floor(seconds / size)} ${unit}`;
  }

  Object.assign(window.radt, { Pane, widthOf });
})();
