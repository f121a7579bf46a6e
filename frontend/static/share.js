/* The share menu (`share_menu` in frontend/pages/page.py), opened by any button with
   `data-share`: "page", or the slot of a chart. The server (frontend/export) returns the text to
   copy, the address of the file, or an error. Pictures are made here (picture.js). */
"use strict";

(function () {
  const { beside, h, request } = window.radt;
  const PAGE = "page";
  const MAX_VIEW_BYTES = 240000;
  const data = (share, text, why) => ({ text, why, formats: [["CSV", share, "csv"], ["Parquet", share, "parquet"]] });
  const ROWS = {
    link: { text: "Copy link", share: "link" },
    python: { text: "Copy as Python", share: "python" },
    save: { text: "Save view", share: "view" },
    open: { text: "Open view", open: true },
    shown: data("shown", "Data shown", "the lines as drawn"),
    full: data("full", "All samples", "of the selected runs"),
    picture: { text: "Picture", formats: ["PNG", "SVG", "PDF"].map((f) => [f, "picture", f.toLowerCase()]) },
  };
  const WHOLE = ["link", "python", "save", "open", null, "picture", "shown", "full"];
  const CHART = ["picture", null, "shown", "full", null, "python"];

  const ask = async (path, body, type) =>
    (await request(path, { method: "POST", headers: { "Content-Type": type }, body })).json();

  const prepare = (share, format, subject) =>
    ask("export/prepare", JSON.stringify({
      view: window.radt.view, share, format, page: window.radt.here(),
      slot: subject === PAGE ? null : Number(subject),
    }), "application/json");

  /* Without HTTPS, scripts can only use the old copy command. */
  async function copy(text) {
    if (navigator.clipboard) {
      try {
        await navigator.clipboard.writeText(text);
        return true;
      } catch (error) { /* not allowed here: the old way */ }
    }
    const field = h("textarea", { value: text, readonly: true });
    field.style.position = "fixed";
    field.style.opacity = "0";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }

  async function act(row, share, format, subject) {
    if (row.open) return choose();
    if (share === "picture") return picture(format, subject);
    const found = await prepare(share, format, subject);
    if (found.href) {
      download(found.href);
      if (found.notes && found.notes.length) note(found.notes.map(sentence));
      return;
    }
    const text = share === "link" ? new URL(found.text, window.location.href).href : found.text;
    if (await copy(text)) note([share === "link" ? "Link copied." : "Python copied."]);
    else note(["The browser does not allow copying. Copy the text from here:"], { text });
  }

  async function picture(format, subject) {
    note(["Drawing the picture"], { stays: true });
    const made = await window.radt.picture(subject, format);
    if (made) {
      const address = URL.createObjectURL(made.blob);
      download(address, made.name);
      setTimeout(() => URL.revokeObjectURL(address), 60000);
    }
    if (shown) shown.remove();
  }

  function download(href, name) {
    const link = h("a", { href, download: name || true });
    document.body.append(link);
    link.click();
    link.remove();
  }

  function choose() {
    const field = h("input", {
      type: "file", accept: ".json,application/json", hidden: true, class: "share-file",
      onchange: () => {
        const [file] = field.files;
        field.remove();
        if (file) open(file).catch(problem);
      },
      oncancel: () => field.remove(),
    });
    document.body.append(field);
    field.click();
  }

  async function open(file) {
    if (file.size > MAX_VIEW_BYTES)
      throw { cause: `${file.name} is too large for a saved view.`, remedy: "Choose a file that “Save view” saved." };
    const found = await ask("export/open", await file.text(), "text/plain;charset=utf-8");
    window.radt.open(window.radt.address("compare", found.query));
    if (found.missing.length)
      note([`${file.name} is open.`, `Not in this store: ${found.missing.join(", ")}.`], { bad: true });
    else note([`${file.name} is open.`]);
  }

  let shown = null;
  function note(lines, { bad, text, stays } = {}) {
    if (shown) shown.remove();
    const field = text && h("textarea", { value: text, readonly: true, "aria-label": "Text to copy" });
    const box = (shown = h("div",
      { class: "share-note", role: bad ? "alert" : "status", "data-bad": Boolean(bad) },
      h("div", {}, lines.filter(Boolean).map((line) => h("p", {}, line)), field),
      h("button", {
        class: "quiet", "aria-label": "Close", onclick: () => box.remove(),
      }, "×")));
    document.body.append(box);
    if (field) setTimeout(() => field.select());
    if (!bad && !text && !stays) setTimeout(() => box.remove(), 4000);
  }

  const sentence = (text) => text && text[0].toUpperCase() + text.slice(1).replace(/\.?$/, ".");
  function problem(error) {
    const cause = error.cause || String(error);
    note([sentence(cause), sentence(error.remedy)], { bad: true });
  }

  const item = (row, [text, share, format], subject, className, name) =>
    h("button", {
      class: `share-item ${className}`, role: "menuitem", tabindex: -1,
      "aria-label": name,
      onclick: () => {
        beside.close();
        act(row, share, format, subject).catch(problem);
      },
    }, text);

  const rows = (subject) =>
    (subject === PAGE ? WHOLE : CHART).map((key) => {
      if (key === null) return h("hr");
      const row = ROWS[key];
      return h("div", { class: "share-row", role: "none" },
        !row.formats ? item(row, [row.text, row.share, null], subject, "wide") : [
          h("span", {}, row.text, row.why && h("small", {}, row.why)),
          row.formats.map((one) => item(row, one, subject, "format", `${row.text} as ${one[0]}`)),
        ].flat());
    });

  let menu = null;
  function show(button) {
    menu = h("div", {
      class: "share-menu", role: "menu", "aria-label": button.getAttribute("aria-label"),
    }, rows(button.dataset.share));
    if (beside.open(button, menu)) focus(0);
  }

  const items = () => [...menu.querySelectorAll("[role=menuitem]")];
  const focus = (place) => items().at(place % items().length).focus();

  const MOVES = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
  document.addEventListener("keydown", (event) => {
    const { key } = event;
    if (!menu || !menu.isConnected) {
      const button = event.target.closest?.("[data-share]");
      if (!button || key !== "ArrowDown") return;
      show(button);
    } else if (key === "Tab") return beside.close();
    else if (key in MOVES) focus(items().indexOf(document.activeElement) + MOVES[key]);
    else if (key === "Home") focus(0);
    else if (key === "End") focus(-1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }, true);

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-share]");
    if (button) show(button);
  });
})();
