/* The Report page (frontend/pages/report.py): its controls, which change the view. */
"use strict";

(function () {
  const { change, post, setPart, setText, noUpdate } = window.radt;
  const ASK_MS = 700;
  /* The value that each control last exchanged with the view, by option. */
  const known = {};

  /* Set an option; another order or filter starts on the first page. */
  function choose(name, value, alsoFirstPage) {
    change((view) => {
      setPart(view, "options", { [name]: value });
      if (alsoFirstPage) setPart(view, "options", { "report.page": null });
    });
  }

  /* Take the option that the user sets with a control. */
  function fromControl(name, value, alsoFirstPage) {
    known[name] = value;
    choose(name, value, alsoFirstPage);
    return noUpdate();
  }

  function fromSwitch(name, on, alsoFirstPage) {
    return fromControl(name, on ? "1" : "", alsoFirstPage);
  }

  /* Return the value for a control. The user may have changed the control since this view, so it is
     set only if the view's option was changed elsewhere. */
  function toControl(name, value, shownAs) {
    if (known[name] === value) return noUpdate();
    known[name] = value;
    return shownAs(value);
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

  document.addEventListener("click", (event) => {
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
    reportPicked: (on) => fromSwitch("report.picked", on, true),
    reportProfiled: (on) => fromSwitch("report.profiled", on),
    reportOverlap: (on) => fromSwitch("report.overlap", on),
    reportSeries: (texts) => fromControl("report.series", (texts || []).map((text) => text.trim()).join(";")),
    reportWindow: (text) => fromControl("report.window", (text || "").trim()),
    /* The controls follow every change of the view. */
    reportControls: (view) => {
      if (!view) return Array(6).fill(noUpdate());
      follow(view);
      const options = view.options || {};
      const ofSwitch = (name) => toControl(name, options[name] === "1" ? "1" : "", (value) => value === "1");
      return [
        view.experiment || noUpdate(),
        ofSwitch("report.picked"),
        ofSwitch("report.profiled"),
        ofSwitch("report.overlap"),
        toControl("report.window", options["report.window"] || "", (value) => value),
        toControl("report.series", options["report.series"] || "", (value) =>
          value ? value.split(";").map((text) => text.trim()).filter(Boolean) : []),
      ];
    },
    /* Ignore columns that the server set: they are not the user's choice. */
    reportColumns: (columns, state) => {
      const known = (state && state.columns) || [];
      const same = columns && columns.length === known.length && columns.every((c) => known.includes(c));
      if (columns && !same) choose("report.columns", columns.join(",") || "-");
      return noUpdate();
    },
  });
})();
