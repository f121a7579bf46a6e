/* The Report page (frontend/pages/report.py): its controls, which change the view. */
"use strict";

(function () {
  const { change, checkLine, debounced, filled, h, option, post, setAttribute, setOptions, setPart, setText } = window.radt;
  const ASK_MS = 700, TYPING_MS = 500;
  const SWITCHES = { picked: "can_pick", profiled: "can_profile" };
  /* The value that each field last exchanged with the view, by option. */
  const known = {};
  /* The newest answer: columns of the table, and all measured quantities, as `[value,
     title]`. */
  let state = {};

  /* Set an option. Another order or filter starts on the first page. */
  const choose = (name, value, alsoFirstPage) =>
    setOptions({ [name]: value, ...(alsoFirstPage && { "report.page": null }) });

  /* Apply the option that the user sets with a field. */
  function fromField(name, text) {
    if (known[name] === text) return;
    known[name] = text;
    choose(name, text);
  }

  /* Show an option in its field. The user may have changed the field since this view, so set
     it only if the view's option was changed elsewhere. */
  function toField(name, set) {
    const text = option(name);
    if (known[name] === text) return;
    known[name] = text;
    set(text);
  }

  const isOn = (name) => option(name) === "1";

  function columnList() {
    const set = (value, on) => {
      state.columns = state.columns.filter((one) => one !== value).concat(on ? [value] : []);
      choose("report.columns", state.columns.join(",") || "-");
    };
    return state.measured.map(([value, title]) =>
      checkLine(value, state.columns.includes(value), (on) => set(value, on), h("span", {}, title)));
  }

  /* Cycle through ascending, descending, and the order of the experiment. */
  function sort(name) {
    const now = option("report.sort");
    const next = now === name ? "-" + name : now === "-" + name ? "" : name;
    choose("report.sort", next, true);
  }

  /* Show the server's progress in reading a report until it is complete. */
  let following = 0;
  async function follow(view) {
    const mine = ++following;
    for (let began = false; ; ) {
      await new Promise((done) => setTimeout(done, ASK_MS));
      const element = document.getElementById("report-progress");
      if (mine !== following || !element) return;
      const found = (await post("report/progress", { view }).catch(() => null)) || {};
      if (mine !== following) return;
      const isReading = found.of !== undefined;
      const waits = Boolean(element.closest("[data-follow]").asking);
      began = began || isReading;
      const count = (number) => number.toLocaleString("en");
      setText(element, isReading ? `Reading: ${count(found.read)} of ${count(found.of)} workloads`
        : waits && began ? "Computing the table" : "");
      if (!isReading && !waits) return;
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("#report-columns");
    if (button)
      window.radt.compare.openPanel(button, "Columns of the table", columnList, "report-column-list");
    const turned = event.target.closest("[data-report-switch]");
    if (turned) {
      const name = turned.dataset.reportSwitch;
      choose(name, isOn(name) ? "" : "1", name === "report.picked");
    }
    const head = event.target.closest("#report-table [data-sort]");
    if (head) sort(head.dataset.sort);
    const turn = event.target.closest("[data-report-page]");
    if (turn) {
      const page = Number(turn.dataset.reportPage);
      choose("report.page", page > 0 ? String(page) : "");
    }
  });

  const typed = debounced((text) => fromField("report.window", text.trim()), TYPING_MS);
  document.addEventListener("input", ({ target }) => {
    if (target.id === "report-window") typed(target.value);
  });

  document.addEventListener("choice", ({ target, detail }) => {
    if (target.id === "report-series") fromField("report.series", detail);
    else if (target.id === "report-experiment" && detail !== window.radt.view.experiment)
      change((view) => {
        view.experiment = detail;
        setPart(view, "options", { "report.page": null, "report.picked": null });
      });
  });

  /* Update the controls on every change of the view. */
  filled["report/data"] = (root, found) => {
    for (const button of root.querySelectorAll("[data-report-switch]"))
      button.setAttribute("aria-pressed", String(isOn(button.dataset.reportSwitch)));
    if (!found) return;
    state = found;
    const series = root.querySelector("#report-series");
    const experiment = root.querySelector("#report-experiment");
    setAttribute(series, "data-choices", JSON.stringify(state.suggested));
    setAttribute(experiment, "data-choices", JSON.stringify(state.experiments));
    setAttribute(experiment, "data-value", state.experiment);
    for (const [name, can] of Object.entries(SWITCHES))
      root.querySelector(`#report-${name}`).disabled = !state[can];
    const field = root.querySelector("#report-window");
    if (root !== shown) {
      shown = root;
      for (const name of Object.keys(known)) delete known[name];
    }
    toField("report.window", (text) => {
      field.value = text;
    });
    toField("report.series", (text) => {
      series.dataset.value = text;
    });
  };
  let shown = null;

  window.radt.asked["report/data"] = () => follow(window.radt.view);
})();
