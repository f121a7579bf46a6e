/* The Runs page: a table of any length that contains only the visible rows. Checkbox and name
   stay on the left.

   `actions` are the page's handlers: `tick(row)`, `tickAll()`, `star(row)`, `edit(row, button,
   index of a column)` for notes, `toggle(row)` for a group, `ask()` for rows, `sort(column,
   add)`, `setColumns([[key, width], …])`, `setNameWidth(px)`. */
"use strict";

(function () {
  const { drag, h, setText, setAttribute, swatch, clock } = window.radt;

  const ROW_PX = 24;
  const BOX_PX = 32;
  const NAME_PX = 208;
  const MIN_PX = 48;
  const MAX_PX = 800;
  const KEY_STEP_PX = 16;
  const DRAG_PX = 6;
  /* Number of rows requested, and drawn, beyond the visible ones. */
  const SPARE_ROWS = 40;
  const SPARE_DRAWN = 8;
  const MAX_ROWS = 400;
  const SCROLL_PAUSE_MS = 60;
  const ON = 1;
  const MIXED = 2;

  const checked = (tick) => (tick === MIXED ? "mixed" : String(tick === ON));
  const clipped = (width) => Math.round(Math.max(MIN_PX, Math.min(MAX_PX, width)));

  class Grid {
    constructor(actions) {
      Object.assign(this, { actions, list: null, total: 0, active: -1, columns: [],
        namePx: NAME_PX, rows: new Map(), drawn: new Map(), printed: 0 });
      this.head = h("div", { class: "runs-row runs-columns", role: "row", "aria-rowindex": 1 });
      this.body = h("div", { class: "runs-body", role: "rowgroup" });
      this.none = h("div", { class: "runs-none", hidden: true });
      this.element = h("div", {
        class: "runs-grid", id: "runs-grid", role: "treegrid", tabindex: 0, "aria-label": "Runs",
        "aria-multiselectable": "true",
        onscroll: () => this.scrolled(), onkeydown: (event) => this.key(event),
        onfocus: (event) => event.target === this.element && this.activate(Math.max(0, this.active)),
      }, h("div", { role: "rowgroup", class: "runs-columns-box" }, this.head), this.body, this.none,
        this.rest = h("p", { class: "runs-rest" }));
      this.all = h("span", {
        class: "runs-box", role: "checkbox", tabindex: 0, "aria-label": "All runs listed",
        title: "All runs listed", onclick: () => actions.tickAll(),
        onkeydown: (event) => {
          if (event.key !== " ") return;
          event.preventDefault();
          actions.tickAll();
        },
      });
      new ResizeObserver(() => this.paint()).observe(this.element);
    }

    /* ---- which rows ---------------------------------------------------------------------- */

    get first() {
      return Math.floor(this.element.scrollTop / ROW_PX);
    }

    get inSight() {
      return Math.ceil(this.element.clientHeight / ROW_PX) + 1;
    }

    /* Return the rows to request: the visible ones and some around them. */
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
        if (!this.element.isConnected) return;
        const last = Math.min(this.total, this.first + this.inSight);
        for (let index = this.first; index < last; index += 1)
          if (!this.rows.has(index)) return this.actions.ask();
      }, SCROLL_PAUSE_MS);
    }

    /* Draw the server's answer. */
    draw(sent, noneText) {
      const isSame = this.list === sent.list;
      Object.assign(this, { list: sent.list, total: sent.total, namePx: sent.name_px || NAME_PX });
      this.drawColumns(sent.columns);
      setAttribute(this.all, "aria-checked", checked(sent.tick));
      this.rows.clear();
      sent.rows.forEach((row, index) => this.rows.set(sent.start + index, row));
      this.body.style.height = `${this.total * ROW_PX}px`;
      this.element.setAttribute("aria-rowcount", this.total + 1);
      if (!isSame) {
        this.active = -1;
        this.element.scrollTop = 0;
      } else if (sent.shift) {
        // Rows were inserted before the visible ones, which keep their position.
        this.element.scrollTop += sent.shift * ROW_PX;
        if (this.active >= 0) this.active += sent.shift;
      }
      this.none.hidden = this.total > 0;
      setText(this.none, noneText);
      this.paint();
    }

    /* ---- the keyboard -------------------------------------------------------------------- */

    activate(index) {
      if (!this.total) return;
      this.active = Math.max(0, Math.min(this.total - 1, index));
      const top = this.active * ROW_PX;
      const room = this.element.clientHeight - 2 * ROW_PX; // below the column names
      if (top < this.element.scrollTop) this.element.scrollTop = top;
      else if (top > this.element.scrollTop + room) this.element.scrollTop = top - room;
      this.paint();
    }

    key(event) {
      if (event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = Math.max(1, this.inSight - 3);
      const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
      const row = this.rows.get(this.active);
      const isGroup = row && row.open !== undefined;
      if (event.key in steps) this.activate(Math.max(0, this.active) + steps[event.key]);
      else if (event.key === "Home") this.activate(0);
      else if (event.key === "End") this.activate(this.total - 1);
      else if (event.key === " " && row) this.actions.tick(row);
      else if (event.key === "s" && row && row.run) this.actions.star(row);
      else if (event.key === "F2" && row && row.run)
        this.actions.edit(row, this.drawn.get(this.active).querySelector(".runs-edit"));
      else if (event.key === "ArrowRight" && isGroup && !row.open) this.actions.toggle(row);
      else if (event.key === "ArrowLeft" && isGroup && row.open) this.actions.toggle(row);
      else if (event.key === "ArrowRight") this.element.scrollLeft += 80;
      else if (event.key === "ArrowLeft") this.element.scrollLeft -= 80;
      else if (event.key === "Enter" && row && row.href)
        this.drawn.get(this.active).querySelector(".runs-link").click();
      else if (event.key === "Enter" && isGroup) this.actions.toggle(row);
      else return;
      event.preventDefault();
    }

    /* ---- columns ------------------------------------------------------------------------- */

    drawColumns(columns) {
      const known = JSON.stringify([columns, this.namePx]);
      if (known === this.columnsKnown) return;
      this.columnsKnown = known;
      this.columns = columns;
      this.drawn.forEach((element) => element.remove());
      this.drawn.clear();
      this.element.setAttribute("aria-colcount", columns.length + 2);
      this.setTracks();
      window.radt.refill(this.head,
        h("span", { role: "columnheader", class: "runs-cell runs-stay", "aria-colindex": 1 },
          this.all),
        h("span", { role: "columnheader", class: "runs-cell runs-stay runs-name",
          "aria-colindex": 2 }, h("span", {}, "Run"), this.handle(-1)),
        columns.map((column, place) => this.columnHead(column, place)));
    }

    /* Set the column widths, with another width for a column that is being dragged. */
    setTracks(place, width) {
      const widths = [this.namePx, ...this.columns.map((column) => column.width_px)];
      if (place !== undefined) widths[place + 1] = width;
      const total = widths.reduce((sum, one) => sum + one, BOX_PX);
      const { style } = this.element;
      style.setProperty("--runs-tracks", [BOX_PX, ...widths].map((one) => `${one}px`).join(" "));
      style.setProperty("--runs-width", `${total}px`);
    }

    columnHead(column, place) {
      const order = column.sort ? (column.descending ? "descending" : "ascending") : undefined;
      const several = this.columns.filter((one) => one.sort).length > 1;
      const button = h("button", {
        "data-focus": column.key,
        title: `${column.title}\nClick to sort, Shift-click to sort by it as well. Drag to move. `
          + "Alt+← → moves, Shift+← → resizes, Delete removes.",
        // A click with detail 0 comes from the keyboard, so it does not end a drag.
        onclick: (event) => (this.moved && event.detail) || this.actions.sort(column, event.shiftKey),
        onpointerdown: (event) => this.drag(event, place),
        onkeydown: (event) => this.columnKey(event, place),
      }, h("span", {}, column.label), order && h("span", { class: "runs-order", "aria-hidden": "true" },
        (column.descending ? "↓" : "↑") + (several ? column.sort : "")));
      return h("span", {
        role: "columnheader", class: "runs-cell", "data-format": column.format,
        "aria-colindex": place + 3, "aria-sort": order,
      }, button, this.handle(place));
    }

    /* Return the resize handle at the right end of a column's heading. A double click resets
       the width. */
    handle(place) {
      const handle = h("span", { class: "runs-handle", "aria-hidden": "true" });
      const width = () => (place < 0 ? this.namePx : this.columns[place].width_px);
      handle.addEventListener("dblclick", () => this.resize(place, null));
      handle.addEventListener("pointerdown", (event) => {
        if (event.button) return;
        event.preventDefault();
        const [startX, startPx] = [event.clientX, width()];
        let px = startPx;
        drag((move) => {
          px = clipped(startPx + move.clientX - startX);
          this.setTracks(place, px);
        }, (isDropped) => {
          if (!isDropped) this.setTracks();
          else if (px !== startPx) this.resize(place, px);
        });
      });
      return handle;
    }

    resize(place, width) {
      if (place < 0) return this.actions.setNameWidth(width);
      // The next change may come before the server's answer to this one.
      if (width !== null) this.columns[place].width_px = width;
      return this.actions.setColumns(this.columns.map(({ key, width_px: own }, index) =>
        [key, index === place ? width : own]));
    }

    move(from, to) {
      const columns = this.columns.map(({ key, width_px: width }) => [key, width]);
      if (to < 0 || to >= columns.length || to === from) return;
      columns.splice(to, 0, ...columns.splice(from, 1));
      this.actions.setColumns(columns);
    }

    /* Drag a heading to another position. A press without movement stays a click. */
    drag(event, place) {
      this.moved = false;
      if (event.button) return;
      const heads = [...this.head.children].slice(2);
      const startX = event.clientX;
      let target = place;
      drag((move) => {
        if (!this.moved && Math.abs(move.clientX - startX) < DRAG_PX) return;
        this.moved = true;
        target = heads.findIndex((one) => move.clientX < one.getBoundingClientRect().right);
        if (target < 0) target = heads.length - 1;
        heads.forEach((one, index) => setAttribute(one, "data-drop",
          index === target && index !== place && (index < place ? "before" : "after")));
      }, (isDropped) => {
        heads.forEach((one) => setAttribute(one, "data-drop", null));
        // Headings that were drawn anew meanwhile may be of other columns.
        if (isDropped && this.moved && heads[0].isConnected) this.move(place, target);
      });
    }

    columnKey(event, place) {
      const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (side && event.altKey) this.move(place, place + side);
      else if (side && event.shiftKey)
        this.resize(place, clipped(this.columns[place].width_px + side * KEY_STEP_PX));
      else if (event.key === "Delete")
        this.actions.setColumns(this.columns.filter((_, index) => index !== place)
          .map(({ key, width_px: width }) => [key, width]));
      else return;
      event.preventDefault();
    }

    /* ---- rows ---------------------------------------------------------------------------- */

    /* Draw the rows for paper; with null, those for the screen again. */
    print(rows) {
      if (rows) {
        this.scrolledTo = this.element.scrollTop;
        rows.forEach((row, index) => this.rows.set(index, row));
      }
      this.printed = rows ? rows.length : 0;
      this.body.style.height = `${(this.printed || this.total) * ROW_PX}px`;
      if (!rows) this.element.scrollTop = this.scrolledTo;
      setText(this.rest, rows && rows.length < this.total && `The first ${rows.length} of `
        + `${this.total.toLocaleString("en")} rows. The CSV file has all of them.`);
      this.paint();
    }

    /* Draw the visible rows from the received data. The rest of the table is only a height. */
    paint() {
      const first = this.printed ? 0 : Math.max(0, this.first - SPARE_DRAWN);
      const last = this.printed || Math.min(this.total, first + this.inSight + 2 * SPARE_DRAWN);
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
      setAttribute(this.element, "aria-activedescendant", active ? active.id : null);
    }

    newRow(index) {
      const arrow = h("span", { class: "runs-arrow", "aria-hidden": "true" });
      const name = h("a", { class: "runs-link", tabindex: -1, "data-keep": "yes" });
      const edit = h("button", {
        class: "runs-edit", tabindex: -1, "aria-label": "Edit name, notes and tags",
        title: "Edit name, notes and tags (F2)",
        onfocus: () => this.element.focus({ preventScroll: true }),
      }, "✎");
      const element = h("div", {
        class: "runs-row", role: "row", id: `runs-row-${index}`, "aria-rowindex": index + 2,
        onclick: (event) => {
          const row = this.rows.get(index);
          if (!row || event.defaultPrevented || event.target.closest("a[href]")) return;
          this.active = index;
          if (element.firstChild.contains(event.target)) this.actions.tick(row);
          else if (event.target.matches(".runs-star")) this.actions.star(row);
          else if (event.target.matches(".runs-edit")) this.actions.edit(row, event.target);
          else if (row.open !== undefined) this.actions.toggle(row);
          else this.paint();
        },
        ondblclick: (event) => {
          const row = this.rows.get(index);
          const cell = event.target.closest(".runs-cell");
          const place = [...element.children].indexOf(cell) - 2;
          if (row && row.run && !cell.matches(".runs-stay:first-child") && !event.target.closest("a, button, .runs-star"))
            this.actions.edit(row, edit, place);
        },
      },
        h("span", { role: "gridcell", class: "runs-cell runs-stay" },
          h("span", { class: "runs-box", role: "checkbox" })),
        h("span", { role: "rowheader", class: "runs-cell runs-stay runs-name" }, arrow,
          swatch("runs-swatch", "", ""), name, h("span", { class: "runs-detail" }), h("span", { class: "runs-star" }), edit),
        this.columns.map((column) =>
          h("span", { role: "gridcell", class: "runs-cell", "data-format": column.format })));
      element.style.transform = `translateY(${index * ROW_PX}px)`;
      return element;
    }

    fillRow(element, index) {
      const row = this.rows.get(index);
      setAttribute(element, "data-active", index === this.active && "yes");
      setAttribute(element, "data-loading", !row && "yes");
      const box = element.firstChild.firstChild;
      setAttribute(box, "aria-checked", checked(row ? row.tick : 0));
      if (!row) return;
      const isGroup = row.open !== undefined;
      setAttribute(element, "title", row.title);
      setAttribute(element, "aria-level", row.level);
      setAttribute(element, "aria-expanded", isGroup ? String(row.open) : null);
      setAttribute(element, "aria-selected", String(row.tick === ON));
      setAttribute(box, "aria-label", row.title);
      const [arrow, line, name, detail, star, edit] = element.children[1].children;
      setText(arrow, isGroup ? "▸" : "");
      line.hidden = !row.swatch;
      if (row.swatch) {
        line.style.setProperty("--light", row.swatch[0]);
        line.style.setProperty("--dark", row.swatch[1]);
      }
      setText(name, row.name);
      setAttribute(name, "href", row.href);
      setText(detail, row.detail);
      setText(star, row.run ? (row.starred ? "★" : "☆") : "");
      setAttribute(star, "data-on", row.starred && "yes");
      edit.hidden = !row.run;
      setAttribute(star, "title", row.starred ? "Take the star away" : "Give a star");
      this.columns.forEach((column, place) => {
        const cell = element.children[place + 2];
        const missing = row.missing && row.missing[place];
        const { text, status, live } = formatted(row.cells[place], column.format);
        setText(cell, missing ? "–" : text);
        setAttribute(cell, "data-status", status);
        setAttribute(cell, "data-live", live && "yes");
        const isBest = row.best && row.best.includes(place);
        setAttribute(cell, "data-best", isBest && "yes");
        setAttribute(cell, "data-missing", missing && "yes");
        setAttribute(cell, "title", missing || (isBest && `Best value: the ${
          column.better === "lower" ? "lowest" : "highest"} of the runs listed`));
      });
    }
  }

  /* ---- cells (`Format` in frontend/data/run_columns.py) -------------------------------------- */

  function formatted(cell, format) {
    if (cell === null || cell === undefined) return { text: "" };
    if (typeof cell === "string") return { text: cell };
    if (format === "status") return { text: cell[1], status: cell[0] };
    if (format === "clock") return { text: takenText(cell), live: true };
    if (format === "age") return { text: cell ? ageText(cell) : "" };
    return { text: String(cell) };
  }

  /* The server's clock, as the browser's may differ. */
  const nowMs = () => Date.now() + Grid.aheadMs;
  Grid.aheadMs = 0;

  function takenText(startMs) {
    const seconds = Math.max(0, nowMs() - startMs) / 1000;
    return clock(Math.floor(seconds)).padStart(5, "0");
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

  window.radt.Grid = Grid;
})();
