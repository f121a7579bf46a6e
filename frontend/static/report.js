/* The Report page (frontend/pages/report.py): its controls, which change the view. */
"use strict";

(function () {
  const { change, h, post, setPart, setText, noUpdate, tip } = window.radt;
  const ASK_MS = 700;
  /* The value that each field last exchanged with the view, by option. */
  const known = {};
  /* The columns of the table, and all that were measured: `[value, title]`. */
  let columns = [];
  let measured = [];

  /* Set an option; another order or filter starts on the first page. */
  function choose(name, value, alsoFirstPage) {
    change((view) => {
      setPart(view, "options", { [name]: value });
      if (alsoFirstPage) setPart(view, "options", { "report.page": null });
    });
  }

  /* Take the option that the user sets with a field. */
  function fromField(name, text) {
    known[name] = text;
    choose(name, text);
    return noUpdate();
  }

  /* Return the text for a field. The user may have changed the field since this view, so it is set
     only if the view's option was changed elsewhere. */
  function toField(name, options) {
    const text = options[name] || "";
    if (known[name] === text) return noUpdate();
    known[name] = text;
    return text;
  }

  const isOn = (name) => (window.radt.view.options || {})[name] === "1";

  function columnList() {
    const set = (value, on) => {
      columns = columns.filter((one) => one !== value).concat(on ? [value] : []);
      choose("report.columns", columns.join(",") || "-");
    };
    return measured.map(([value, title]) => h("label", { class: "metric-row" },
      h("input", {
        type: "checkbox", checked: columns.includes(value), "data-focus": value,
        onchange: (event) => set(value, event.target.checked),
      }), h("span", {}, title)));
  }

  /* Ascending, descending, then the order of the experiment again. */
  function sort(name) {
    const now = (window.radt.view.options || {})["report.sort"] || "";
    const next = now === name ? "-" + name : now === "-" + name ? "" : name;
    choose("report.sort", next, true);
  }

  /* Show how far the server is with reading a report, until it has it. */
  let following = 0;
  async function follow(view) {
    const mine = ++following;
    for (let began = false; ; ) {
      await new Promise((done) => setTimeout(done, ASK_MS));
      const element = document.getElementById("report-progress");
      if (mine !== following || !element) return;
      const found = (await post("/report/progress", { view }).catch(() => null)) || {};
      if (mine !== following) return;
      const isReading = found.of !== undefined;
      const waits = Boolean(document.querySelector("#report-table .report-sketch"));
      began = began || isReading;
      const count = (number) => number.toLocaleString("en");
      setText(element, isReading ? `Reading: ${count(found.read)} of ${count(found.of)} workloads`
        : waits && began ? "Computing the table" : "");
      if (!isReading && !waits) return;
    }
  }

  /* The tooltip of the bar above or below the pointer. */
  let pointed = null;
  document.addEventListener("mousemove", (event) => {
    const plot = event.target.closest && event.target.closest(".report-chart .js-plotly-plot");
    if (!plot && pointed) tip.hide();
    pointed = plot;
    const { meta, xaxis } = (plot && plot._fullLayout) || {};
    if (!meta) return; // not yet drawn
    const at = xaxis.p2d(event.clientX - plot.getBoundingClientRect().left - xaxis._offset);
    const bar = xaxis.tickvals.findIndex((x) => Math.abs(x - at) < 0.5);
    if (bar < 0) tip.hide();
    else tip.show({ x: event.clientX, y: event.clientY }, meta.tips[bar]);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("#report-columns");
    if (button)
      window.radt.compare.openPanel(button, "Columns of the table", columnList, "report-column-list");
    const turned = event.target.closest("[data-report-switch]");
    if (turned) {
      const name = turned.dataset.reportSwitch;
      choose(name, isOn(name) ? "" : "1", name === "report.picked");
    }
    const head = event.target.closest("[data-report-sort]");
    if (head) sort(head.dataset.reportSort);
    const turn = event.target.closest("[data-report-page]");
    if (turn) {
      const page = Number(turn.dataset.reportPage);
      choose("report.page", page > 0 ? String(page) : "");
    }
  });

  window.radt.register({
    reportExperiment: (name) => {
      if (name && name !== window.radt.view.experiment)
        change((view) => {
          view.experiment = name;
          setPart(view, "options", { "report.page": null, "report.picked": null });
        });
      return noUpdate();
    },
    reportSeries: (texts) => fromField("report.series", texts),
    reportWindow: (text) => fromField("report.window", (text || "").trim()),
    reportState: (state) => {
      ({ columns, measured } = state);
      return noUpdate();
    },
    /* The controls follow every change of the view. */
    reportControls: (view) => {
      if (!view) return Array(3).fill(noUpdate());
      follow(view);
      const options = view.options || {};
      for (const button of document.querySelectorAll("[data-report-switch]"))
        button.setAttribute("aria-pressed", String(options[button.dataset.reportSwitch] === "1"));
      return [
        view.experiment || noUpdate(),
        toField("report.window", options),
        toField("report.series", options),
      ];
    },
  });
})();
