/* The tooltip of all charts: values at a position of the x axis, beside the pointer, never
   below it. */
"use strict";

(function () {
  const { radt } = window;
  const { h } = radt;
  const MAX_ROWS = 10;
  const AWAY_PX = 20;

  const element = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  document.body.append(element);

  const ink = (colour) => h("i", { style: `background: ${colour}` });

  /* `at` is the position, `text` describes it, `rows` are values as texts in { colour, name,
     value, note, of }, one of which is the `nearest`; `foot` has details about that one. `of` is
     a heading above the rows that share it. */
  function show(pointer, { at, text, rows = [], nearest, foot }) {
    const first = Math.max(0, Math.min(rows.indexOf(nearest) - MAX_ROWS / 2, rows.length - MAX_ROWS));
    element.hidden = false;
    element.replaceChildren(
      at ? h("p", { class: "tip-at" }, at) : "",
      text ? h("p", {}, text) : "",
      h("table", {}, rows.slice(first, first + MAX_ROWS).flatMap((row, place, shown) => [
        row.of && (!place || row.of !== shown[place - 1].of)
          ? h("tr", { class: "tip-of" }, h("th", { colspan: 4 }, row.of)) : "",
        h("tr", { "data-nearest": row === nearest },
          h("td", {}, row.colour && ink(row.colour)),
          h("td", { class: "tip-name" }, row.name),
          h("td", {}, row.value),
          h("td", { class: "tip-dim" }, row.note || "")),
      ])),
      rows.length > MAX_ROWS ? h("p", { class: "tip-dim" }, `+ ${rows.length - MAX_ROWS} more`) : "",
      foot ? h("p", { class: "tip-dim" }, foot) : "");
    const fits = pointer.x + AWAY_PX + element.offsetWidth < window.innerWidth;
    element.style.left = `${fits ? pointer.x + AWAY_PX
      : Math.max(4, pointer.x - AWAY_PX - element.offsetWidth)}px`;
    const top = Math.min(pointer.y - element.offsetHeight / 2,
      window.innerHeight - element.offsetHeight - 8);
    element.style.top = `${Math.max(8, top)}px`;
  }

  function hide() {
    element.hidden = true;
  }

  /* Return the index of the nearest position in the sorted `xs`; -1 outside of them. */
  function nearest(xs, at) {
    const last = xs ? xs.length - 1 : -1;
    if (last < 0 || at < xs[0] || at > xs[last]) return -1;
    let [low, high] = [0, last];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= at) low = middle;
      else high = middle;
    }
    return at - xs[low] <= xs[high] - at ? low : high;
  }

  radt.tip = { MAX_ROWS, ink, show, hide, nearest };
})();
