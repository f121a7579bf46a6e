/* The Compare page: zoom and cursor of all charts with the same x axis, the tooltip's
   content, and highlighted runs. */
"use strict";

(function () {
  const page = window.radt.compare;
  const { h, clock, number, setWindow, tip } = window.radt;
  const { nearest: placeOf } = tip;

  /* Ends of an axis as numbers. Those of a logarithmic axis are exponents of ten in Plotly. */
  const toUnits = (axis, end) => (axis.type === "log" ? 10 ** end : Number(end));
  const toAxis = (axis, value) => (axis.type === "log" ? Math.log10(value) : value);

  /* The key by which drawn charts share zoom and cursor. */
  const axisOf = ({ meta, spec }) =>
    !meta ? page.zoomOf(spec) : meta.x_metric ? page.OVER + meta.x_metric : meta.x;

  page.rangeOf = ({ xaxis }) => xaxis.range.map((end) => toUnits(xaxis, end));

  function setRange({ graph }, ends) {
    const range = ends.map((end) => toAxis(graph._fullLayout.xaxis, end));
    // A logarithmic axis has no position for 0, so the server determines where it begins.
    if (range.every(Number.isFinite))
      page.busy(graph, window.Plotly.relayout(graph, { "xaxis.range": range }));
  }

  page.link = (card) => {
    const { graph } = card;
    graph.on("plotly_relayout", (change) => {
      if (change["xaxis.autorange"]) {
        if (page.window(axisOf(card))) setWindow(axisOf(card), null);
        else setRange(card, card.range);
        return;
      }
      // A range drawn by the user arrives as two ends. A full range was set by the page itself and
      // is reported late: a live chart may have moved on by then.
      const range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (range[0] === undefined || range[1] === undefined) return;
      const axis = graph._fullLayout.xaxis;
      const ends = range.map((end) => toUnits(axis, end)).sort((a, b) => a - b);
      if (!ends.every(Number.isFinite) || ends[0] === ends[1]) return;
      const same = (one) => one && one[0] === ends[0] && one[1] === ends[1];
      if (same(page.window(axisOf(card))) || same(card.range)) return;
      zoomTo(card, ends, card);
    });
    if (card.linked) return; // the body stays when the graph is replaced
    card.linked = true;
    card.body.addEventListener("pointermove", (event) => track(card, event));
    card.body.addEventListener("pointerleave", clear);
    card.body.addEventListener("keydown", (event) => byKey(card, event));
  };

  /* Zoom the charts with the same axis at once with their current data, except for `done`.
     The server then sends full resolution. */
  function zoomTo(card, ends, done) {
    const x = axisOf(card);
    for (const other of page.drawn())
      if (other !== done && other.near && axisOf(other) === x) setRange(other, ends);
    setWindow(x, ends);
  }

  /* Effect of keys on the axis range: shifts of its start and end, as shares of the range. */
  const KEYS = {
    "+": [0.2, -0.2], "=": [0.2, -0.2], "-": [-1 / 3, 1 / 3],
    ArrowLeft: [-0.2, -0.2], ArrowRight: [0.2, 0.2],
  };

  function byKey(card, event) {
    const { key, ctrlKey, metaKey, altKey } = event;
    if (event.target !== card.body || !card.drawn || ctrlKey || metaKey || altKey) return;
    if (key === "0") return void setWindow(axisOf(card), null);
    if (!KEYS[key]) return;
    event.preventDefault();
    const { xaxis } = card.graph._fullLayout;
    const place_ = (range) => range.map((one) => toAxis(xaxis, one));
    const [now, drawn] = [page.window(axisOf(card)) || card.range, card.range].map(place_);
    const [start, end] = now.every(Number.isFinite) ? now : drawn;
    const whole = card.whole ? place_(card.whole) : [-Infinity, Infinity];
    const ends = KEYS[key].map((share, place) => [start, end][place] + share * (end - start));
    // Moving stops at the ends of the data.
    const by = Math.max(0, whole[0] - ends[0]) + Math.min(0, whole[1] - ends[1]);
    if (ends[1] - ends[0] >= whole[1] - whole[0]) setWindow(axisOf(card), null);
    else zoomTo(card, ends.map((one) => toUnits(xaxis, one + by)));
  }

  let frame = 0;

  function track(card, { clientX, clientY, buttons }) {
    if (frame) window.cancelAnimationFrame(frame);
    frame = window.requestAnimationFrame(() => {
      frame = 0;
      const layout = card.graph._fullLayout;
      if (!card.drawn || !layout || buttons) return clear();
      const { xaxis } = layout;
      const box = card.graph.getBoundingClientRect();
      const px = clientX - box.left - xaxis._offset;
      if (px < 0 || px > xaxis._length) return clear();
      const at = xaxis.p2c(px);
      const x = axisOf(card);
      for (const other of page.drawn()) {
        if (other.near && axisOf(other) === x) mark(other, at, other === card);
        else if (other.cursor) other.cursor.hidden = true;
      }
      show(card, at, { x: clientX, y: clientY, top: box.top });
      return undefined;
    });
  }

  function clear() {
    if (frame) window.cancelAnimationFrame(frame);
    frame = 0;
    for (const card of page.cards.values()) if (card.cursor) card.cursor.hidden = true;
    tip.hide();
    light(null);
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
      card.cursor = h("div", { class: "cursor", "aria-hidden": "true" }, card.values);
      card.body.append(card.cursor);
    }
    card.cursor.hidden = false;
    card.cursor.style.left = `${xaxis._offset + px}px`;
    card.cursor.style.top = `${yaxis._offset}px`;
    card.cursor.style.height = `${yaxis._length}px`;
    card.cursor.dataset.side = px > xaxis._length / 2 ? "left" : "right";
    const found = own ? [] : valuesAt(card, at).filter((one) => !one.second);
    card.values.hidden = !found.length;
    card.values.replaceChildren(
      ...found.slice(0, tip.MAX_ROWS)
        .map(({ line, value }) => h("span", {}, tip.ink(line.colour), number(value))),
      found.length > tip.MAX_ROWS ? h("span", {}, `+ ${found.length - tip.MAX_ROWS}`) : "");
  }

  function show(card, at, pointer) {
    const marked = markAt(card, pointer);
    const found = marked ? [] : valuesAt(card, at);
    const { yaxis, yaxis3 } = card.graph._fullLayout;
    const away = ({ value, second }) =>
      Math.abs(yaxis._offset + (second ? yaxis3 : yaxis).d2p(value) - (pointer.y - pointer.top));
    const nearest = found.reduce((best, one) => (best && away(best) <= away(one) ? best : one), null);
    light(card, nearest ? nearest.line.key : marked && marked.key);
    const { second: beside } = card.meta;
    const rows = found.map(({ line, value, band, second }) => ({
      colour: line.colour,
      name: line.short,
      of: beside && (second ? beside.metric : card.spec.metric),
      value: valueText(second ? beside : card.meta, value),
      note: band && `${number(band[0])} – ${number(band[1])}`,
    }));
    tip.show(pointer, {
      at: placeText(card, at),
      text: marked && marked.text,
      rows,
      nearest: rows[found.indexOf(nearest)],
      foot: nearest &&
        [...nearest.line.facts, nearest.partial ? "not all runs" : ""].filter(Boolean).join(" · "),
    });
  }

  const valueText = ({ signed, unit }, value) =>
    `${signed && value > 0 ? "+" : ""}${number(value)} ${unit}`.trimEnd();

  function placeText(card, at) {
    const [from, to] = page.rangeOf(card.graph._fullLayout);
    const x = axisOf(card);
    const { x_metric, x_factor, x_unit } = card.meta;
    if (x_metric) return `${x_metric} ${number(at * x_factor)} ${x_unit}`.trimEnd();
    const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10((to - from) / 100))));
    if (x === "wall") return page.timeText(at, to - from);
    if (x === "step") return `step ${Math.round(at).toLocaleString("en")}`;
    if (x === "epoch") return `epoch ${at.toFixed(2)}`;
    return clock(at, digits);
  }

  /* Return the mark of an epoch or span under the pointer, in the rows below the lines. */
  function markAt(card, pointer) {
    const { xaxis, yaxis2 } = card.graph._fullLayout;
    const py = pointer.y - pointer.top - yaxis2._offset;
    if (yaxis2._length < 4 || py < 0 || py > yaxis2._length) return null;
    const row = Math.round(yaxis2.p2d(py));
    const px = pointer.x - card.graph.getBoundingClientRect().left - xaxis._offset;
    let best = null;
    for (const { yaxis, text, x, y, meta } of card.graph._fullData || []) {
      if (yaxis !== "y2" || !text || y[0] !== row) continue;
      text.forEach((one, place) => {
        const away = Math.abs(xaxis.d2p(x[place]) - px);
        if (away < 8 && (!best || away < best.away)) best = { away, text: one, key: meta.key };
      });
    }
    return best;
  }

  let lit = [];
  function light(card, key) {
    for (const [path, width] of lit) path.style.strokeWidth = width;
    for (const one of document.querySelectorAll(".pick[data-lit]")) delete one.dataset.lit;
    lit = [];
    if (!key) return;
    for (const trace of card.graph._fullData || [])
      if (isLine(trace) && trace.meta.key === key)
        for (const path of card.graph.querySelectorAll(`.trace${trace.uid} .js-line`)) {
          lit.push([path, path.style.strokeWidth]);
          path.style.strokeWidth = "2.8px";
        }
    const line = card.meta.lines.find((one) => one.key === key) || { members: [] };
    for (const stem of [...key.split(/[/@]/, 1), ...line.members])
      for (const one of document.querySelectorAll(`.pick[data-key="${stem}"], .pick[data-unit="${stem}"]`))
        one.dataset.lit = "";
  }

  /* Return the time of day in the axis's time zone, which is that of the server. */
  page.timeText = (at, span) => {
    const card = page.drawn().find(({ meta }) => meta && Number.isFinite(meta.utc_offset_s));
    const moment = new Date((at + (card ? card.meta.utc_offset_s : 0)) * 1000);
    const options = { timeZone: "UTC", hour: "2-digit", minute: "2-digit", second: "2-digit" };
    if (span > 86_400) Object.assign(options, { day: "numeric", month: "short" });
    if (span < 60) options.fractionalSecondDigits = 2;
    return moment.toLocaleString("en-GB", options);
  };

  const isLine = ({ meta, yaxis, fill }) => meta && meta.key && yaxis !== "y2" && fill !== "toself";

  /* Return the value of each line at a position of the axis, from the drawn points, the
     highest first; lines of the second y axis come after those of the first. */
  function valuesAt(card, at) {
    const { lines, second } = card.meta || {};
    const known = new Map([...(lines || []), ...((second || {}).lines || [])]
      .map((one) => [one.key, one]));
    const found = new Map();
    for (const trace of card.graph._fullData || []) {
      const line = trace.meta && known.get(trace.meta.key);
      if (!line) continue;
      const isSecond = trace.yaxis === "y3";
      const id = `${isSecond} ${line.key}`;
      const entry = found.get(id) || { line, second: isSecond };
      if (trace.fill === "toself") entry.band = bandAt(trace, at);
      else if (isLine(trace)) {
        const place = placeOf(trace.x, at);
        const value = place < 0 ? NaN : Number(trace.y[place]);
        if (Number.isFinite(value)) Object.assign(entry, { value, partial: trace.meta.partial });
      }
      found.set(id, entry);
    }
    return [...found.values()].filter(({ value }) => value !== undefined)
      .sort((a, b) => a.second - b.second || b.value - a.value);
  }

  /* A band has one outline per part: its upper edge, then its lower edge backwards, then a
     gap. */
  function bandAt({ x, y }, at) {
    for (let start = 0; start < x.length;) {
      let end = start;
      while (end < x.length && Number.isFinite(x[end])) end++;
      const half = (end - start) / 2;
      const place = placeOf(x.slice(start, start + half), at);
      if (place >= 0) return [y[end - 1 - place], y[start + place]];
      start = end + 1;
    }
    return null;
  }

  const begins = (key, stem) =>
    key === stem || key.startsWith(`${stem}/`) || key.startsWith(`${stem}@`);

  /* The hovered item of the list: keys of its lines, and the keys that replace them if they
     are part of a workload's line. Null for none. */
  let pointed = null;

  page.highlight = (stems, otherwise) => {
    pointed = stems && { stems, otherwise };
    page.drawn().forEach(fade);
  };

  page.painted = (card) => {
    if (!page.window(axisOf(card))) card.whole = card.range;
    if (pointed) fade(card);
  };

  function fade(card) {
    const traces = card.graph._fullData || [];
    const members = new Map(card.meta.lines.map((line) => [line.key, line.members]));
    const means = (key, stem) => begins(key, stem) || (members.get(key) || []).includes(stem);
    const has = (stems) =>
      traces.some(({ meta }) => meta && meta.key && stems.some((one) => means(meta.key, one)));
    const stems = pointed && (has(pointed.stems) ? pointed.stems : pointed.otherwise);
    for (const trace of traces) {
      const key = trace.meta && trace.meta.key;
      if (!key) continue;
      const away = stems && !stems.some((one) => means(key, one));
      for (const group of card.graph.querySelectorAll(`.trace${trace.uid}, .fill${trace.uid}`))
        group.style.opacity = away ? "0.12" : "";
    }
  }
})();
