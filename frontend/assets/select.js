/* The page Select: search, three lists of which only the rows in sight exist, the basket.

   What is listed comes from the server (frontend/pages/select_answer.py); what the user does
   changes the view (`radt.change`), and the lists follow it. All texts are set as text. */
"use strict";

(function () {
  const ROW_PX = 24;
  const GAP_PX = 12;
  const SPARE_ROWS = 40;
  const SCROLL_PAUSE_MS = 60;
  const TYPING_PAUSE_MS = 200;
  const CLICK_LOST_MS = 10_000;
  const MAX_COUNT = 400;
  const PANES = ["experiments", "workloads", "runs"];
  const TITLES = { experiments: "Experiments", workloads: "Workloads", runs: "Runs" };
  const OFF = 0, ON = 1, MIXED = 2;
  const HELP = [
    ["resnet26 \"two words\"", "anywhere in names, parameters, tags"],
    ["model:resnet", "a field, parameter or tag has it"],
    ["model=resnet26  model!=vit", "it is all of it, or is another one"],
    ["batch-size>=64", "numbers: < <= > >="],
    ["status:failed,oom", "one of several"],
    ["-host:bench-2", "not"],
    ["duration>10m  age<2d", "lengths of time"],
    ["workload: run: device: host: collocation: listener: experiment:", "what radt knows"],
  ];

  const noUpdate = () => window.dash_clientside.no_update;
  const send = (id, data) => window.dash_clientside.set_props(id, { data });

  /* All that belongs to the page while it is shown. */
  let page = null;

  function h(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== null && value !== false)
        element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function setAttribute(element, name, value) {
    if (value === undefined || value === null || value === false || value === "")
      element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }

  /* -- texts -------------------------------------------------------------------------------- */

  const two = (number) => String(number).padStart(2, "0");

  function clock(seconds, fixed) {
    if (!fixed && seconds < 59.95) {
      const digits = seconds < 1 ? 2 : seconds < 9.995 ? 2 : 1;
      return seconds.toFixed(digits) + " s";
    }
    const whole = fixed ? Math.floor(seconds) : Math.round(seconds);
    const hours = Math.floor(whole / 3600);
    const minutes = Math.floor(whole / 60) % 60;
    if (hours) return `${hours}:${two(minutes)}:${two(whole % 60)}`;
    return `${fixed ? two(minutes) : minutes}:${two(whole % 60)}`;
  }

  function ago(seconds) {
    const steps = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [86400 * 14, 86400, "d"],
      [86400 * 60, 86400 * 7, "wk"], [86400 * 730, 86400 * 30.44, "mo"]];
    if (seconds < 10) return "now";
    for (const [below, size, unit] of steps)
      if (seconds < below) return `${Math.floor(seconds / size)} ${unit}`;
    return `${Math.floor(seconds / (86400 * 365.25))} y`;
  }

  const serverNowMs = () => Date.now() + page.aheadMs;

  function cellText(cell, kind) {
    if (cell === null || cell === undefined) return "";
    if (kind === "status") return cell[1];
    if (kind === "outcome") {
      const timed = cell[2] && (cell[0] === "FINISHED" || cell[0] === "RUNNING");
      return timed ? cellText(cell[2], "clock") : cell[1];
    }
    if (kind === "clock") {
      const running = cell[1] === null;
      const seconds = Math.max(0, (running ? serverNowMs() : cell[1]) - cell[0]) / 1000;
      return clock(seconds, running);
    }
    if (kind === "age" && typeof cell === "number")
      return cell ? ago(Math.max(0, serverNowMs() - cell) / 1000) : "";
    return String(cell);
  }

  /* -- the frame of the page ---------------------------------------------------------------- */

  function build(root) {
    page = {
      root, view: {}, revision: null, n: 0, asked: null, aheadMs: 0, answer: null,
      panes: {}, steps: [], sent: null, tickN: 0, timer: null,
    };
    page.search = h("input", {
      id: "select-search", type: "search", autocomplete: "off", spellcheck: "false",
      placeholder: "model:resnet26  batch-size>=64  status:finished", "aria-label": "Search runs",
      "aria-describedby": "select-count", oninput: typed, onkeydown: searchKey,
    });
    page.count = h("span", { id: "select-count", class: "select-count", role: "status" });
    page.chips = h("div", { class: "select-chips", role: "group", "aria-label": "States" });
    page.problems = h("div", { class: "select-problems", role: "status", hidden: true });
    const help = h("details", { class: "select-help" },
      h("summary", { "aria-label": "How to search", title: "How to search" }, "?"),
      h("dl", {}, ...HELP.flatMap(([what, means]) => [h("dt", {}, what), h("dd", {}, means)])));
    for (const name of PANES) page.panes[name] = buildPane(name);
    page.basket = buildBasket();
    root.replaceChildren(
      h("div", { class: "select-bar" },
        h("div", { class: "select-field" }, page.search, help), page.chips, page.count),
      page.problems,
      h("div", { class: "select-panes" }, ...PANES.map((name) => page.panes[name].section),
        page.basket.aside));
    for (const pane of Object.values(page.panes)) new ResizeObserver(() => {
      if (pane.sent) drawColumns(pane);
      paint(pane);
    }).observe(pane.grid);
  }

  function buildPane(name) {
    const pane = {
      name, list: null, total: 0, columns: [], columnsText: "", rows: new Map(), drawn: new Map(),
      active: -1, sort: "", tick: OFF, sent: null,
    };
    pane.note = h("span", { class: "select-note" });
    pane.links = h("span", { class: "select-links" });
    pane.head = h("div", { class: "select-row select-columns", role: "row", "aria-rowindex": 1 });
    pane.body = h("div", { class: "select-body", role: "rowgroup" });
    pane.none = h("div", { class: "select-none", hidden: true });
    pane.grid = h("div", {
      class: "select-grid", id: `select-${name}`, role: "grid", tabindex: 0,
      "aria-label": TITLES[name], onscroll: () => scrolled(pane), onkeydown: (e) => key(pane, e),
      onfocus: () => setActive(pane, pane.active < 0 ? Math.max(0, pane.focus ?? 0) : pane.active),
    }, h("div", { role: "rowgroup", class: "select-columns-box" }, pane.head), pane.body);
    pane.section = h("section", { class: `select-pane select-pane-${name}`,
      "aria-label": TITLES[name] },
      h("div", { class: "select-head" }, h("h2", {}, TITLES[name]), pane.note, pane.links),
      pane.grid, pane.none);
    return pane;
  }

  function buildBasket() {
    const basket = { shown: "" };
    basket.count = h("span", { class: "select-note", role: "status" });
    basket.list = h("div", { class: "select-picks" });
    basket.notes = h("div", { class: "select-notes" });
    basket.said = h("div", { class: "select-said", role: "alert", hidden: true });
    basket.clear = h("button", { class: "quiet", type: "button", onclick: () => pick([]) }, "Clear");
    basket.automatic = h("button", { class: "quiet", type: "button", onclick: () => pick(null),
      title: "The newest workloads, and newer ones as they come" }, "Automatic");
    basket.keep = h("button", { class: "quiet", type: "button",
      onclick: () => pick(page.answer.basket.picks) }, "Keep these");
    basket.compare = h("a", { class: "select-compare", href: "/compare", onclick: follow },
      "Compare →");
    basket.aside = h("aside", { class: "select-basket", "aria-label": "Selection" },
      h("div", { class: "select-head" }, h("h2", {}, "Selection"), basket.count),
      basket.list,
      h("div", { class: "select-basket-foot" }, basket.said, basket.notes,
        h("div", { class: "select-buttons" }, basket.clear, basket.automatic, basket.keep,
          basket.compare)));
    return basket;
  }

  /* A link to another page: without loading the application anew, unless a new tab is wanted. */
  function follow(event) {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    window.history.pushState({}, "", event.currentTarget.href);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  }

  /* -- what the user does ------------------------------------------------------------------- */

  const change = (alter) => window.radt.change(alter);

  function setOption(view, name, value) {
    const options = { ...(view.options || {}) };
    if (value) options[name] = value;
    else delete options[name];
    if (Object.keys(options).length) view.options = options;
    else delete view.options;
  }

  function typed() {
    clearTimeout(page.timer);
    page.timer = setTimeout(searchNow, TYPING_PAUSE_MS);
  }

  function searchNow() {
    clearTimeout(page.timer);
    page.timer = null;
    const text = page.search.value;
    change((view) => {
      if (text) view.search = text;
      else delete view.search;
    });
  }

  function searchKey(event) {
    if (event.key === "Enter") searchNow();
    else if (event.key === "Escape" && page.search.value) {
      page.search.value = "";
      searchNow();
      event.preventDefault();
    } else if (event.key === "ArrowDown") {
      page.panes.runs.grid.focus();
      event.preventDefault();
    }
  }

  function toggleStatus(value) {
    change((view) => {
      const chosen = ((view.options || {})["select.status"] || "").split(",").filter(Boolean);
      const next = chosen.includes(value)
        ? chosen.filter((one) => one !== value) : [...chosen, value];
      setOption(view, "select.status", next.join(","));
    });
  }

  function sortBy(pane, column) {
    const next = pane.sort === column.key ? "-" + column.key
      : pane.sort === "-" + column.key ? "" : column.key;
    const name = pane.name === "runs" ? "select.sort" : `select.sort.${pane.name}`;
    change((view) => setOption(view, name, next));
  }

  function focusRow(pane, row) {
    if (pane.name === "experiments")
      change((view) => {
        view.experiment = row.id;
        delete view.workload;
      });
    else if (pane.name === "workloads")
      change((view) => {
        view.experiment = page.answer.experiment;
        if (row.focus) delete view.workload;
        else view.workload = row.id;
      });
    else tickRow(pane, row);
  }

  function pick(picks) {
    page.steps = [];
    page.sent = null;
    sayTrouble("");
    change((view) => {
      if (picks === null) delete view.picks;
      else view.picks = picks;
    });
  }

  function tickRow(pane, row) {
    const on = row.tick !== ON;
    row.tick = on ? ON : OFF;
    // The rest follows from the server; what was clicked shows at once.
    if (pane.name === "workloads" && page.answer.workload && page.answer.workload.id === row.id)
      for (const run of page.panes.runs.rows.values()) run.tick = row.tick;
    PANES.forEach((name) => paint(page.panes[name]));
    step({ picks: [row.pick], on });
  }

  /* Clicks go to the server one after the other: each builds on what the last made. */
  function step(one) {
    page.steps.push(one);
    if (page.sent === null || Date.now() - page.sent > CLICK_LOST_MS) sendSteps();
  }

  function sendSteps() {
    page.sent = Date.now();
    page.tickN += 1;
    page.stepsSent = page.steps.length;
    send("select-tick", { n: page.tickN, steps: page.steps, picks: page.view.picks || [] });
  }

  function said(answer) {
    if (!page || !answer || answer.n !== page.tickN || page.sent === null) return;
    page.sent = null;
    page.steps = page.steps.slice(page.stepsSent);
    sayTrouble(answer.text || "");
    if (answer.picks) change((view) => { view.picks = answer.picks; });
    else ask(); // the boxes show again what is picked
    if (page.steps.length) {
      if (answer.picks) page.view = { ...page.view, picks: answer.picks };
      sendSteps();
    }
  }

  function sayTrouble(text) {
    page.basket.said.hidden = !text;
    setText(page.basket.said, text);
  }

  function setActive(pane, index) {
    if (!pane.total) return;
    const before = pane.active;
    pane.active = Math.max(0, Math.min(pane.total - 1, index));
    const top = pane.active * ROW_PX;
    const room = pane.grid.clientHeight - ROW_PX; // below the columns' names
    if (top < pane.grid.scrollTop) pane.grid.scrollTop = top;
    else if (top + ROW_PX > pane.grid.scrollTop + room) pane.grid.scrollTop = top + ROW_PX - room;
    if (before !== pane.active) pane.drawn.get(before)?.removeAttribute("data-active");
    paint(pane);
  }

  function key(pane, event) {
    if (event.target !== pane.grid || event.ctrlKey || event.metaKey || event.altKey) return;
    const pageRows = Math.max(1, Math.floor(pane.grid.clientHeight / ROW_PX) - 2);
    const place = PANES.indexOf(pane.name);
    const row = pane.rows.get(pane.active);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: pageRows, PageUp: -pageRows };
    if (event.key in moves) setActive(pane, Math.max(0, pane.active) + moves[event.key]);
    else if (event.key === "Home") setActive(pane, 0);
    else if (event.key === "End") setActive(pane, pane.total - 1);
    else if (event.key === "ArrowRight" && place < 2) page.panes[PANES[place + 1]].grid.focus();
    else if (event.key === "ArrowLeft" && place > 0) page.panes[PANES[place - 1]].grid.focus();
    else if (event.key === " " && row) tickRow(pane, row);
    else if (event.key === "Enter" && row) focusRow(pane, row);
    else return;
    event.preventDefault();
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || !page || !page.root.isConnected) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    event.preventDefault();
    page.search.focus();
    page.search.select();
  });

  /* -- asking ------------------------------------------------------------------------------- */

  /* What of a view the lists depend on. */
  function concern(view) {
    const options = Object.entries(view.options || {}).filter(([name]) => name.startsWith("select."));
    return JSON.stringify([view.picks ?? null, view.search || "", view.experiment || "",
      view.workload || "", options.sort()]);
  }

  const firstInSight = (pane) => Math.floor(pane.grid.scrollTop / ROW_PX);
  const countInSight = (pane) => Math.ceil(pane.grid.clientHeight / ROW_PX) + 1;

  function ask() {
    page.n += 1;
    page.asked = { concern: concern(page.view), revision: page.revision };
    const wish = { n: page.n };
    for (const pane of Object.values(page.panes)) {
      const first = firstInSight(pane);
      const anchor = first > 0 ? pane.rows.get(first) : null;
      wish[pane.name] = {
        list: pane.list,
        start: Math.max(0, first - SPARE_ROWS),
        count: Math.min(MAX_COUNT, countInSight(pane) + 2 * SPARE_ROWS),
        anchor: anchor ? anchor.id : "",
        anchor_at: first,
      };
    }
    send("select-ask", wish);
  }

  function scrolled(pane) {
    paint(pane);
    clearTimeout(pane.timer);
    pane.timer = setTimeout(() => {
      if (!page.root.isConnected) return;
      const first = firstInSight(pane);
      const last = Math.min(pane.total, first + countInSight(pane));
      for (let index = first; index < last; index += 1)
        if (!pane.rows.has(index)) return ask();
    }, SCROLL_PAUSE_MS);
  }

  /* -- drawing ------------------------------------------------------------------------------ */

  function draw(answer) {
    if (answer.n && answer.n < page.n) return; // a newer one is on its way
    page.answer = answer;
    page.aheadMs = answer.now_ms - Date.now();
    if (!answer.n) page.asked = null; // it came with the page
    else page.asked.revision = answer.revision;
    if (document.activeElement !== page.search && page.timer === null)
      page.search.value = answer.search;
    setText(page.count, answer.count);
    drawChips(answer.statuses);
    drawProblems(answer.problems);
    for (const name of PANES) drawPane(page.panes[name], answer.panes[name], answer);
    fitNames();
    drawBasket(answer);
    if (answer.partial) ask();
  }

  function drawChips(statuses) {
    const text = JSON.stringify(statuses);
    if (page.chipsText === text) return;
    page.chipsText = text;
    const focused = document.activeElement && document.activeElement.dataset.status;
    page.chips.replaceChildren(...statuses.map((one) =>
      h("button", {
        type: "button", class: "select-chip", "data-status": one.value,
        "aria-pressed": String(one.on), onclick: () => toggleStatus(one.value),
      }, h("span", {}, one.word), h("span", { class: "select-chip-count" },
        one.count.toLocaleString("en")))));
    if (focused) [...page.chips.children].find((c) => c.dataset.status === focused)?.focus();
  }

  function drawProblems(problems) {
    page.problems.hidden = !problems.length;
    page.problems.replaceChildren(...problems.map((one) =>
      h("span", {}, h("code", {}, one.typed), " ", one.cause)));
  }

  function drawPane(pane, sent, answer) {
    const before = firstInSight(pane);
    const isSame = pane.list === sent.list;
    pane.list = sent.list;
    pane.total = sent.total;
    pane.sort = sent.sort;
    pane.tick = sent.tick || OFF;
    pane.focus = sent.focus;
    pane.sent = sent.columns;
    drawColumns(pane);
    drawAll(pane);
    pane.rows.clear();
    sent.rows.forEach((row, index) => pane.rows.set(sent.start + index, row));
    pane.body.style.height = `${pane.total * ROW_PX}px`;
    pane.grid.setAttribute("aria-rowcount", pane.total + 1);
    if (!isSame) {
      pane.active = -1;
      const room = countInSight(pane) - 2;
      const away = sent.focus < before || sent.focus >= before + room;
      if (sent.focus < 0) pane.grid.scrollTop = 0;
      else if (away) pane.grid.scrollTop = Math.max(0, sent.focus - (room >> 1)) * ROW_PX;
    } else if (sent.anchor_at >= 0 && before > 0 && sent.anchor_at !== before) {
      // Rows have come before those in sight, which stay where they are.
      pane.grid.scrollTop += (sent.anchor_at - before) * ROW_PX;
      if (pane.active >= 0) pane.active += sent.anchor_at - before;
    }
    pane.none.hidden = pane.total > 0;
    setText(pane.none, answer.search || answer.statuses.some((one) => one.on)
      ? "No run matches." : "No runs yet.");
    drawHead(pane, answer);
    paint(pane);
  }

  function drawHead(pane, answer) {
    const many = pane.total.toLocaleString("en");
    if (pane.name !== "runs") return setText(pane.note, many);
    const left = answer.params_left_out;
    setText(pane.note, many + (left ? ` · ${left} more parameters differ` : ""));
    const text = JSON.stringify([answer.workload, answer.experiment, answer.query]);
    if (pane.linksText === text) return undefined;
    pane.linksText = text;
    pane.links.replaceChildren();
    if (answer.workload) {
      const label = answer.workload.label;
      pane.links.append(
        h("span", { class: "select-scope" }, h("span", {}, `of ${label}`),
          h("button", {
            type: "button", class: "quiet select-cross", title: "Runs of all workloads",
            "aria-label": `Show the runs of all workloads, not only of ${label}`,
            onclick: () => change((view) => { delete view.workload; }),
          }, "×")),
        h("a", { href: `/workload?${answer.query}`, onclick: follow }, "Open workload"));
    }
    return undefined;
  }

  const width = (columns) =>
    columns.reduce((sum, column) => sum + GAP_PX + column.min_px, 14 + 20);

  /* Names of experiments have the room they need, as far as the runs can spare it. It is not
     given back: what was read should not move. */
  const NAME_BESIDE_PX = 184;
  const MAX_NAMES_PX = 480;
  const ink = document.createElement("canvas").getContext("2d");

  function fitNames() {
    const { grid, rows } = page.panes.experiments;
    const style = window.getComputedStyle(grid);
    ink.font = `${style.fontSize} ${style.fontFamily}`;
    let widest = 0;
    for (const row of rows.values())
      widest = Math.max(widest, ink.measureText(row.cells[0] || "").width);
    const { runs } = page.panes;
    const spare = runs.grid.clientWidth - width(runs.columns);
    const shown = grid.clientWidth;
    const wanted = Math.min(MAX_NAMES_PX, Math.ceil(widest) + NAME_BESIDE_PX);
    const next = Math.min(wanted, shown + Math.max(0, spare));
    if (shown && next > shown + 1)
      page.root.style.setProperty("--select-experiments", `${next}px`);
  }

  function drawColumns(pane) {
    const columns = [...pane.sent];
    // Narrow lists do without their last columns; that of runs scrolls.
    while (pane.name !== "runs" && columns.length > 2 && width(columns) > pane.grid.clientWidth)
      columns.pop();
    const text = JSON.stringify([columns, pane.sort]);
    if (text === pane.columnsText) return;
    pane.columnsText = text;
    pane.columns = columns;
    pane.drawn.forEach((element) => element.remove());
    pane.drawn.clear();
    pane.grid.setAttribute("aria-colcount", columns.length + 1);
    const template = columns.map((column) =>
      column.flex ? `minmax(${column.min_px}px, ${column.flex}fr)` : `${column.min_px}px`);
    pane.grid.style.setProperty("--select-columns", `14px ${template.join(" ")}`);
    pane.grid.style.setProperty("--select-width", `${width(columns)}px`);
    const focused = document.activeElement && document.activeElement.dataset.sort;
    pane.all = pane.name === "experiments" ? null : h("span", {
      class: "select-box", role: "checkbox", tabindex: 0, "aria-label": `All ${pane.name} listed`,
      title: `All ${pane.name} listed`, onclick: () => tickAll(pane),
      onkeydown: (event) => {
        if (event.key !== " ") return;
        event.preventDefault();
        tickAll(pane);
      },
    });
    pane.head.replaceChildren(
      h("span", { role: "columnheader", class: "select-cell", "aria-colindex": 1 },
        pane.all || h("span", { class: "select-unseen" }, "Picked")),
      ...pane.columns.map((column, index) => {
        const way = pane.sort === column.key ? "ascending"
          : pane.sort === "-" + column.key ? "descending" : undefined;
        return h("span", {
          role: "columnheader", class: "select-cell", "data-kind": column.kind,
          "aria-colindex": index + 2, "aria-sort": way,
        }, h("button", {
          type: "button", title: `Sort by ${column.title.toLowerCase()}`, "data-sort": column.key,
          onclick: () => sortBy(pane, column),
        }, column.label));
      }));
    if (focused) [...pane.head.querySelectorAll("button")].find(
      (button) => button.dataset.sort === focused)?.focus();
  }

  function drawAll(pane) {
    if (!pane.all) return;
    pane.all.hidden = pane.total === 0;
    setAttribute(pane.all, "aria-checked", checkedText(pane.tick));
  }

  function tickAll(pane) {
    const on = pane.tick !== ON;
    step({ all: pane.name, on, picks: [] });
  }

  const checkedText = (tick) => (tick === MIXED ? "mixed" : String(tick === ON));

  /* The rows in sight, from what is known; the rest of the list is only its height. */
  function paint(pane) {
    const first = Math.max(0, firstInSight(pane) - 8);
    const last = Math.min(pane.total, first + countInSight(pane) + 16);
    for (const [index, element] of pane.drawn)
      if (index < first || index >= last) {
        element.remove();
        pane.drawn.delete(index);
      }
    for (let index = first; index < last; index += 1) {
      let element = pane.drawn.get(index);
      if (!element) {
        element = newRow(pane, index);
        pane.drawn.set(index, element);
        pane.body.append(element);
      }
      fillRow(pane, element, index);
    }
    const active = pane.drawn.get(pane.active);
    setAttribute(pane.grid, "aria-activedescendant", active ? active.id : null);
  }

  function newRow(pane, index) {
    const box = h("span", { class: "select-box", role: "checkbox" });
    const element = h("div", {
      class: "select-row", role: "row", id: `select-${pane.name}-${index}`,
      "aria-rowindex": index + 2,
      onclick: (event) => {
        const row = pane.rows.get(index);
        if (!row) return;
        pane.active = index;
        if (element.firstChild.contains(event.target)) tickRow(pane, row);
        else focusRow(pane, row);
      },
    }, h("span", { role: "gridcell", class: "select-cell select-box-cell" }, box),
      ...pane.columns.map((column) =>
        h("span", { role: "gridcell", class: "select-cell", "data-kind": column.kind })));
    element.style.transform = `translateY(${index * ROW_PX}px)`;
    if (pane.name === "runs") {
      const swatch = h("span", { class: "select-swatch" });
      element.children[1].append(swatch, h("span", {}));
    }
    return element;
  }

  function fillRow(pane, element, index) {
    const row = pane.rows.get(index);
    setAttribute(element, "data-active", index === pane.active ? "yes" : null);
    setAttribute(element, "data-loading", row ? null : "yes");
    const box = element.firstChild.firstChild;
    setAttribute(box, "aria-checked", checkedText(row ? row.tick : OFF));
    if (!row) return;
    setAttribute(element, "aria-selected", String(row.focus));
    setAttribute(element, "title", row.title || row.id);
    setAttribute(box, "aria-label", row.title || row.id);
    pane.columns.forEach((column, place) => {
      const cell = element.children[place + 1];
      const text = cellText(row.cells[place], column.kind);
      if (place === 0 && row.swatch) {
        cell.firstChild.style.setProperty("--light", row.swatch[0]);
        cell.firstChild.style.setProperty("--dark", row.swatch[1]);
        setText(cell.lastChild, text);
      } else setText(cell, text);
      if (column.kind === "status" || column.kind === "outcome")
        setAttribute(cell, "data-status", row.cells[place][0]);
      if (column.kind === "clock")
        setAttribute(cell, "data-live", row.cells[place] && row.cells[place][1] === null);
      if (column.kind === "age") setAttribute(cell, "data-live", typeof row.cells[place] === "string");
    });
  }

  function drawBasket(answer) {
    const basket = page.basket;
    const given = answer.basket;
    basket.compare.setAttribute("href", "/compare" + (answer.query ? "?" + answer.query : ""));
    const text = JSON.stringify(given);
    if (text === basket.shown) return;
    basket.shown = text;
    setText(basket.count, given.runs);
    const isEmpty = !given.groups.length;
    basket.clear.hidden = given.automatic || isEmpty;
    basket.automatic.hidden = given.automatic;
    basket.keep.hidden = !given.automatic || isEmpty;
    setAttribute(basket.compare, "aria-disabled", given.count ? null : "true");
    basket.notes.replaceChildren(...given.notes.map((note) => h("div", {}, note)));
    const top = basket.list.scrollTop;
    const focused = document.activeElement && document.activeElement.dataset.pick;
    const parts = given.groups.map((group) => h("section", {},
      h("h3", { title: group.experiment }, group.experiment),
      h("ul", {}, ...group.entries.map((entry) => pickedItem(entry, given)))));
    if (given.automatic && !isEmpty)
      parts.unshift(h("p", { class: "select-automatic" },
        "Chosen automatically. Tick a box to choose yourself."));
    if (isEmpty) parts.push(h("p", { class: "select-automatic" },
      "Nothing is picked. Tick experiments, workloads or runs."));
    basket.list.replaceChildren(...parts);
    basket.list.scrollTop = top;
    if (focused) {
      const crosses = [...basket.list.querySelectorAll("button")];
      (crosses.find((one) => one.dataset.pick === focused) || crosses[0] || basket.automatic).focus();
    }
  }

  function pickedItem(entry, given) {
    const swatch = entry.swatch ? h("span", { class: "select-swatch" }) : null;
    if (swatch) {
      swatch.style.setProperty("--light", entry.swatch[0]);
      swatch.style.setProperty("--dark", entry.swatch[1]);
    }
    const cross = given.automatic ? null : h("button", {
      type: "button", class: "quiet select-cross", "data-pick": entry.pick,
      "aria-label": `Remove ${entry.label} ${entry.detail}`, title: "Remove",
      onclick: () => pick(page.answer.basket.picks.filter((one) => one !== entry.pick)),
    }, "×");
    return h("li", { "data-missing": entry.missing ? "yes" : undefined,
      title: `${entry.label}  ${entry.detail}` },
      swatch, h("span", { class: "select-label" }, entry.label),
      h("span", { class: "select-detail" }, entry.detail), cross);
  }

  /* Running times and ages go on by themselves; nothing is asked for it. */
  setInterval(() => {
    if (!page || !page.root.isConnected || document.hidden || !page.answer) return;
    for (const pane of Object.values(page.panes)) paint(pane);
  }, 1000);

  /* -- callbacks ---------------------------------------------------------------------------- */

  function current() {
    const root = document.getElementById("select-root");
    if (!root) return null;
    if (!page || page.root !== root || !root.firstChild) build(root);
    return page;
  }

  window.dash_clientside = Object.assign(window.dash_clientside || {}, {
    radt: Object.assign((window.dash_clientside || {}).radt || {}, {
      select_draw: (answer) => {
        if (answer && current()) draw(answer);
        return noUpdate();
      },
      select_follow: (view, revision) => {
        if (!view || !current()) return noUpdate();
        page.view = view;
        page.revision = revision;
        if (!page.answer) return noUpdate();
        if (page.asked === null) {
          page.asked = { concern: concern(view), revision: page.answer.revision };
        }
        const isNew = page.asked.concern !== concern(view);
        const isNews = revision && page.asked.revision !== revision && !revision.startsWith("!");
        if (isNew || isNews) ask();
        return noUpdate();
      },
      select_said: (answer) => {
        said(answer);
        return noUpdate();
      },
    }),
  });
})();
