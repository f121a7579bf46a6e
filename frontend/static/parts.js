/* Parts of pages (frontend/pages/parts.py): the route of an element with `data-follow` fills
   the named elements within it for the current view. */
"use strict";

(function () {
  const { radt } = window;
  const { h, onScheme, post, refill, scheme, setText } = radt;
  const RETRY_MS = 2000;
  /* Callbacks of pages by route: when the route is requested, which may return more to send, and
     after the parts are filled with its answer, which is null if nothing changed. */
  radt.asked = {};
  radt.filled = {};

  async function fill(root) {
    root.isLate = document.hidden;
    if (root.isLate) return;
    root.isOld = false;
    root.asked = JSON.stringify(radt.view);
    if (root.asking) root.asking.abort();
    const mine = (root.asking = new AbortController());
    clearTimeout(root.timer);
    const { follow } = root.dataset;
    const more = radt.asked[follow] && radt.asked[follow](root);
    let next_ms = Number(root.dataset.every) * 1000;
    let found;
    try {
      const asked = { view: radt.view, stamps: root.stamps, scheme: scheme(), ...more };
      found = await post(follow, asked, mine.signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      next_ms = RETRY_MS;
      found = { problem: { cause: `The dashboard does not answer (${error.message}).`, remedy: "Trying again." } };
    }
    if (root.asking !== mine) return;
    root.asking = null;
    try {
      if (take(root, found)) next_ms = next_ms || RETRY_MS;
    } finally {
      if (root.isOld) fill(root);
      else if (next_ms) root.timer = setTimeout(() => root.isConnected && fill(root), next_ms);
    }
  }

  /* Say above the parts why they could not be read; those of before stay. */
  function say(root, problem) {
    let box = root.querySelector(":scope > .parts-problem");
    if (!box) root.prepend(box = h("p", { class: "parts-problem", role: "status" }));
    setText(box, problem && `${problem.cause} ${problem.remedy}`);
  }

  /* Fill the parts. A part with an open list of choices stays until the list is closed; return
     true if there is one. */
  function take(root, found) {
    if (!root.isConnected) return false;
    say(root, found && found.problem);
    if (found && found.problem) return false;
    const stamps = found ? { ...found.stamps } : root.stamps;
    let isLeft = false;
    for (const [name, html] of Object.entries(found ? found.parts : {})) {
      const part = document.getElementById(name);
      const field = part.querySelector(".choice-field:focus-within");
      if (field && field.querySelector("[aria-expanded=true]")) {
        isLeft = true;
        delete stamps[name];
        continue;
      }
      const made = document.createElement("template");
      made.innerHTML = html;
      const inner = [...part.querySelectorAll("[id]")].filter(({ id }) => id in found.stamps);
      refill(part, ...made.content.childNodes);
      for (const old of inner) {
        const fresh = document.getElementById(old.id);
        if (fresh) fresh.replaceWith(old);
      }
      // The new field gets its input in a microtask that is queued before this one (fields.js).
      if (field) queueMicrotask(() => part.querySelector(`#${field.id} input`).focus({ preventScroll: true }));
    }
    for (const [name, figure] of Object.entries(found ? found.figures : {}))
      radt.drawFigure(document.getElementById(name), figure);
    const filled = radt.filled[root.dataset.follow];
    if (filled) filled(root, found);
    root.stamps = stamps; // last: what could not be applied comes again
    return isLeft;
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-follow] a[href]:not([download], [target])");
    if (link && !event.defaultPrevented) radt.follow(event, link);
  });

  /* Figures have the colours of the scheme. */
  onScheme(() => document.querySelectorAll("[data-follow]").forEach((root) => {
    if (root.querySelector(".plot")) fill(root);
  }));

  document.addEventListener("visibilitychange", () => document.querySelectorAll("[data-follow]").forEach((root) => {
    if (root.isLate) fill(root);
  }));

  radt.fill = fill;
  radt.register({
    follow: (view, revision) => {
      radt.view = view || {};
      if (view)
        for (const root of document.querySelectorAll("[data-follow]"))
          if (radt.drawn[root.dataset.follow]) radt.drawn[root.dataset.follow](root, revision);
          else if (revision && root.asking && root.asked === JSON.stringify(radt.view)) root.isOld = true;
          else if (revision) fill(root);
      return radt.noUpdate();
    },
  });
})();
