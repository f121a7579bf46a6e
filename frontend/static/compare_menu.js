/* The Compare page: the settings of one chart, and how its values are obtained. */
"use strict";

(function () {
  const page = window.radt.compare;
  const { checkLine, h, searchField, swatch } = window.radt;

  const AS_PAGE = "";
  let wanted = "";

  page.openHow = (card) =>
    page.openPanel(card.how, "How the values are measured", () =>
      page.cards.get(card.slot) === card && card.explained.map((text) => h("p", {}, text)),
    "explained");

  page.openChartMenu = (card) => {
    wanted = "";
    page.openPanel(card.menu, `Settings of ${card.spec.metric}`, () => content(card), "settings");
  };

  function content(card) {
    if (page.cards.get(card.slot) !== card) return null;
    const { spec, slot } = card;
    const board = page.board();
    const change = (settings) => page.changeChart(slot, settings);
    const asPage = (text) => [AS_PAGE, `as page: ${text}`];
    const own = (value) => (value === undefined || value === null ? AS_PAGE : String(value));
    const set = (name) => (value) => change({ [name]: value === AS_PAGE ? null : value });

    const facts = page.metric(spec.metric) || {};
    const axes = card.axes || page.axes().map(([x]) => x);
    const baselines = page.baselines();
    const nameOf = (pick) => (baselines.find(([one]) => one === pick) || [pick, "not shown"])[1];
    const relative = page.of(spec).relative;
    const parts = [
      page.choice("Lines",
        [asPage(page.LEVELS[board.level]), ["auto", "auto"], ["run", "runs"],
          ["workload", "workloads"], ["group", "groups"]], own(spec.level), set("level")),
      page.choice("Runs of a workload",
        [["auto", `auto: ${facts.aggregate || "mean"}`], ["mean", "mean"], ["sum", "sum"]],
        spec.aggregate || "auto",
        (value) => change({ aggregate: value === "auto" ? null : value })),
      page.choice("x axis",
        [asPage(page.AXES[board.x] || "automatic"),
          ...Object.entries(page.AXES).filter(([x]) => axes.includes(x) || x === spec.x),
          ...others(spec, spec.over).map((metric) => [page.OVER + metric, `over ${metric}`])],
        spec.over ? page.OVER + spec.over : own(spec.x),
        (value) => change(value.startsWith(page.OVER)
          ? { x: null, over: value.slice(page.OVER.length) }
          : { x: value === AS_PAGE ? null : value, over: null })),
      page.choice("Smoothing",
        [asPage(page.smoothingText(board.smoothing_pct)),
          ...[0, 0.5, 1, 2, 5, 10, 20, spec.smoothing_pct]
            .filter((pct, place, all) => pct !== undefined && all.indexOf(pct) === place)
            .sort((a, b) => a - b).map((pct) => [String(pct), page.smoothingText(pct)])],
        own(spec.smoothing_pct),
        (value) => change({ smoothing_pct: value === AS_PAGE ? null : Number(value) })),
      page.choice("Values",
        [asPage(page.RELATIVES[board.relative]), ...Object.entries(page.RELATIVES)],
        own(spec.relative), (value) => change({
          relative: value === AS_PAGE ? null : value,
          baseline: value === "difference" || value === "ratio"
            ? spec.baseline || (board.baseline ? null : (baselines[0] || [null])[0])
            : null,
        })),
      relative === "off" ? "" : page.choice("Compared with",
        [asPage(board.baseline ? nameOf(board.baseline) : "nothing"), ...baselines],
        own(spec.baseline), set("baseline")),
      page.choice("Second y axis",
        [["", "none"], ...others(spec, spec.second).map((metric) => [metric, metric])],
        spec.second || "", (value) => change({ second: value || null })),
      h("div", { class: "choice" }, h("span", {}, "Log scale"),
        h("span", { class: "ticks" }, [["x", "log_x"], ["y", "log"]].map(([axis, name]) =>
          h("label", {}, h("input", {
            type: "checkbox", checked: Boolean(spec[name]), "data-focus": name,
            "aria-label": `Log scale of ${axis}`,
            onchange: (event) => change({ [name]: event.target.checked || null }),
          }), axis)))),
      yRange(card, change),
      size(card),
      lines(card, change),
      h("div", { class: "panel-foot" },
        page.special(spec).length ? action("Reset", () => reset(slot)) : "",
        action("Duplicate", () => duplicate(slot)),
        action("Remove", () => {
          window.radt.beside.close();
          page.changeCharts((charts) => charts.filter((one) => one.slot !== slot));
        }, `Remove ${spec.metric}`)),
    ];
    return h("div", { class: "settings-body" }, parts);
  }

  function others(spec, chosen) {
    const names = page.facts.metrics.map((one) => one.metric).filter((one) => one !== spec.metric);
    return chosen && !names.includes(chosen) ? [chosen, ...names] : names;
  }

  const action = (text, act, label) =>
    h("button", {
      class: "quiet", "data-focus": text, "aria-label": label, onclick: act,
    }, text);

  function reset(slot) {
    page.changeCharts((charts) =>
      charts.map((one) =>
        one.slot === slot
          ? Object.fromEntries(Object.entries(one).filter(([name]) =>
              ["metric", "slot", "columns", "rows"].includes(name)))
          : one));
  }

  function duplicate(slot) {
    page.changeCharts((charts) => {
      const place = charts.findIndex((one) => one.slot === slot);
      const free = page.freeSlot(charts);
      if (place < 0 || free === undefined) return;
      charts.splice(place + 1, 0, Object.assign(structuredClone(charts[place]), { slot: free }));
    });
  }

  /* A limit in the drawn unit. The view stores it in the stored unit. */
  function yRange(card, change) {
    const { spec } = card;
    const meta = card.meta || {};
    const factor = meta.factor || 1;
    const unit = meta.factor ? meta.unit : (page.metric(spec.metric) || {}).unit || "";
    const field = (name, label) =>
      h("input", {
        class: "field", type: "number", step: "any", placeholder: "auto", "data-focus": name,
        "aria-label": `${label} of the y axis`,
        value: spec[name] === undefined ? "" : Number((spec[name] * factor).toPrecision(12)),
        onchange: (event) => {
          const text = event.target.value.trim();
          const value = text === "" ? null : Number(text) / factor;
          const other = name === "y_min" ? spec.y_max : spec.y_min;
          const wrong = value !== null && other !== undefined &&
            (name === "y_min" ? value >= other : value <= other);
          event.target.setCustomValidity(wrong ? "The minimum must be below the maximum" : "");
          if (wrong) event.target.reportValidity();
          else change({ [name]: value });
        },
      });
    return h("div", { class: "choice" }, h("span", {}, `y from, to ${unit && `(${unit})`}`),
      h("span", { class: "pair" }, field("y_min", "Minimum"), field("y_max", "Maximum")));
  }

  function size(card) {
    const { spec, slot } = card;
    const { columns = 1, rows = 1 } = spec;
    const options = [["1", "1"], ["2", "2"], ["3", "3"]];
    const select = (label, value, set) =>
      page.select(label, options, String(value), (count) => set(Number(count)));
    return h("div", { class: "choice" }, h("span", {}, "Columns × rows"),
      h("span", { class: "pair" },
        select("Columns", columns, (count) => page.setSize(slot, count, rows)),
        select("Rows", rows, (count) => page.setSize(slot, columns, count))));
  }

  function lines(card, change) {
    const all = (card.meta && card.meta.lines) || [];
    if (!all.length) return "";
    const { spec } = card;
    const hidden = new Set(spec.hidden || []);
    const rows = h("div", { class: "line-rows", "data-scroll": "" }, all.map((line) => {
      const mark = swatch("swatch", line.colour, line.colour);
      page.dashed(mark, line.stroke);
      const show = (isShown) => {
        if (isShown) hidden.delete(line.key);
        else hidden.add(line.key);
        change({ hidden: hidden.size ? [...hidden] : null });
      };
      return checkLine(`line ${line.key}`, !hidden.has(line.key), show,
        [mark, h("span", { class: "metric-name" }, line.label)], { "data-words": line.label.toLowerCase() });
    }));
    page.narrow(rows, wanted);
    return h("div", { class: "lines" },
      h("div", { class: "lines-head" }, h("h3", {}, "Lines"),
        action("all", () => change({ hidden: null }), "Show all lines"),
        action("none", () => change({ hidden: all.map((line) => line.key) }), "Hide all lines")),
      all.length > 8 && searchField("Find a line", wanted, (text) => {
        wanted = text;
        page.narrow(rows, wanted);
      }),
      rows);
  }
})();
