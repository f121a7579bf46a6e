/* The page Report (frontend/pages/report.py): what its controls change of the view. */
"use strict";

(function () {
  const noUpdate = () => window.dash_clientside.no_update;

  /* Options are texts; an empty one is as good as none. Another order begins on the first page. */
  function choose(name, value, alsoFirstPage) {
    window.radt.change((view) => {
      const options = Object.assign({}, view.options);
      if (value) options[name] = value;
      else delete options[name];
      if (alsoFirstPage) delete options["report.page"];
      if (Object.keys(options).length) view.options = options;
      else delete view.options;
    });
  }

  /* Up, down, and back to the order of the experiment. */
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

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.radt = Object.assign(window.dash_clientside.radt || {}, {
    reportExperiment: (name) => {
      if (name && name !== window.radt.view.experiment)
        window.radt.change((view) => {
          view.experiment = name;
          const options = Object.assign({}, view.options);
          delete options["report.page"];
          delete options["report.picked"];
          view.options = options;
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
      choose("report.window", (text || "").trim());
      return noUpdate();
    },
    /* The switches as the view has them, whoever changed it. */
    reportControls: (view) => {
      if (!view) return Array(5).fill(noUpdate());
      const options = view.options || {};
      const on = (name) => options[name] === "1";
      const field = document.getElementById("report-window");
      /* While it is written in, it is the user's. */
      const window_ = document.activeElement === field ? noUpdate() : options["report.window"] || "";
      const switches = ["report.picked", "report.profiled", "report.overlap"].map(on);
      return [view.experiment || noUpdate(), ...switches, window_];
    },
    /* What the server set itself is no choice. */
    reportColumns: (columns, state) => {
      const known = (state && state.columns) || [];
      const same = columns && columns.length === known.length && columns.every((c) => known.includes(c));
      if (columns && !same) choose("report.columns", columns.join(",") || "-");
      return noUpdate();
    },
  });
})();
