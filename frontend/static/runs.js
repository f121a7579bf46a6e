/* The Runs page: the bar with search and choices, and the ticked runs. runs_grid.js has the
   table, runs_columns.js the list of columns. The rows come from the server
   (frontend/pages/runs.py). The user's actions change the view, and the table follows it. */
"use strict";

(function () {
  const { radt } = window;
  const { h, setText, setAttribute, refill, address, follow, open, post, change, option, setOptions } = radt;

  const ON = 1;
  const OFF = 0;
  const TYPING_PAUSE_MS = 150;

  /* The state of the page while it is shown. */
  let page = null;

  /* ---- the frame ----------------------------------------------------------------------------- */

  /* The frame comes from the server (frontend/templates/runs.html). */
  function build(root) {
    page = { root, answer: null, toggled: new Set(), steps: [], sending: null, timer: null, setColumns };
    for (const element of root.querySelectorAll("[data-name]")) page[element.dataset.name] = element;
    Object.assign(page.search, { oninput: typed, onkeydown: searchKey });
    page.experiment.onchange = () => change((view) => {
      if (page.experiment.value) view.experiment = page.experiment.value;
      else delete view.experiment;
    });
    page.group.onchange = () => {
      page.toggled.clear();
      setOptions({ "runs.group": page.group.value === "workload" ? "" : page.group.value, "runs.open": "" });
    };
    page.fold.onclick = () => {
      page.toggled.clear();
      setOptions({ "runs.open": isOpen() ? "no" : "yes" });
    };
    page.columns.onclick = () => radt.chooseColumns(page);
    page.clear.onclick = () => pick([]);
    page.archive.onclick = archive;
    page.undo.onclick = undo;
    page.compare.onclick = compare;
    page.grid = new radt.Grid({ tick, tickAll, star, edit: editNotes, toggle, ask, sort, setColumns, setNameWidth });
    root.append(page.grid.element);
  }

  function fill(select, options, value) {
    const known = JSON.stringify(options);
    if (select.dataset.known !== known) {
      select.dataset.known = known;
      select.replaceChildren(...options.map(([key, text]) => h("option", { value: key }, text)));
    }
    select.value = value;
  }

  /* ---- user actions -------------------------------------------------------------------------- */

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
    } else if (event.key === "ArrowDown") page.grid.element.focus();
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

  function toggleStatus(value) {
    const on = new Set(option("runs.status").split(",").filter(Boolean));
    if (!on.delete(value)) on.add(value);
    setOptions({ "runs.status": [...on].join(",") });
  }

  /* Cycle through best first, worst first, and the default order, newest first. `add` keeps
     the columns by which the table is already sorted, even if it is not drawn yet. */
  function sort(column, add) {
    const sorted = option("runs.sort").split(",")
      .map((text) => ({ key: decodeURIComponent(text.replace(/^-/, "")), descending: text.startsWith("-") }))
      .filter(({ key }) => page.answer.columns.some((one) => one.key === key));
    const known = sorted.find((one) => one.key === column.key);
    const startsDown = column.better === "higher";
    let next = add ? sorted : sorted.filter((one) => one === known);
    if (!known) next.push({ key: column.key, descending: startsDown });
    else if (known.descending === startsDown) known.descending = !startsDown;
    else next = next.filter((one) => one !== known);
    setOptions({ "runs.sort": next.map(({ key, descending }) =>
      (descending ? "-" : "") + encodeURIComponent(key)).join(",") });
  }

  /* `columns` are pairs of key and width; null for the dashboard's choice. */
  function setColumns(columns) {
    change((view) => {
      const name = (view.columns || []).filter((text) => text.startsWith("run name~"));
      if (columns === null) delete view.columns;
      else view.columns = [...name, ...columns.map(([key, px]) => (px ? `${key}~${px}` : key))];
    });
  }

  function setNameWidth(px) {
    const columns = page.answer.columns.map(({ key, width_px: own }) => `${key}~${own}`);
    change((view) => { view.columns = px ? [`run name~${px}`, ...columns] : columns; });
  }

  const isOpen = () => (option("runs.open") || (option("runs.group") ? "no" : "yes")) !== "no";

  function toggle(row) {
    if (!page.toggled.delete(row.id)) page.toggled.add(row.id);
    ask();
  }

  function pick(picks) {
    page.steps = [];
    page.archived = null;
    showProblem("");
    change((view) => {
      if (picks.length) view.picks = picks;
      else delete view.picks;
    });
  }

  function tick(row) {
    row.tick = row.tick === ON ? OFF : ON;
    page.grid.paint(); // the clicked checkbox changes at once; the others follow from the server
    addStep(row.pick ? { picks: [row.pick], on: row.tick === ON }
      : { group: row.group, on: row.tick === ON });
  }

  /* Change notes of runs (notes.js). Users who may not change them get the reason. */
  async function edit(runs, change_) {
    try {
      await radt.editRuns(runs, change_);
      showProblem("");
      return true;
    } catch (error) {
      showProblem([error.cause, error.remedy].filter(Boolean).join(" "));
      return false;
    }
  }

  async function star(row) {
    if (await edit([row.run], { starred: !row.starred })) ask();
  }

  /* Open a run's notes at the item that was clicked: a tag, the description, or its name. */
  function editNotes(row, button, place) {
    const { key = "" } = page.answer.columns[place] || {};
    const at = key.startsWith("tag.") ? { tag: `${key.slice(4)}=${row.cells[place]}` }
      : { field: key === "description" ? "textarea" : ".notes-name" };
    radt.openNotes(button, row, at, (problem) => {
      showProblem(problem);
      ask();
    });
  }

  /* Archived runs are ticked no longer, until the user takes it back. */
  async function archive() {
    const { picks } = radt.view;
    const { runs } = page.answer.picked;
    if (!await edit(runs, { archived: true })) return;
    pick([]);
    page.archived = { runs, picks };
    drawPicked();
    page.undo.focus();
  }

  async function undo() {
    const { runs, picks } = page.archived;
    if (await edit(runs, { archived: false })) pick(picks);
  }

  const tickAll = () => addStep({ all: true, on: page.answer.tick !== ON });

  /* Clicks go to the server one after the other, as each depends on the result of the last. */
  async function addStep(step) {
    page.archived = null;
    page.steps.push(step);
    if (page.sending) return;
    const mine = page;
    mine.sending = true;
    while (mine.steps.length) {
      const steps = mine.steps.splice(0);
      const found = await post("runs/tick", { view: radt.view, steps,
        picks: radt.view.picks || [] }).catch(() => null);
      if (mine !== page || !mine.root.isConnected) return;
      showProblem(found ? found.refused : "The dashboard does not answer.");
      if (found && found.picks) change((view) => {
        if (found.picks.length) view.picks = found.picks;
        else delete view.picks;
      });
      else ask(); // reset the checkboxes to the picks
    }
    mine.sending = false;
  }

  function showProblem(text) {
    page.refused = text || "";
    drawPicked();
  }

  /* Compare the ticked runs, else the found runs, else the newest runs. */
  async function compare(event) {
    if (page.compare.dataset.found !== "yes") return follow(event);
    event.preventDefault();
    const found = await post("runs/found", { view: radt.view });
    if (found.query !== undefined) open(address("compare", found.query));
    return undefined;
  }

  /* ---- requests ------------------------------------------------------------------------------ */

  const ask = () => radt.fill(page.root);

  const isOf = (root) => page !== null && page.root === root;

  radt.asked["runs/rows"] = (root) =>
    (isOf(root) ? { toggled: [...page.toggled], ...page.grid.request() } : {});

  radt.filled["runs/rows"] = (root, found) => {
    const isNew = !isOf(root);
    if (isNew || found.parts["runs-frame"]) {
      if (!isNew) page.grid.element.remove(); // the frame of another version of the dashboard
      build(root);
    }
    draw(found);
  };

  /* Print all rows, up to the limit of one answer. The request is synchronous, because browsers
     wait for no other kind before they print. */
  window.addEventListener("beforeprint", () => {
    if (!page || !page.root.isConnected || !page.answer) return;
    const request = new XMLHttpRequest();
    request.open("POST", address("runs/rows"), false);
    request.setRequestHeader("Content-Type", "application/json");
    try {
      request.send(JSON.stringify({ view: radt.view, toggled: [...page.toggled],
        list: page.answer.list, start: 0, count: page.answer.total }));
      const { rows } = JSON.parse(request.responseText);
      if (rows) page.grid.print(rows);
    } catch {
      // The dashboard does not answer: paper gets the rows in sight.
    }
  });
  window.addEventListener("afterprint", () => page && page.grid.printed && page.grid.print(null));

  /* ---- drawing ------------------------------------------------------------------------------- */

  function draw(answer) {
    page.answer = answer;
    radt.Grid.aheadMs = answer.now_ms - Date.now();
    if (document.activeElement !== page.search && page.timer === null)
      page.search.value = answer.search;
    setText(page.count, answer.count);
    fill(page.experiment, [["", `All ${answer.experiments.length}`],
      ...answer.experiments.map(({ name, count }) => [name, `${name} (${count.toLocaleString("en")})`])],
      radt.view.experiment || "");
    page.experiment.parentElement.hidden = answer.experiments.length < 2;
    fill(page.group, answer.groups.map(({ key, label }) => [key, label]), answer.grouped_by);
    page.fold.hidden = answer.grouped_by === "none";
    setText(page.fold, isOpen() ? "Close all" : "Open all");
    drawChips(answer.statuses);
    page.problems.hidden = !answer.problems.length;
    page.problems.replaceChildren(...answer.problems.map(({ typed: term, cause }) =>
      h("span", {}, h("code", {}, term), " ", cause)));
    page.csv.href = address("runs/table.csv", answer.query);
    page.grid.draw(answer, answer.narrowed ? "No run matches." : "No runs yet.");
    drawPicked();
    if (page.columnsDrawn) page.columnsDrawn();
    if (answer.partial) ask();
  }

  function drawChips(statuses) {
    const known = JSON.stringify(statuses);
    if (page.chipsKnown === known) return;
    page.chipsKnown = known;
    refill(page.chips, statuses.map(({ value, word, count, on }) =>
      h("button", {
        class: "filter-chip", "data-focus": value, "aria-pressed": String(on),
        onclick: () => toggleStatus(value),
      }, h("span", {}, word), h("span", {}, count.toLocaleString("en")))));
  }

  function drawPicked() {
    const { picked, narrowed, query } = page.answer;
    const count = page.archived && page.archived.runs.length;
    const texts = page.refused ? [page.refused]
      : count ? [`${count} ${count === 1 ? "run" : "runs"} archived`] : [picked.text, ...picked.notes];
    page.undo.hidden = !count;
    setText(page.picked, texts.filter(Boolean).join(" · "));
    setAttribute(page.picked, "data-refused", page.refused && "yes");
    page.clear.hidden = !(radt.view.picks || []).length;
    page.archive.hidden = !picked.runs.length;
    const isFound = !picked.count && narrowed;
    setText(page.compare, picked.count ? "Compare ticked →"
      : isFound ? "Compare these →" : "Compare newest →");
    setAttribute(page.compare, "data-found", isFound && "yes");
    page.compare.setAttribute("href", address("compare", query));
    setAttribute(page.compare, "aria-disabled", isFound && !page.answer.total && "true");
  }

  /* Running times and ages advance without requests. */
  setInterval(() => {
    if (page && page.root.isConnected && !document.hidden && page.answer) page.grid.paint();
  }, 1000);
})();
