/* The Compare page: zoom and cursor of all charts with the same x axis, and highlighted runs. */
"use strict";

(function () {
  const page = window.radt.compare;
  const { h, setWindow } = window.radt;
  const MAX_VALUES = 10;

  /* ---- zoom ---------------------------------------------------------------------------------- */

  /* Ends of an axis as numbers: dates are seconds since 1970 in addresses, texts in Plotly. */
  const toUnits = (axis, end) =>
    axis.type === "date"
      ? (typeof end === "number" ? end : Date.parse(`${end.replace(" ", "T")}Z`)) / 1000
      : Number(end);
  const toAxis = (axis, value) => (axis.type === "date" ? value * 1000 : value);

  const axisOf = (card) => (card.meta && card.meta.x) || page.of(card.spec).x;

  page.rangeOf = ({ xaxis }) => xaxis.range.map((end) => toUnits(xaxis, end));

  const setRange = ({ graph }, ends) =>
    page.busy(graph, window.Plotly.relayout(graph, {
      "xaxis.range": ends.map((end) => toAxis(graph._fullLayout.xaxis, end)),
    }));

  page.link = (card) => {
    const { graph } = card;
    graph.on("plotly_relayout", (change) => {
      if (change["xaxis.autorange"]) {
        if (page.window(axisOf(card))) setWindow(axisOf(card), null);
        else setRange(card, card.range);
        return;
      }
      // A range drawn by the user arrives as two ends. A whole range was set by the page itself and
      // is reported late: a live chart may have moved on by then.
      const range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (range[0] === undefined || range[1] === undefined) return;
      const axis = graph._fullLayout.xaxis;
      const ends = range.map((end) => toUnits(axis, end)).sort((a, b) => a - b);
      if (!ends.every(Number.isFinite) || ends[0] === ends[1]) return;
      const same = (one) => one && one[0] === ends[0] && one[1] === ends[1];
      const x = axisOf(card);
      if (same(page.window(x)) || same(card.range)) return;
      // The others follow at once with their present data; the server sends full resolution.
      for (const other of page.drawn())
        if (other !== card && other.near && axisOf(other) === x) setRange(other, ends);
      setWindow(x, ends);
    });
    if (card.linked) return; // the body stays when the graph is replaced
    card.linked = true;
    card.body.addEventListener("pointermove", (event) => track(card, event));
    card.body.addEventListener("pointerleave", clear);
  };

  /* ---- cursor -------------------------------------------------------------------------------- */

  let frame = 0;

  function track(card, event) {
    if (frame) window.cancelAnimationFrame(frame);
    const { clientX, buttons } = event;
    frame = window.requestAnimationFrame(() => {
      frame = 0;
      const layout = card.graph._fullLayout;
      if (!card.drawn || !layout || buttons) return clear();
      const axis = layout.xaxis;
      const px = clientX - card.graph.getBoundingClientRect().left - axis._offset;
      if (px < 0 || px > axis._length) return clear();
      const at = axis.p2c(px);
      const x = axisOf(card);
      for (const other of page.drawn()) {
        const own = other === card;
        // Plotly shows the position under the pointer, except times of day, which it lacks.
        if (other.near && axisOf(other) === x && (!own || x === "wall")) mark(other, at, own);
        else if (other.cursor) other.cursor.hidden = true;
      }
      return undefined;
    });
  }

  function clear() {
    if (frame) window.cancelAnimationFrame(frame);
    frame = 0;
    for (const card of page.cards.values()) if (card.cursor) card.cursor.hidden = true;
  }

  function mark(card, at, own) {
    const { xaxis, yaxis } = card.graph._fullLayout;
    const px = xaxis.c2p(at);
    if (!(px >= 0 && px <= xaxis._length)) {
      if (card.cursor) card.cursor.hidden = true;
      return;
    }
    if (!card.cursor) {
      card.values = h("div", { class: "cursor-values" });
      card.time = h("div", { class: "cursor-time" });
      card.cursor = h("div", { class: "cursor", "aria-hidden": "true" }, card.values, card.time);
      card.body.append(card.cursor);
    }
    card.cursor.hidden = false;
    card.cursor.style.left = `${xaxis._offset + px}px`;
    card.cursor.style.top = `${yaxis._offset}px`;
    card.cursor.style.height = `${yaxis._length}px`;
    card.cursor.dataset.side = px > xaxis._length / 2 ? "left" : "right";
    card.cursor.toggleAttribute("data-own", own);
    card.time.hidden = axisOf(card) !== "wall";
    if (!card.time.hidden) {
      const [from, to] = page.rangeOf(card.graph._fullLayout);
      card.time.textContent = page.timeText(at, to - from);
      // Keep the label inside the plot: there is no room beside it.
      const half = card.time.offsetWidth / 2;
      const middle = Math.min(Math.max(px, half), xaxis._length - half);
      card.time.style.left = `${middle - px - half}px`;
    }
    const found = own ? [] : valuesAt(card, at);
    card.values.hidden = !found.length;
    card.values.replaceChildren(
      ...found.slice(0, MAX_VALUES).map(({ colour, value }) => {
        const swatch = h("i", {});
        swatch.style.background = colour;
        return h("span", {}, swatch, value);
      }),
      found.length > MAX_VALUES ? h("span", {}, `+ ${found.length - MAX_VALUES}`) : "");
  }

  /* A time of day in the axis's time zone, which is that of the server. */
  page.timeText = (at, span) => {
    const card = page.drawn().find(({ meta }) => meta && Number.isFinite(meta.utc_offset_s));
    const moment = new Date((at + (card ? card.meta.utc_offset_s : 0)) * 1000);
    const options = { timeZone: "UTC", hour: "2-digit", minute: "2-digit", second: "2-digit" };
    if (span > 86_400) Object.assign(options, { day: "numeric", month: "short" });
    if (span < 60) options.fractionalSecondDigits = 2;
    return moment.toLocaleString("en-GB", options);
  };

  const number = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
    return String(Number(value.toPrecision(4)));
  };

  /* The value of each line at a position of the axis, from the drawn points. */
  function valuesAt(card, at) {
    const lines = new Map(((card.meta && card.meta.lines) || []).map((one) => [one.key, one]));
    const found = new Map();
    for (const trace of card.graph._fullData || []) {
      const key = trace.meta && trace.meta.key;
      const isLine = key && trace.yaxis !== "y2" && trace.fill !== "toself";
      if (!isLine || trace.hoverinfo === "skip" || !lines.has(key)) continue;
      const place = nearest(trace.x, at);
      const value = place < 0 ? NaN : Number(trace.y[place]);
      if (Number.isFinite(value))
        found.set(key, { colour: lines.get(key).colour, value: number(value), at: value });
    }
    return [...found.values()].sort((a, b) => b.at - a.at);
  }

  const plain = (x) => (typeof x === "string" ? Date.parse(`${x.replace(" ", "T")}Z`) : Number(x));

  function nearest(xs, at) {
    const last = xs ? xs.length - 1 : -1;
    if (last < 0 || at < plain(xs[0]) || at > plain(xs[last])) return -1;
    let [low, high] = [0, last];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (plain(xs[middle]) <= at) low = middle;
      else high = middle;
    }
    return at - plain(xs[low]) <= plain(xs[high]) - at ? low : high;
  }

  /* ---- runs ---------------------------------------------------------------------------------- */

  const begins = (key, stem) =>
    key === stem || key.startsWith(`${stem}/`) || key.startsWith(`${stem}@`);

  /* The hovered item of the list: keys of its lines, and the keys that replace them if they are
     part of a workload's line. Null for none. */
  let pointed = null;

  page.highlight = (stems, otherwise) => {
    pointed = stems && { stems, otherwise };
    page.drawn().forEach(fade);
  };

  page.painted = (card) => {
    if (pointed) fade(card);
  };

  function fade(card) {
    const traces = card.graph._fullData || [];
    const has = (stems) =>
      traces.some(({ meta }) => meta && meta.key && stems.some((one) => begins(meta.key, one)));
    const stems = pointed && (has(pointed.stems) ? pointed.stems : pointed.otherwise);
    for (const trace of traces) {
      const key = trace.meta && trace.meta.key;
      if (!key) continue;
      const away = stems && !stems.some((one) => begins(key, one));
      for (const group of card.graph.querySelectorAll(`.trace${trace.uid}, .fill${trace.uid}`))
        group.style.opacity = away ? "0.12" : "";
    }
  }
})();
