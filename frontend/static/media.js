/* Values that runs logged by name and step: a card for each name with each run, and one slider
   over all steps. The Run page shows one run, the Compare page several, side by side.

   The content of files becomes text nodes. Pictures, sounds and films are elements with separate
   addresses (frontend/files.py). */
"use strict";

(function () {
  const { figure, h, option, refill, setAttribute, setOptions, setText, swatch } = window.radt;
  const FIRST = 12; /* cards shown until the user asks for all */

  /* Fetch JSON from a route of a run; null if nothing has changed. */
  async function ask(run, name, query) {
    const answer = await fetch(window.radt.address(`run/${encodeURIComponent(run.id)}/${name}`, query));
    if (answer.status === 204) return null;
    if (!answer.ok) throw Object.assign(new Error((await answer.text()).trim()),
      { again: answer.headers.get("Retry-After") });
    return answer.json();
  }

  const READING = 2; /* maximum of files that the server reads at once (frontend/data/run/previews.py) */
  const PATIENCE = 30;
  const turns = [];
  let reading = 0;

  /* Fetch a file's content. A few at a time; retry while the server reads those of others. */
  async function preview(run, path, isWanted = () => true) {
    if (reading === READING) await new Promise((go) => turns.push(go));
    else reading += 1;
    try {
      for (let tries = 1; isWanted(); tries += 1)
        try {
          return await ask(run, "preview", `path=${path}`);
        } catch (error) {
          if (!error.again || tries === PATIENCE) throw error;
          await new Promise((done) => setTimeout(done, 1000 * error.again));
        }
    } finally {
      if (turns.length) turns.shift()();
      else reading -= 1;
    }
  }

  const address = (run, action, path) =>
    window.radt.address(`files/${encodeURIComponent(run.id)}/${action}`, `path=${path}`);

  function player(run, kind, path, label) {
    const src = address(run, "view", path);
    if (!["image", "audio", "video"].includes(kind)) return undefined;
    const why = h("p", { class: "workload-dim" });
    const element = h(kind === "image" ? "img" : kind, kind === "image" ? { src, alt: label }
      : { src, controls: true, preload: "metadata", "aria-label": label });
    element.addEventListener("load", () => why.remove());
    element.addEventListener("error", async () => {
      const answer = await fetch(element.src);
      if (answer.ok) answer.body.cancel(); /* a film may be large */
      setText(why, answer.ok ? `The browser cannot show this as ${kind}.` : (await answer.text()).trim());
      element.after(why);
    });
    return element;
  }

  function content(run, path, read, label, before) {
    if (read.kind === "figure") {
      const link = h("a", { href: address(run, "artifact", path), download: "" }, "Download it");
      if (read.figure) return [figure(read, label, link, before)];
      return [h("p", { class: "workload-dim" }, `${read.note}. `, link)];
    }
    const note = read.note && h("p", { class: "workload-dim" }, read.note);
    if (read.kind !== "table") {
      const text = read.text && h("pre", { class: "workload-log", tabindex: 0, "aria-label": label }, read.text);
      return [text, note || (!read.text && h("p", { class: "workload-dim" }, "Empty"))].filter(Boolean);
    }
    const side = (place) => (read.numeric[place] ? "workload-right" : null);
    const head = read.columns.map((name, place) => h("th", { scope: "col", class: side(place) }, name));
    const rows = read.rows.map((row) =>
      h("tr", {}, row.map((cell, place) =>
        h("td", { class: cell === null ? "workload-dim" : side(place) }, cell === null ? "–" : cell))));
    const table = h("table", { class: "workload-table" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
    const scrolling = { class: "workload-scroll run-table", tabindex: 0, role: "region", "aria-label": `${label}, scrolls` };
    return [h("div", scrolling, table), note].filter(Boolean);
  }

  let box = null;
  let runs = []; /* { id, label, light, dark, sequences } */
  let names = []; /* { key, name, kind }, each once */
  let steps = []; /* all steps, sorted */
  let chosen = null; /* null: the last step, even when new ones arrive */
  let all = false;
  const panes = new Map(); /* by name, kind and run */

  const shownNames = () => (all ? names : names.slice(0, FIRST));
  const keyOf = (sequence) => `${sequence.kind} ${sequence.name}`;
  const sequenceOf = (run, key) => run.sequences.find((one) => keyOf(one) === key);
  const words = (step) => `step ${step.toLocaleString("en")}`;

  function place() {
    if (chosen === null) return steps.length - 1;
    const next = steps.findIndex((step) => step > chosen);
    return Math.max(0, (next < 0 ? steps.length : next) - 1);
  }

  /* Return the file of a sequence at a step, or the last one before it. One without a step
     comes first. */
  function itemAt(items, step) {
    let low = 0;
    for (let high = items.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (items[middle][0] === null || items[middle][0] <= step) low = middle + 1;
      else high = middle;
    }
    return items[low - 1];
  }

  function pane(name, run) {
    const key = `${run.id} ${name.key}`;
    if (!panes.has(key)) {
      const step = h("span", { class: "workload-dim" });
      const body = h("div", { class: "run-pane-body" });
      const who = runs.length > 1 && [swatch("workload-swatch", run.light, run.dark), h("span", {}, run.label)];
      const head = h("div", { class: "run-pane-head" }, who, step);
      panes.set(key, { element: h("div", { class: "run-pane", "data-run": run.id }, head, body), step, body, path: null });
    }
    return panes.get(key);
  }

  async function draw(name, run, step) {
    const shown = pane(name, run);
    const sequence = sequenceOf(run, name.key);
    const item = sequence && itemAt(sequence.items, step);
    setText(shown.step, !sequence ? "none" : !item ? `from ${words(sequence.items[0][0])} on`
      : item[0] === null ? "" : words(item[0]));
    const path = item ? item[1] : "";
    if (shown.path === path) return;
    shown.path = path;
    if (!path) return void shown.body.replaceChildren();
    const label = [name.name, runs.length > 1 && run.label, item[0] !== null && `step ${item[0]}`]
      .filter(Boolean).join(", ");
    const played = player(run, name.kind, path, label);
    const image = shown.body.querySelector("img");
    if (image) {
      /* Reuse the element, so that the old image stays until the new one is loaded. */
      image.alt = label;
      image.src = played.src;
    } else if (played) shown.body.replaceChildren(played);
    else
      try {
        const read = await preview(run, path, () => shown.path === path);
        const before = shown.body.querySelector(".run-figure") || undefined;
        if (shown.path === path) shown.body.replaceChildren(...content(run, path, read, label, before));
      } catch (error) {
        if (shown.path === path)
          shown.body.replaceChildren(h("p", { class: "workload-dim", role: "alert" }, error.message));
      }
  }

  function drawAll() {
    const step = steps[place()];
    for (const name of shownNames()) for (const run of runs) draw(name, run, step);
    const slider = document.getElementById("run-step");
    if (!slider) return;
    slider.max = steps.length - 1;
    if (Number(slider.value) !== place()) slider.value = place();
    setAttribute(slider, "aria-valuetext", words(step));
    setText(document.getElementById("run-step-text"), `${words(step)} of ${steps.at(-1).toLocaleString("en")}`);
  }

  function slid(event) {
    const at = Number(event.target.value);
    chosen = at >= steps.length - 1 ? null : steps[at];
    drawAll();
    if (event.type === "change") setOptions({ "run.step": chosen === null ? null : String(chosen) });
  }

  function card(name) {
    return h("article", { class: "run-card", "data-name": name.name, "data-kind": name.kind },
      h("h3", {}, name.name),
      h("div", { class: "run-panes" }, runs.map((run) => pane(name, run).element)));
  }

  function arrange() {
    const hidden = names.length - shownNames().length;
    const range = { id: "run-step", type: "range", min: 0, max: steps.length - 1, value: place() };
    refill(box,
      steps.length > 1 && h("div", { class: "run-slider" },
        h("label", { for: "run-step" }, "Step"),
        h("input", { ...range, "data-focus": "step", oninput: slid, onchange: slid }),
        h("output", { id: "run-step-text", for: "run-step" })),
      h("div", { class: "run-cards", "data-runs": runs.length }, shownNames().map(card)),
      hidden > 0 && h("button", { class: "quiet", onclick: () => { all = true; arrange(); } },
        `show ${hidden.toLocaleString("en")} more`));
    drawAll();
  }

  function begin(element) {
    const wanted = option("run.step");
    chosen = /^-?\d+$/.test(wanted) ? Number(wanted) : null;
    box = element;
    runs = names = steps = [];
    all = false;
    panes.clear();
    box.replaceChildren();
  }

  function fill(found) {
    const ids = (list) => list.map((run) => run.id).join();
    const known = (list) => list.map((name) => name.key).join("\n");
    const before = `${ids(runs)}\n${known(names)}\n${steps.length > 1}`;
    runs = found;
    const byKey = new Map();
    for (const run of runs)
      for (const one of run.sequences)
        if (!byKey.has(keyOf(one))) byKey.set(keyOf(one), { key: keyOf(one), name: one.name, kind: one.kind });
    names = [...byKey.values()];
    const every = runs.flatMap((run) => run.sequences.flatMap((one) => one.items.map(([step]) => step)));
    steps = [...new Set(every)].filter((step) => step !== null).sort((a, b) => a - b);
    if (before === `${ids(runs)}\n${known(names)}\n${steps.length > 1}`) drawAll();
    else arrange();
    return names.length;
  }

  window.radt.media = { address, ask, begin, content, fill, player, preview };
})();
