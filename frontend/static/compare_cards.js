/* The Compare page: heads of charts, their order and size, by pointer and by keyboard. */
"use strict";

(function () {
  const page = window.radt.compare;
  const { drag, h, setText } = window.radt;
  const { icon } = page;

  const LEVELS = { auto: "auto", run: "runs", workload: "workloads", group: "groups" };
  const AXES = {
    barrier: "since barrier",
    start: "since run start",
    wall: "wall clock",
    step: "step",
    epoch: "epoch",
  };
  const RELATIVES = { off: "absolute", difference: "difference", ratio: "ratio" };
  Object.assign(page, { LEVELS, AXES, RELATIVES });

  const GAP_PX = 16;
  const LEAST_PX = 440;
  const MAX_SPAN = 3;
  const MAX_IN_ROW = 8;

  /* The settings of a chart that differ from the page's, as text and names to reset. */
  page.special = (spec) => {
    const found = [];
    const add = (text, names) => found.push({ text, names });
    if (spec.level) add(`by ${spec.level}`, ["level"]);
    if (spec.aggregate && spec.aggregate !== "auto") add(spec.aggregate, ["aggregate"]);
    if (spec.over) add(`over ${spec.over}`, ["over"]);
    else if (spec.x) add(AXES[spec.x], ["x"]);
    if (spec.log_x) add("log x", ["log_x"]);
    if (spec.second) add(`and ${spec.second}`, ["second"]);
    if (spec.smoothing_pct !== undefined)
      add(spec.smoothing_pct ? `smooth ${spec.smoothing_pct} %` : "not smoothed", ["smoothing_pct"]);
    if (spec.relative || spec.baseline)
      add(spec.relative ? RELATIVES[spec.relative] : "baseline", ["relative", "baseline"]);
    if (spec.log) add("log", ["log"]);
    if (spec.y_min !== undefined || spec.y_max !== undefined) add("y range", ["y_min", "y_max"]);
    if ((spec.hidden || []).length) add(`${spec.hidden.length} hidden`, ["hidden"]);
    return found;
  };

  page.dress = (card) => {
    const { slot } = card;
    card.title = h("h2", {});
    card.unit = h("span", { class: "unit" });
    card.subtitle = h("span", { class: "unit subtitle" });
    card.how = h("button", { class: "how", hidden: true }, "how");
    card.how.addEventListener("click", () => page.openHow(card));
    card.chips = h("span", { class: "chips" });
    card.grip = h("button", {
      class: "quiet square grip",
      title: "Drag or use the arrow keys to move",
      onkeydown: (event) => moveByKey(event, slot),
    }, icon("grip"));
    card.menu = h("button", {
      class: "quiet square",
      title: "Settings of this chart",
      "aria-haspopup": "dialog",
      onclick: () => page.openChartMenu(card),
    }, icon("more"));
    if (card.small) {
      card.menu = h("button", {
        class: "quiet square", title: "Show at the top, with settings of its own",
        onclick: () => page.addCharts([slot]),
      }, icon("pin"));
      card.head = h("header", { class: "card-head" }, card.title, card.unit, card.subtitle, card.how,
        h("span", { class: "push" }), card.menu);
      return;
    }
    card.head = h("header", { class: "card-head", onpointerdown: (event) => grab(event, card) },
      card.grip, card.title, card.unit, card.subtitle, card.how, card.chips,
      h("span", { class: "push" }), card.menu);
    card.corner = h("button", {
      class: "corner",
      title: "Drag or use the arrow keys to resize",
      onpointerdown: (event) => stretch(event, card),
      onkeydown: (event) => sizeByKey(event, slot),
    }, icon("corner"));
  };

  page.describe = (card) => {
    const { spec, meta } = card;
    const { metric } = spec;
    const facts = page.metric(metric) || {};
    card.element.dataset.metric = metric;
    setText(card.title, metric);
    card.title.title = metric;
    setText(card.unit, meta ? meta.unit : "");
    const subtitle = [
      meta && meta.aggregate ? `${meta.aggregate} of runs` : "",
      meta && meta.band,
      card.small ? "" : facts.subtitle,
    ].filter(Boolean).join(" · ");
    setText(card.subtitle, subtitle);
    card.subtitle.title = subtitle;
    const notes = (meta && meta.notes) || [];
    card.how.hidden = !facts.how && !notes.length;
    setText(card.how, notes.length ? `how · ${notes.length} note${notes.length > 1 ? "s" : ""}` : "how");
    card.explained = [facts.how, ...notes].filter(Boolean);
    card.how.setAttribute("aria-label", `How ${metric} is measured: ${card.explained.join(" ")}`);
    card.body.setAttribute("aria-label",
      `${metric}: plus and minus zoom, left and right move, 0 shows everything`);
    card.menu.setAttribute("aria-label",
      card.small ? `Show ${metric} at the top` : `Settings of ${metric}`);
    if (card.small) return;
    card.grip.setAttribute("aria-label", `Move ${metric}`);
    card.corner.setAttribute("aria-label",
      `Size of ${metric}: ${spec.columns || 1} by ${spec.rows || 1}`);
    const special = page.special(spec);
    const known = JSON.stringify(special);
    if (card.chipsKnown !== known) {
      card.chipsKnown = known;
      card.chips.replaceChildren(
        ...special.map(({ text, names }) =>
          h("button", {
            class: "chip",
            title: "Differs from the page; click to reset",
            "aria-label": `Reset ${text}`,
            onclick: () =>
              page.changeChart(card.slot, Object.fromEntries(names.map((one) => [one, null]))),
          }, text, icon("cross"))));
    }
    const style = card.element.style;
    if (!card.dragged) style.order = card.place;
    const columns = Math.min(spec.columns || 1, page.columns || 1);
    style.gridColumn = columns > 1 ? `span ${columns}` : "";
    style.gridRow = (spec.rows || 1) > 1 ? `span ${spec.rows}` : "";
  };

  /* Fit as many charts of equal width side by side as possible. A few charts share the whole
     width. */
  page.begun.push((root) => {
    const grid = root.querySelector(".charts");
    const measure = () => {
      const room = Math.floor((grid.clientWidth + GAP_PX) / (LEAST_PX + GAP_PX));
      const wanted = page.charts().reduce((sum, spec) => sum + (spec.columns || 1), 0);
      const columns = Math.min(MAX_IN_ROW, Math.max(1, room), Math.max(2, wanted));
      if (columns === page.columns && grid.style.getPropertyValue("--columns")) return;
      page.columns = columns;
      grid.style.setProperty("--columns", columns);
      page.cards.forEach(page.describe);
    };
    page.measure = measure;
    measure();
    new ResizeObserver(measure).observe(grid);
  });
  page.renderers.push(() => page.measure());

  function moved(order, slot, place) {
    const rest = order.filter((one) => one !== slot);
    rest.splice(Math.max(0, Math.min(place, rest.length)), 0, slot);
    return rest;
  }

  function reorder(order) {
    page.changeCharts((charts) => {
      const bySlot = new Map(charts.map((one) => [one.slot, one]));
      return order.map((slot) => bySlot.get(slot)).filter(Boolean);
    });
  }

  function moveByKey(event, slot) {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const order = page.charts().map((one) => one.slot);
    const place = order.indexOf(slot) + step;
    if (place < 0 || place >= order.length) return;
    reorder(moved(order, slot, place));
    page.say(`Chart ${place + 1} of ${order.length}`);
  }

  /* Until the card has been moved a little, a press on the head is a click. */
  function grab(event, card) {
    const onButton = event.target.closest("button");
    if (event.button !== 0 || (onButton && onButton !== card.grip)) return;
    const from = { x: event.clientX, y: event.clientY };
    const before = page.charts().map((one) => one.slot);
    let order = before;
    let began = false;

    const move = (at) => {
      if (!began) {
        if (Math.hypot(at.clientX - from.x, at.clientY - from.y) < 6) return;
        began = true;
        card.dragged = true;
        card.element.classList.add("dragged");
        document.documentElement.classList.add("dragging");
      }
      at.preventDefault();
      const under = document.elementsFromPoint(at.clientX, at.clientY)
        .map((one) => one.closest && one.closest("article[data-slot]"))
        .find((one) => one && one !== card.element);
      if (!under) return;
      const place = order.indexOf(Number(under.dataset.slot));
      const next = moved(order, card.slot, place);
      // Otherwise cards of different sizes would swap forever under a resting pointer.
      const box = under.getBoundingClientRect();
      const mine = card.element.getBoundingClientRect();
      const inReach =
        at.clientX >= box.left && at.clientX <= box.left + Math.min(box.width, mine.width) &&
        at.clientY >= box.top && at.clientY <= box.top + Math.min(box.height, mine.height);
      if (!inReach) return;
      order = next;
      order.forEach((slot, at_) => {
        const other = page.cards.get(slot);
        if (other) other.element.style.order = at_;
      });
    };
    drag(move, (isDropped) => {
      document.documentElement.classList.remove("dragging");
      card.dragged = false;
      card.element.classList.remove("dragged");
      if (isDropped && began && order.join() !== before.join()) reorder(order);
      else page.cards.forEach(page.describe);
    });
  }

  const span = (count) => Math.max(1, Math.min(MAX_SPAN, Math.round(count)));

  page.setSize = (slot, columns, rows) => {
    page.changeChart(slot, {
      columns: span(columns) > 1 ? span(columns) : null,
      rows: span(rows) > 1 ? span(rows) : null,
    });
    page.say(`${span(columns)} by ${span(rows)}`);
  };

  function sizeByKey(event, slot) {
    const change = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
    }[event.key];
    if (!change) return;
    event.preventDefault();
    const { columns = 1, rows = 1 } = page.cards.get(slot).spec;
    page.setSize(slot, columns + change[0], rows + change[1]);
  }

  function stretch(event, card) {
    if (event.button !== 0) return;
    event.preventDefault();
    card.corner.focus();
    const box = card.element.getBoundingClientRect();
    const { columns = 1, rows = 1 } = card.spec;
    const shown = Math.min(columns, page.columns);
    const wide = (box.width + GAP_PX) / shown;
    const high = (box.height + GAP_PX) / rows;
    let size = [columns, rows];
    document.documentElement.classList.add("dragging");
    card.element.classList.add("stretched");

    const move = (at) => {
      size = [
        span((at.clientX - box.left + GAP_PX) / wide),
        span((at.clientY - box.top + GAP_PX) / high),
      ];
      const style = card.element.style;
      style.gridColumn = `span ${Math.min(size[0], page.columns)}`;
      style.gridRow = `span ${size[1]}`;
    };
    drag(move, (isDropped) => {
      document.documentElement.classList.remove("dragging");
      card.element.classList.remove("stretched");
      page.describe(card);
      if (isDropped) page.setSize(card.slot, ...size);
    });
  }
})();
