/* The page Report (frontend/pages/report.py): what its controls change of the view. */
"use strict";

(function () {
  const { change, setPart, noUpdate } = window.radt;
  /* The window that the field last gave to the view or took from it. */
  let fieldWindow;

  /* Set an option; another order or filter starts on the first page. */
  function choose(name, value, alsoFirstPage) {
    change((view) => {
      setPart(view, "options", { [name]: value });
      if (alsoFirstPage) setPart(view, "options", { "report.page": null });
    });
  }

  /* Ascending, descending, then the order of the experiment again. */
  function sort(name) {
    const now = (window.radt.view.options || {})["report.sort"] || "";
    const next = now === name ? "-" + name : now === "-" + name ? "" : name;
    choose("report.sort", next, true);
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
    reportPicked: (on) => {
      choose("report.picked", on ? "1" : "", true);
      return noUpdate();
    },
    reportProfiled: (on) => {
      choose("report.profiled", on ? "1" : "");
      return noUpdate();
    },
    reportOverlap: (on) => {
      choose("report.overlap", on ? "1" : "");
      return noUpdate();
    },
    reportWindow: (text) => {
      fieldWindow = (text || "").trim();
      choose("report.window", fieldWindow);
      return noUpdate();
    },
    /* The controls follow the view, whoever changed it. */
    reportControls: (view) => {
      if (!view) return Array(5).fill(noUpdate());
      const options = view.options || {};
      const on = (name) => options[name] === "1";
      const switches = ["report.picked", "report.profiled", "report.overlap"].map(on);
      /* The field may hold text that has not reached the view: the view's window goes there only
         if it was changed elsewhere. */
      const viewWindow = options["report.window"] || "";
      const fieldValue = viewWindow === fieldWindow ? noUpdate() : viewWindow;
      fieldWindow = viewWindow;
      return [view.experiment || noUpdate(), ...switches, fieldValue];
    },
    /* Columns that the server itself set are not the user's. */
    reportColumns: (columns, state) => {
      const known = (state && state.columns) || [];
      const same = columns && columns.length === known.length && columns.every((c) => known.includes(c));
      if (columns && !same) choose("report.columns", columns.join(",") || "-");
      return noUpdate();
    },
  });
})();
