/* Values of the Compare page's selected runs logged by name and step, side by side
   (media.js). */
"use strict";

(function () {
  const { compare, h, refill } = window.radt;
  const MOST = 8; /* runs side by side */
  const EVERY_MS = 3000; /* interval of polling running runs */
  let shown = []; /* the runs side by side, with their logged values */

  const panel = () => document.getElementById("compare-media-panel");
  const idsOf = (runs) => runs.map((run) => run.id).join();

  function runsNow() {
    const hidden = compare.hidden();
    return compare.facts.units.flatMap((unit) => (hidden.includes(unit.key) ? [] : unit.runs))
      .filter((run) => !hidden.includes(run.key));
  }

  function show() {
    const box = document.getElementById("compare-media");
    if (!box || !panel().open) return;
    const selected = runsNow();
    const runs = selected.slice(0, MOST);
    if (idsOf(runs) === idsOf(shown) && box.childElementCount) return;
    shown = runs.map(({ id, short, light, dark }) => ({ id, label: short, light, dark, digest: "", sequences: [] }));
    window.radt.media.begin(box);
    box.append(h("p", { class: "workload-dim" }, "Loading"));
    follow(box, shown, selected.length > MOST && `The first ${MOST} of ${selected.length} runs.`);
  }

  /* Show logged values of the runs. Poll while one of them is running, and once after its
     end. */
  async function follow(box, runs, note) {
    for (let goesOn = true; goesOn;) {
      const isLive = compare.facts.live;
      if (panel().open && !document.hidden) goesOn = !(await read(box, runs, note)) || isLive;
      if (goesOn) await new Promise((done) => setTimeout(done, EVERY_MS));
      if (runs !== shown || !box.isConnected) return;
    }
  }

  async function read(box, runs, note) {
    const { ask, fill } = window.radt.media;
    try {
      const news = await Promise.all(runs.map((run) => ask(run, "files", `known=${run.digest}`)));
      if (runs !== shown || !news.some(Boolean)) return true;
      news.forEach((listing, place) => {
        if (listing) Object.assign(runs[place], { digest: listing.digest, sequences: listing.sequences });
      });
      const count = fill(runs);
      if (!count) refill(box, h("p", { class: "workload-dim" }, "These runs logged no images, tables or texts."));
      if (note && box.lastElementChild.textContent !== note) box.append(h("p", { class: "workload-dim" }, note));
      return true;
    } catch (error) {
      if (runs !== shown) return true;
      if (runs.some((run) => run.digest)) console.warn(error.message); /* keep what is shown */
      else refill(box, h("p", { class: "workload-dim", role: "alert" }, error.message));
      return false;
    }
  }

  compare.renderers.push(show);
  document.addEventListener("toggle", (event) => {
    if (event.target === panel()) show();
  }, true);
})();
