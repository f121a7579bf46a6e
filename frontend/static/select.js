/* The Select page: search, three lists (pane.js), the basket.

   The rows come from the server (frontend/pages/select.py); the user's actions change the view,
   and the lists follow it. */
"use strict";

(function () {
  const { h, setText, setAttribute, swatch, refill, follow, change, setPart, send, noUpdate,
    Pane, widthOf } = window.radt;

  const OFF = 0;
  const ON = 1;
  const TYPING_PAUSE_MS = 200;
  const CLICK_LOST_MS = 10_000;
  const TITLES = { experiments: "Experiments", workloads: "Workloads", runs: "Runs" };
  const NAMES = Object.keys(TITLES);
  const HELP = [
    ["resnet26 \"two words\"", "anywhere in names, parameters, tags"],
    ["model:resnet", "part of a field, parameter or tag"],
    ["model=resnet26  model!=vit", "all of it; any other value"],
    ["batch-size>=64", "numbers: < <= > >="],
    ["status:failed,oom", "one of several values"],
    ["-host:bench-2", "not"],
    ["duration>10m  age<2d", "durations"],
    ["workload: run: device: host: collocation: listener: experiment:", "fields of every run"],
  ];

  /* The state of the page while it is shown. */
  let page = null;

  /* ---- the frame ----------------------------------------------------------------------------- */

  function build(root) {
    page = { root, view: {}, revision: null, n: 0, asked: null, answer: null, panes: {},
      steps: [], sentAt: null, tickN: 0, timer: null };
    page.search = h("input", {
      id: "select-search", type: "search", autocomplete: "off", spellcheck: "false",
      placeholder: "model:resnet26  batch-size>=64  status:finished", "aria-label": "Search runs",
      "aria-describedby": "select-count", oninput: typed, onkeydown: searchKey,
    });
    page.count = h("span", { id: "select-count", class: "select-count", role: "status" });
    page.chips = h("div", { class: "select-chips", role: "group", "aria-label": "Status" });
    page.problems = h("div", { class: "select-problems", role: "status", hidden: true });
    const help = h("details", { class: "select-help" },
      h("summary", { "aria-label": "Search syntax", title: "Search syntax" }, "?"),
      h("dl", {}, HELP.flatMap(([term, meaning]) => [h("dt", {}, term), h("dd", {}, meaning)])));
    const actions = { tick, tickAll, open, sort, move, ask };
    for (const name of NAMES) page.panes[name] = new Pane(name, TITLES[name], actions);
    page.basket = buildBasket();
    root.replaceChildren(
      h("div", { class: "select-bar" },
        h("div", { class: "select-field" }, page.search, help), page.chips, page.count),
      page.problems,
      h("div", { class: "select-panes" }, NAMES.map((name) => page.panes[name].section),
        page.basket.aside));
  }

  function buildBasket() {
    const basket = { known: "" };
    const button = (text, onclick, title) =>
      h("button", { class: "quiet", type: "button", onclick, title }, text);
    basket.count = h("span", { class: "select-note", role: "status" });
    basket.list = h("div", { class: "select-picks" });
    basket.notes = h("div", { class: "select-notes" });
    basket.problem = h("div", { class: "select-problem", role: "alert", hidden: true });
    basket.clear = button("Clear", () => pick([]));
    basket.automatic = button("Automatic", () => pick(null),
      "The newest workloads, and newer ones as they start");
    basket.keep = button("Keep these", () => pick(page.answer.basket.picks));
    basket.compare = h("a", { class: "select-compare", href: "/compare", onclick: follow },
      "Compare →");
    basket.aside = h("aside", { class: "select-basket", "aria-label": "Selection" },
      h("div", { class: "select-head" }, h("h2", {}, "Selection"), basket.count),
      basket.list,
      h("div", { class: "select-basket-foot" }, basket.problem, basket.notes,
        h("div", { class: "select-buttons" }, basket.clear, basket.automatic, basket.keep,
          basket.compare)));
    return basket;
  }

  /* ---- actions of the user ------------------------------------------------------------------- */

  function typed() {
    clearTimeout(page.timer);
    page.timer = setTimeout(search, TYPING_PAUSE_MS);
  }

  function search() {
    clearTimeout(page.timer);
    page.timer = null;
    const text = page.search.value;
    change((view) => {
      if (text) view.search = text;
      else delete view.search;
    });
  }

  function searchKey(event) {
    if (event.key === "Enter") return search();
    if (event.key === "Escape" && page.search.value) {
      page.search.value = "";
      search();
    } else if (event.key === "ArrowDown") page.panes.runs.grid.focus();
    else return undefined;
    return event.preventDefault();
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || !page || !page.root.isConnected) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    event.preventDefault();
    page.search.focus();
    page.search.select();
  });

  const setOption = (name, value) => change((view) => setPart(view, "options", { [name]: value }));

  function toggleStatus(value) {
    const { options = {} } = window.radt.view;
    const on = new Set((options["select.status"] || "").split(",").filter(Boolean));
    if (!on.delete(value)) on.add(value);
    setOption("select.status", [...on].join(","));
  }

  /* Ascending, descending, then the newest first again. */
  function sort(pane, { key }) {
    const next = { [key]: `-${key}`, [`-${key}`]: "" }[pane.sort] ?? key;
    setOption(pane.name === "runs" ? "select.sort" : `select.sort.${pane.name}`, next);
  }

  function move(pane, step) {
    const other = page.panes[NAMES[NAMES.indexOf(pane.name) + step]];
    if (other) other.grid.focus();
  }

  /* List the contents of an experiment or workload; tick a run. */
  function open(pane, row) {
    if (pane.name === "runs") tick(pane, row);
    else change((view) => {
      const isWorkload = pane.name === "workloads";
      view.experiment = isWorkload ? page.answer.experiment : row.id;
      delete view.workload;
      if (isWorkload && !row.focus) view.workload = row.id;
    });
  }

  function pick(picks) {
    page.steps = [];
    page.sentAt = null;
    showProblem("");
    change((view) => {
      if (picks === null) delete view.picks;
      else view.picks = picks;
    });
  }

  function tick(pane, row) {
    row.tick = row.tick === ON ? OFF : ON;
    // The clicked checkbox changes at once; the others follow from the server.
    if (pane.name === "workloads" && page.answer.workload && page.answer.workload.id === row.id)
      for (const run of page.panes.runs.rows.values()) run.tick = row.tick;
    paint();
    addStep({ picks: [row.pick], on: row.tick === ON });
  }

  const tickAll = (pane) => addStep({ all: pane.name, on: pane.tick !== ON, picks: [] });

  /* Clicks go to the server one after the other: each builds on the result of the last. */
  function addStep(step) {
    page.steps.push(step);
    if (page.sentAt === null || Date.now() - page.sentAt > CLICK_LOST_MS) sendSteps();
  }

  function sendSteps() {
    page.sentAt = Date.now();
    page.tickN += 1;
    page.sentCount = page.steps.length;
    send("select-tick", { n: page.tickN, steps: page.steps, picks: page.view.picks || [] });
  }

  function ticked(answer) {
    if (!page || !answer || answer.n !== page.tickN || page.sentAt === null) return;
    page.sentAt = null;
    page.steps = page.steps.slice(page.sentCount);
    showProblem(answer.problem);
    if (answer.picks) change((view) => { view.picks = answer.picks; });
    else ask(); // reset the checkboxes to the picks
    if (page.steps.length) {
      if (answer.picks) page.view = { ...page.view, picks: answer.picks };
      sendSteps();
    }
  }

  function showProblem(text) {
    page.basket.problem.hidden = !text;
    setText(page.basket.problem, text);
  }

  /* ---- requests ------------------------------------------------------------------------------ */

  /* The part of a view that the lists depend on. */
  function concern(view) {
    const options = Object.entries(view.options || {}).filter(([name]) => name.startsWith("select."));
    return JSON.stringify([view.picks ?? null, view.search || "", view.experiment || "",
      view.workload || "", options.sort()]);
  }

  function ask() {
    page.n += 1;
    page.asked = { concern: concern(page.view), revision: page.revision };
    const requests = Object.values(page.panes).map((pane) => [pane.name, pane.request()]);
    send("select-ask", { n: page.n, ...Object.fromEntries(requests) });
  }

  function followView(view, revision) {
    page.view = view;
    page.revision = revision;
    if (!page.answer) return;
    if (page.asked === null)
      page.asked = { concern: concern(view), revision: page.answer.revision };
    const isChanged = page.asked.concern !== concern(view);
    const isNews = revision && page.asked.revision !== revision && !revision.startsWith("!");
    if (isChanged || isNews) ask();
  }

  /* ---- drawing ------------------------------------------------------------------------------- */

  function draw(answer) {
    if (answer.n && answer.n < page.n) return; // a newer answer is pending
    page.answer = answer;
    Pane.aheadMs = answer.now_ms - Date.now();
    if (!answer.n) page.asked = null; // it came with the page
    else page.asked.revision = answer.revision;
    if (document.activeElement !== page.search && page.timer === null)
      page.search.value = answer.search;
    setText(page.count, answer.count);
    drawChips(answer.statuses);
    page.problems.hidden = !answer.problems.length;
    page.problems.replaceChildren(...answer.problems.map(({ typed: term, cause }) =>
      h("span", {}, h("code", {}, term), " ", cause)));
    const isNarrowed = answer.search || answer.statuses.some((one) => one.on);
    for (const name of NAMES)
      page.panes[name].draw(answer.panes[name], isNarrowed ? "No run matches." : "No runs yet.");
    drawHeads(answer);
    fitNames();
    drawBasket(answer);
    if (answer.partial) ask();
  }

  function drawChips(statuses) {
    const known = JSON.stringify(statuses);
    if (page.chipsKnown === known) return;
    page.chipsKnown = known;
    refill(page.chips, statuses.map(({ value, word, count, on }) =>
      h("button", {
        type: "button", class: "select-chip", "data-focus": value, "aria-pressed": String(on),
        onclick: () => toggleStatus(value),
      }, h("span", {}, word),
        h("span", { class: "select-chip-count" }, count.toLocaleString("en")))));
  }

  function drawHeads(answer) {
    for (const pane of Object.values(page.panes)) setText(pane.note, pane.total.toLocaleString("en"));
    const { runs } = page.panes;
    const more = answer.params_left_out;
    if (more) setText(runs.note, `${runs.note.textContent} · ${more} more parameters differ`);
    const known = JSON.stringify([answer.workload, answer.experiment, answer.query]);
    if (runs.linksKnown === known) return;
    runs.linksKnown = known;
    if (!answer.workload) return runs.links.replaceChildren();
    const { label } = answer.workload;
    return runs.links.replaceChildren(
      h("span", { class: "select-scope" }, h("span", {}, `of ${label}`),
        h("button", {
          type: "button", class: "quiet select-cross", title: "Runs of all workloads",
          "aria-label": `Show the runs of all workloads, not only of ${label}`,
          onclick: () => change((view) => { delete view.workload; }),
        }, "×")),
      h("a", { href: `/workload?${answer.query}`, onclick: follow }, "Open workload"));
  }

  /* Widen the list of experiments to fit their names, as far as the runs leave room. It never
     narrows again: what the user reads should not move. */
  const BESIDE_NAME_PX = 184;
  const MAX_NAMES_PX = 480;
  const ink = document.createElement("canvas").getContext("2d");

  function fitNames() {
    const { experiments: { grid, rows }, runs } = page.panes;
    const style = window.getComputedStyle(grid);
    ink.font = `${style.fontSize} ${style.fontFamily}`;
    let widest = 0;
    for (const { cells: [name] } of rows.values())
      widest = Math.max(widest, ink.measureText(name || "").width);
    const spare = Math.max(0, runs.grid.clientWidth - widthOf(runs.columns));
    const shown = grid.clientWidth;
    const next = Math.min(MAX_NAMES_PX, Math.ceil(widest) + BESIDE_NAME_PX, shown + spare);
    if (shown && next > shown + 1)
      page.root.style.setProperty("--select-experiments", `${next}px`);
  }

  function drawBasket(answer) {
    const { basket } = page;
    const { groups, automatic, count, notes, runs } = answer.basket;
    basket.compare.setAttribute("href", "/compare" + (answer.query ? "?" + answer.query : ""));
    const known = JSON.stringify(answer.basket);
    if (known === basket.known) return;
    basket.known = known;
    setText(basket.count, runs);
    basket.clear.hidden = automatic || !groups.length;
    basket.automatic.hidden = automatic;
    basket.keep.hidden = !automatic || !groups.length;
    setAttribute(basket.compare, "aria-disabled", !count && "true");
    basket.notes.replaceChildren(...notes.map((note) => h("div", {}, note)));
    const hint = !groups.length ? "Nothing is picked. Tick experiments, workloads or runs."
      : automatic ? "Picked automatically. Tick a box to pick yourself." : "";
    const top = basket.list.scrollTop;
    const kept = refill(basket.list,
      hint && h("p", { class: "select-automatic" }, hint),
      groups.map((group) => h("section", {},
        h("h3", { title: group.experiment }, group.experiment),
        h("ul", {}, group.entries.map((entry) => basketItem(entry, automatic))))));
    basket.list.scrollTop = top;
    if (!kept) (basket.list.querySelector("button") || basket.automatic).focus();
  }

  function basketItem(entry, automatic) {
    const { label, detail, missing } = entry;
    return h("li", { "data-missing": missing && "yes", title: `${label}  ${detail}` },
      entry.swatch && swatch("select-swatch", ...entry.swatch),
      h("span", { class: "select-label" }, label),
      h("span", { class: "select-detail" }, detail),
      !automatic && h("button", {
        type: "button", class: "quiet select-cross", "data-focus": entry.pick,
        "aria-label": `Remove ${label} ${detail}`, title: "Remove",
        onclick: () => pick(page.answer.basket.picks.filter((one) => one !== entry.pick)),
      }, "×"));
  }

  function paint() {
    for (const pane of Object.values(page.panes)) pane.paint();
  }

  /* Running times and ages go on without a request. */
  setInterval(() => {
    if (page && page.root.isConnected && !document.hidden && page.answer) paint();
  }, 1000);

  /* ---- callbacks ----------------------------------------------------------------------------- */

  function isShown() {
    const root = document.getElementById("select-root");
    if (root && (!page || page.root !== root || !root.firstChild)) build(root);
    return Boolean(root);
  }

  window.radt.register({
    selectDraw: (answer) => {
      if (answer && isShown()) draw(answer);
      return noUpdate();
    },
    selectFollow: (view, revision) => {
      if (view && isShown()) followView(view, revision);
      return noUpdate();
    },
    selectTicked: (answer) => {
      ticked(answer);
      return noUpdate();
    },
  });
})();
