/* What a run logged by name and step: a card for each name, one slider over the steps of all. */
"use strict";

(function () {
  const { change, h, refill, setAttribute, setPart, setText } = window.radt;
  const FIRST = 12; /* cards shown until the user asks for all */

  let sequences = [];
  let steps = []; /* all steps, sorted */
  let chosen = null; /* null: the last one, also when new ones come */
  let all = false;
  const cards = new Map(); /* by name and kind */

  const panel = () => document.getElementById("run-media-panel");
  const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

  /* The file of a sequence at a step: the last one until then. */
  function itemAt(items, step) {
    if (items[0][0] === null && items.length === 1) return items[0];
    let low = 0;
    let high = items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (items[middle][0] === null || items[middle][0] <= step) low = middle + 1;
      else high = middle;
    }
    return items[low - 1];
  }

  function card(sequence) {
    const key = `${sequence.kind} ${sequence.name}`;
    if (!cards.has(key)) {
      const title = h("h3", {}, sequence.name);
      const step = h("span", { class: "workload-dim" });
      const body = h("div", { class: "run-card-body" });
      cards.set(key, { element: h("article", { class: "run-card", "data-name": sequence.name, "data-kind": sequence.kind }, h("div", { class: "run-card-head" }, title, step), body), step, body, path: "" });
    }
    return cards.get(key);
  }

  async function draw(sequence, step) {
    const shown = card(sequence);
    const item = itemAt(sequence.items, step);
    setText(shown.step, item ? (item[0] === null ? "" : `step ${item[0].toLocaleString("en")}`)
      : `from step ${sequence.items[0][0].toLocaleString("en")} on`);
    const path = item ? item[1] : "";
    if (shown.path === path) return;
    shown.path = path;
    if (!path) return void shown.body.replaceChildren();
    const { ask, player, content } = window.radt.run;
    const label = item[0] === null ? sequence.name : `${sequence.name}, step ${item[0]}`;
    const image = shown.body.querySelector("img");
    if (sequence.kind === "image" && image) {
      /* The same element: what was there stays until the new one is loaded. */
      image.alt = label;
      image.src = player("image", path, label).src;
      return;
    }
    const played = player(sequence.kind, path, label);
    if (played) return void shown.body.replaceChildren(played);
    try {
      const read = await ask("preview", `path=${path}`);
      if (shown.path === path) shown.body.replaceChildren(...content(read, label));
    } catch (error) {
      if (error.name !== "AbortError" && shown.path === path)
        shown.body.replaceChildren(h("p", { class: "workload-dim", role: "alert" }, error.message));
    }
  }

  const place = () => {
    if (chosen === null) return steps.length - 1;
    const next = steps.findIndex((step) => step > chosen);
    return (next < 0 ? steps.length : next) - 1;
  };

  function drawAll() {
    const step = steps[Math.max(0, place())];
    for (const sequence of shownOnes()) draw(sequence, step);
    const slider = document.getElementById("run-step");
    if (!slider) return;
    slider.max = steps.length - 1;
    if (Number(slider.value) !== place()) slider.value = Math.max(0, place());
    setAttribute(slider, "aria-valuetext", `step ${step}`);
    setText(document.getElementById("run-step-text"), `step ${step.toLocaleString("en")} of ${steps.at(-1).toLocaleString("en")}`);
  }

  const shownOnes = () => (all ? sequences : sequences.slice(0, FIRST));

  function slid(event) {
    const at = Number(event.target.value);
    chosen = at >= steps.length - 1 ? null : steps[at];
    drawAll();
    if (event.type === "change")
      change((view) => setPart(view, "options", { "run.step": chosen === null ? null : String(chosen) }));
  }

  function arrange() {
    const box = document.getElementById("run-media");
    const hidden = sequences.length - shownOnes().length;
    refill(box,
      steps.length > 1 && h("div", { class: "run-slider" },
        h("label", { for: "run-step" }, "Step"),
        h("input", { id: "run-step", type: "range", min: 0, max: steps.length - 1, value: Math.max(0, place()), "data-focus": "step", oninput: slid, onchange: slid }),
        h("output", { id: "run-step-text", for: "run-step" })),
      h("div", { class: "run-cards" }, shownOnes().map((sequence) => card(sequence).element)),
      hidden > 0 && h("button", { type: "button", class: "quiet", onclick: () => { all = true; arrange(); } }, `show ${plural(hidden, "more name")}`));
    drawAll();
  }

  window.radt.runMedia = {
    begin() {
      const wanted = (window.radt.view.options || {})["run.step"];
      chosen = /^-?\d+$/.test(wanted || "") ? Number(wanted) : null;
      sequences = [];
      steps = [];
      all = false;
      cards.clear();
      panel().hidden = true;
    },

    fill(found) {
      const names = (list) => list.map((one) => `${one.kind} ${one.name}`).join("\n");
      const same = names(found) === names(sequences) && steps.length > 1;
      sequences = found;
      steps = [...new Set(found.flatMap((one) => one.items.map(([step]) => step)))]
        .filter((step) => step !== null).sort((a, b) => a - b);
      panel().hidden = !found.length;
      if (same) drawAll();
      else if (found.length) arrange();
    },
  };
})();
