/* The Compare page: the controls above the charts, the list of metrics, the zoom. */
"use strict";

(function () {
  const { radt } = window;
  const { h, change, checkLine, clock, searchField, setPart } = radt;
  const page = radt.compare;
  const { icon } = page;

  const BANDS = [["confidence", "95 % interval"], ["deviation", "standard deviation"],
    ["range", "min–max"]];
  /* The initial weight, as in TensorBoard, and the sliders of the two ways to smooth. */
  const FIRST_EMA = 0.6;
  const SLIDERS = {
    smoothing_pct: { min: "0", max: "20", step: "0.5", label: "Smoothing in per cent of the x axis" },
    ema: { min: "0.01", max: "0.99", step: "0.01", label: "Weight of the exponential mean" },
  };
  const smoothedText = (name, value) =>
    name === "ema" ? value.toFixed(2) : page.smoothingText(value);
  let tools = null;

  page.select = (label, options, value, change) =>
    h("select", {
      "data-focus": label, "aria-label": label, onchange: (event) => change(event.target.value),
    }, optionElements(options, value));

  page.choice = (label, ...select) =>
    h("label", { class: "choice" }, h("span", {}, label), page.select(label, ...select));

  function optionElements(options, value) {
    return options.map(([key, text]) =>
      h("option", { value: key, selected: key === value }, text));
  }

  function setOptions(select, options, value) {
    const known = JSON.stringify([options, value]);
    if (select.known === known) return;
    select.known = known;
    select.replaceChildren(...optionElements(options, value));
    select.value = value;
  }

  page.baselines = () =>
    page.facts.units.flatMap((unit) => [
      ...(unit.runs.length > 1 && (unit.collocated || page.board().level === "workload")
        ? [[unit.pick, unit.name]] : []),
      ...unit.runs.map((run) => [run.pick, run.short]),
    ]);

  page.axes = () => {
    const found = new Set(["barrier", "start", "wall", page.board().x]);
    for (const card of page.cards.values()) for (const x of card.axes || []) found.add(x);
    return Object.entries(page.AXES).filter(([x]) => found.has(x));
  };

  page.smoothingText = (pct) => (pct ? `${pct} %` : "off");

  function build(holder) {
    const made = {};
    made.add = h("button", {
      class: "button add", id: "compare-add", "aria-haspopup": "dialog",
      "aria-expanded": "false",
      onclick: () => page.openPanel(made.add, "Metrics", metricPanel, "metrics"),
    }, icon("plus"), "Metric");
    const level = (value, text, title) => {
      const input = h("input", {
        type: "radio", name: "compare-level", value, onchange: () => page.setBoard("level", value),
      });
      return [input, h("label", { title }, input, h("span", {}, text))];
    };
    const levels = [
      level("auto", "Auto",
        "Workloads that are picked whole, if the experiment is about collocation; otherwise runs"),
      level("run", "Runs", "One line per run"),
      level("workload", "Workloads", "One line per workload"),
      level("group", "Groups", "The mean of repeats, or of runs with the same parameter"),
    ];
    made.levels = levels.map(([input]) => input);
    const changeX = (value) => page.setBoard("x", value || null);
    made.find = page.filterField();
    made.x = page.choice("x", [], "", changeX);
    made.by = page.choice("by", [], "", (value) => page.setBoard("group_by", value));
    made.band = page.choice("band", [], "", (value) => page.setBoard("band", value));
    made.smooth = page.choice("Smooth", [], "", (value) => {
      change((view) => setPart(view, "board", value === "ema"
        ? { ema: FIRST_EMA, smoothing_pct: null } : { ema: null }));
    });
    made.smoothing = h("input", {
      type: "range", "data-focus": "smooth",
      oninput: (event) => {
        const value = Number(event.target.value);
        const name = page.board().ema ? "ema" : "smoothing_pct";
        made.smoothed.textContent = smoothedText(name, value);
        clearTimeout(made.timer);
        made.timer = setTimeout(() => page.setBoard(name, value), 120);
      },
    });
    made.smoothed = h("output", {});
    made.relative = page.choice("Values", [], "", (value) => relate(value));
    made.baseline = page.choice("to", [], "", (value) => page.setBoard("baseline", value));
    const toggle = (name, text, title) => h("button", {
      class: "button", "aria-pressed": "false", title,
      onclick: () => page.setBoard(name, !page.board()[name]),
    }, text);
    made.robust = toggle("robust", "Ignore outliers",
      "Fit the y axis to the values without the lowest and highest 5 % of each line");
    made.mono = toggle("monochrome", "Mono", "One colour and different dashes, for print");
    holder.replaceChildren(
      made.add,
      made.find,
      h("fieldset", { class: "levels" }, h("legend", { class: "unseen" }, "Lines"),
        levels.map(([, label]) => label)),
      made.by,
      made.band,
      made.x,
      h("span", { class: "choice smooth" }, made.smooth, made.smoothing, made.smoothed),
      made.relative,
      made.baseline,
      made.robust,
      made.mono);
    return made;
  }

  /* Make values relative to the first workload or run, until another baseline is set. */
  function relate(value) {
    const [first] = page.baselines();
    const { baseline } = page.board();
    change((view) => setPart(view, "board", value === "off"
      ? { relative: null, baseline: null }
      : { relative: value, baseline: baseline || (first && first[0]) }));
  }

  function bar() {
    const holder = document.getElementById("compare-tools");
    if (!holder) return;
    if (!tools || !holder.contains(tools.add)) tools = build(holder);
    const board = page.board();
    for (const input of tools.levels) input.checked = input.value === board.level;
    setOptions(tools.x.querySelector("select"), [["", "automatic"], ...page.axes()], board.x || "");
    if (document.activeElement !== tools.find) tools.find.value = page.filtered();
    tools.by.hidden = tools.band.hidden = board.level !== "group";
    setOptions(tools.by.querySelector("select"), [["", "repeats"],
      ...page.facts.params.map((name) => [name, name])], board.group_by);
    setOptions(tools.band.querySelector("select"), BANDS, board.band);
    setOptions(tools.smooth.querySelector("select"), [["mean", "moving mean"], ["ema", "exponential"]],
      board.ema ? "ema" : "mean");
    const name = board.ema ? "ema" : "smoothing_pct";
    Object.assign(tools.smoothing, SLIDERS[name]);
    tools.smoothing.setAttribute("aria-label", SLIDERS[name].label);
    if (document.activeElement !== tools.smoothing || !tools.timer)
      tools.smoothing.value = board[name];
    tools.smoothed.textContent = smoothedText(name, board[name]);
    setOptions(tools.relative.querySelector("select"), Object.entries(page.RELATIVES),
      board.relative);
    tools.baseline.hidden = board.relative === "off";
    const baselines = page.baselines();
    if (board.baseline && !baselines.some(([pick]) => pick === board.baseline))
      baselines.unshift([board.baseline, "not shown"]);
    setOptions(tools.baseline.querySelector("select"), baselines, board.baseline || "");
    tools.robust.setAttribute("aria-pressed", String(board.robust));
    tools.mono.setAttribute("aria-pressed", String(board.monochrome));
    zoomed();
    notes();
    empty();
  }

  let wanted = "";

  function metricPanel() {
    const { metrics } = page.facts;
    const counts = new Map();
    for (const { metric } of page.charts()) counts.set(metric, (counts.get(metric) || 0) + 1);
    const rows = h("div", { class: "metric-rows", "data-scroll": "" });
    const none = h("p", { class: "none", hidden: true },
      metrics.length ? "No metric matches." : "The selected runs have no metrics yet.");
    const groups = new Map();
    for (const one of metrics) {
      if (!groups.has(one.group)) groups.set(one.group, []);
      groups.get(one.group).push(one);
    }
    for (const [group, found] of groups) {
      rows.append(h("section", { "data-group": group.toLowerCase() }, h("h3", {}, group),
        found.map((one) => {
          const count = counts.get(one.metric) || 0;
          const notes = [unitText(one.unit), count > 1 ? `${count} charts` : ""].filter(Boolean);
          return checkLine(one.metric, count > 0, (isShown) => toggle(one.metric, isShown), [
            h("span", { class: "metric-name" }, one.metric),
            h("span", { class: "metric-unit" }, notes.join(" · ")),
          ], {
            title: one.how,
            "data-words": [group, one.metric, unitText(one.unit), one.subtitle].join(" ").toLowerCase(),
          });
        })));
    }
    const search = searchField("Search metrics", wanted, (text) => {
      wanted = text;
      none.hidden = page.narrow(rows, wanted);
    }, {
      placeholder: `Search ${metrics.length.toLocaleString("en")} metrics`, autofocus: true,
      onkeydown: (event) => {
        if (event.key !== "Enter") return;
        const first = [...rows.querySelectorAll(".metric-row")].find((one) => !one.hidden);
        if (first) first.querySelector("input").click();
      },
    });
    const panel = h("div", { class: "metric-panel", onkeydown: arrows }, search, rows, none);
    none.hidden = page.narrow(rows, wanted);
    return panel;
  }

  const UNITS = { 1: "ratio", "1/s": "/s", By: "B", "By/s": "B/s", Cel: "°C" };
  const unitText = (unit) => UNITS[unit] || unit.replace(/[{}]/g, "");

  function toggle(metric, shown) {
    if (!shown) page.changeCharts((charts) => charts.filter((one) => one.metric !== metric));
    else if (page.charts().length >= page.MAX_CHARTS) page.say(`A page has at most ${page.MAX_CHARTS} charts`);
    else page.addCharts([metric]);
  }

  function arrows(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...event.currentTarget.querySelectorAll("input")]
      .filter((one) => one.offsetParent !== null);
    const next = all[all.indexOf(document.activeElement) + step];
    if (next) next.focus();
  }

  function rangeText(x, [start, end]) {
    const step = (end - start) / 100;
    const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step))));
    if (x === "barrier" || x === "start")
      return `${clock(start, digits)} – ${clock(end, digits)}`;
    if (x === "wall")
      return `${page.timeText(start, Infinity)} – ${page.timeText(end, end - start)}`;
    if (x.startsWith(page.OVER)) {
      const card = page.drawn().find(({ meta }) => meta && page.OVER + meta.x_metric === x);
      const { x_factor, x_unit } = card ? card.meta : { x_factor: 1, x_unit: "" };
      const ends = [start, end].map((one) => Number((one * x_factor).toPrecision(4)));
      return `${x.slice(page.OVER.length)} ${ends.join(" – ")} ${x_unit}`.trimEnd();
    }
    const text = (value) => value.toFixed(digits);
    return `${x} ${text(start)} – ${text(end)}`;
  }

  const zooms = () =>
    [...new Set([...page.cards.values()].map(({ spec }) => page.zoomOf(spec)))]
      .filter((x) => page.window(x));
  page.zoomText = () => zooms().map((x) => rangeText(x, page.window(x))).join(" · ");

  function zoomed() {
    const holder = document.getElementById("compare-zoom");
    const shown = zooms();
    const text = page.zoomText();
    holder.hidden = !shown.length;
    if (holder.known === text) return;
    holder.known = text;
    holder.replaceChildren(...(shown.length ? [
      h("span", { id: "zoom-text" }, `Zoom ${text} · full resolution`),
      h("button", {
        class: "quiet", id: "zoom-reset",
        onclick: () => change((view) =>
          setPart(view, "windows", Object.fromEntries(shown.map((x) => [x, null])))),
      }, "Reset"),
    ] : []));
  }

  page.zoomed = zoomed;

  function notes() {
    const holder = document.getElementById("compare-notes");
    const { trouble } = page;
    const texts = [...page.facts.notes, ...(trouble ? [trouble.cause, trouble.remedy] : [])];
    const text = texts.filter(Boolean).join(" · ");
    if (holder.textContent !== text) holder.textContent = text;
  }

  const automatic = (text, part) =>
    h("button", {
      class: "button", onclick: () => change((view) => { delete view[part]; }),
    }, text);
  const EMPTY = {
    runs: () => [
      (radt.view.picks || []).length ? "The selection is not in this store" : "Nothing is selected",
      "Select experiments, workloads or runs to compare, or show the newest ones.",
      h("a", { href: radt.address(), class: "button", "data-keep": true }, "Runs"),
      automatic("Show the newest runs", "picks"),
    ],
    charts: () => [
      "No charts", "Add charts with “+ Metric”, or let the dashboard choose.",
      automatic("Choose for me", "charts"),
    ],
    metrics: () => [
      "No values yet",
      "The selected runs have not recorded anything yet. Charts appear with the first values.",
    ],
  };

  function empty() {
    const holder = document.getElementById("compare-empty");
    const noRuns = !page.facts.units.length;
    const noCharts = !page.charts().length;
    const state = noRuns ? "runs" : noCharts ? (page.facts.metrics.length ? "charts" : "metrics") : "";
    page.root.dataset.empty = state;
    holder.hidden = !state;
    if (holder.known === state) return;
    holder.known = state;
    const [title, text, ...actions] = state ? EMPTY[state]() : [];
    holder.replaceChildren(...(state ? [h("h2", {}, title), h("p", {}, text), h("p", {}, actions)] : []));
  }

  page.renderers.push(bar);
})();
