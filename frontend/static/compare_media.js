/* What the selected runs of the Compare page logged by name and step, side by side (media.js). */
"use strict";

(function () {
  const { compare, h, refill } = window.radt;
  const MOST = 8; /* runs side by side */
  let known = ""; /* the runs that are shown */

  const panel = () => document.getElementById("compare-media-panel");

  /* Runs that are not hidden, the first of the list. */
  function runsNow() {
    const hidden = compare.hidden();
    return compare.facts.units.flatMap((unit) => (hidden.includes(unit.key) ? [] : unit.runs))
      .filter((run) => !hidden.includes(run.key));
  }

  async function show() {
    const box = document.getElementById("compare-media");
    if (!box || !panel().open) return;
    const { ask, begin, fill } = window.radt.media;
    const selected = runsNow();
    const runs = selected.slice(0, MOST);
    const key = runs.map((run) => run.id).join();
    if (key === known && box.childElementCount) return;
    known = key;
    begin(box);
    box.textContent = "…";
    try {
      const listings = await Promise.all(runs.map((run) => ask(run, "files", "")));
      if (key !== known) return;
      const names = fill(runs.map((run, place) => ({
        id: run.id, label: run.short, light: run.light, dark: run.dark,
        sequences: listings[place].sequences,
      })));
      if (!names) refill(box, h("p", { class: "workload-dim" }, "These runs logged no images, tables or texts."));
      if (selected.length > MOST)
        box.append(h("p", { class: "workload-dim" }, `The first ${MOST} of ${selected.length} runs.`));
    } catch (error) {
      if (key !== known) return;
      known = "";
      refill(box, h("p", { class: "workload-dim", role: "alert" }, error.message));
    }
  }

  compare.renderers.push(show);
  document.addEventListener("toggle", (event) => {
    if (event.target === panel()) show();
  }, true);
})();
