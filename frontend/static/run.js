/* The Run page (frontend/pages/run.py): the choice of the run, and its files (media.js shows
   their content). */
"use strict";

(function () {
  const { change, debounced, drawNotes, filled, h, option, refill, searchField, setAttribute, setOptions, setPart } = window.radt;
  const LISTED = 500;
  const FILES_MS = 3000; /* interval of polling a running run's files */
  const TYPING_MS = 150;

  const state = { shown: {}, root: null, digest: "", files: [], chosen: "", filter: "" };

  /* Paths are percent-encoded, as names may contain bytes that are not UTF-8. */
  function readable(path) {
    try {
      return decodeURIComponent(path);
    } catch {
      return path;
    }
  }

  /* ---- a file ---------------------------------------------------------------------------------- */

  /* Show a file under the list, or beside it. */
  async function show(path) {
    const file = state.files.find(([one]) => one === path);
    const box = document.getElementById("run-preview");
    if (!box) return;
    state.chosen = path;
    for (const button of document.querySelectorAll("#run-files button"))
      setAttribute(button, "aria-current", button.dataset.path === path && "true");
    const label = readable(path);
    const { address, content, player, preview } = window.radt.media;
    const head = h("div", { class: "run-preview-head" }, h("strong", {}, label),
      file && h("span", { class: "workload-dim" }, file[1]),
      h("a", { href: address(state.shown, "artifact", path), download: "" }, "download"));
    const kind = file && file[2];
    const played = player(state.shown, kind, path, label);
    if (played) return void box.replaceChildren(head, played);
    box.replaceChildren(head);
    try {
      const read = await preview(state.shown, path);
      if (state.chosen !== path) return;
      if (read.html) {
        const text = h("div", { class: "run-markdown" });
        text.innerHTML = read.html;
        box.replaceChildren(head, text);
      } else box.replaceChildren(head, ...content(state.shown, path, read, label));
    } catch (error) {
      if (state.chosen === path)
        box.replaceChildren(head, h("p", { class: "workload-dim", role: "alert" }, error.message));
    }
  }

  function choose(path) {
    setOptions({ "run.file": path.slice(0, 300) });
    show(path);
  }

  /* ---- the list of files ----------------------------------------------------------------------- */

  function list(listing) {
    const box = document.getElementById("run-files");
    if (!box) return;
    const matching = listing.files.filter(([path]) => readable(path).toLowerCase().includes(state.filter));
    const items = matching.slice(0, LISTED).map(([path, size]) =>
      h("li", {}, h("button", {
        class: "quiet", "data-path": path, "data-focus": path,
        "aria-current": path === state.chosen && "true", onclick: () => choose(path),
      }, h("span", {}, readable(path)), h("span", { class: "workload-number" }, size))));
    const hidden = matching.length - items.length + listing.left_out;
    refill(box,
      listing.files.length > 8 && searchField("Find a file", state.filter, (text) => {
        state.filter = text.toLowerCase();
        list(listing);
      }, { class: "run-search" }),
      items.length > 0 && h("ul", { "aria-label": "Files" }, items),
      !items.length && listing.files.length > 0 && h("p", { class: "workload-dim" }, "No file matches."),
      listing.place && h("p", { class: "workload-dim" }, listing.place),
      hidden > 0 && h("p", { class: "workload-dim" }, `${hidden.toLocaleString("en")} more`));
  }

  async function readFiles() {
    const { shown } = state;
    const listing = await window.radt.media.ask(shown, "files", `known=${state.digest}`);
    if (!listing || shown !== state.shown) return;
    const first = !state.digest;
    state.digest = listing.digest;
    state.files = listing.files;
    list(listing);
    const names = window.radt.media.fill([{ id: shown.id, sequences: listing.sequences }]);
    document.getElementById("run-media-panel").hidden = !names;
    const wanted = option("run.file");
    if (first && wanted && listing.files.some(([path]) => path === wanted)) show(wanted);
  }

  /* ---- the run --------------------------------------------------------------------------------- */

  const quietly = (promise) => promise.catch((error) => {
    if (error.name !== "AbortError") console.warn(error.message);
  });

  /* Show a run from its beginning. */
  function begin(root, id, live) {
    clearTimeout(state.timer);
    Object.assign(state, { shown: { id, live }, root, digest: "", files: [], chosen: "", filter: "" });
    for (const name of ["run-files", "run-preview"]) document.getElementById(name).replaceChildren();
    window.radt.media.begin(document.getElementById("run-media"));
    quietly(readFiles());
    quietly(window.radt.runLog.begin(state.shown));
    if (live) state.timer = setTimeout(() => follow(state.shown), FILES_MS);
  }

  /* Read the files of a running run, and once more after it has ended. */
  function follow(shown) {
    if (!state.root.isConnected || state.shown !== shown) return;
    if (!document.hidden) quietly(readFiles());
    if (shown.live || document.hidden) state.timer = setTimeout(() => follow(shown), FILES_MS);
  }

  filled["run/data"] = (root, found) => {
    if (found && (state.root !== root || state.shown.id !== found.id)) begin(root, found.id, found.live);
    else if (found) state.shown.live = found.live;
    const field = document.getElementById("run-filter");
    if (document.activeElement !== field)
      field.value = option("run.metric");
    drawNotes(document.getElementById("run-notes"), state.shown.id);
  };

  document.addEventListener("choice", ({ target, detail }) => {
    if (target.id === "run-pick" && detail !== state.shown.id)
      change((view) => {
        view.run = detail;
        setPart(view, "options", { "run.other": null, "run.file": null, "run.step": null });
      });
    else if (target.id === "run-other")
      setOptions({ "run.other": detail.slice(0, 12) });
  });

  const typed = debounced((text) => setOptions({ "run.metric": text }), TYPING_MS);
  document.addEventListener("input", ({ target }) => {
    if (target.id === "run-filter") typed(target.value);
  });
})();
