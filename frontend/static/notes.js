/* User content (frontend/notes.py): the notes of a run, and saved views. */
"use strict";

(function () {
  const { beside, h, refill, request } = window.radt;
  const TOKEN = "radt-write-token";
  const SHOWN = 200; /* maximum number of a run's tags; a script may set thousands */

  async function send(path, body) {
    const headers = {
      "Content-Type": "application/json",
      "X-Radt-Write-Token": window.sessionStorage.getItem(TOKEN) || "",
    };
    const how = body && { method: "POST", body: JSON.stringify(body) };
    return (await request(path, { ...how, headers })).json();
  }

  /* Change notes of runs: any of { name, text, tags, starred, archived }. */
  const editRuns = (runs, edit) => send("notes", { runs, ...edit });

  function results() {
    const line = h("p", { class: "notes-result", role: "status" });
    line.follow = async (work) => {
      try {
        await work;
        line.textContent = "Saved";
        line.removeAttribute("data-bad");
        return true;
      } catch (error) {
        line.textContent = [error.cause || String(error), error.remedy].filter(Boolean).join(" ");
        line.setAttribute("data-bad", "");
        return false;
      }
    };
    return line;
  }

  const tokenForm = (again) =>
    h("form", {
      class: "notes-token",
      onsubmit: (event) => {
        event.preventDefault();
        document.activeElement.blur();
        window.sessionStorage.setItem(TOKEN, event.target.elements.token.value.trim());
        again();
      },
    }, h("input", {
      type: "password", name: "token", required: true, autocomplete: "off",
      placeholder: "Token for changes", "aria-label": "Token for changes",
    }), h("button", { class: "quiet", type: "submit" }, "Unlock"));

  /* Return true while someone types or presses a button: a click on a replaced one is lost. */
  const isUsed = (card) => Boolean(card.querySelector(":is(input, textarea):focus, button:active"));

  /* Draw the notes of a run into a card. `done` is called after each change, with the error
     if any. */
  async function draw(card, run, done = () => {}, hasTyped = false) {
    const isBusy = () => !hasTyped && isUsed(card);
    if (!card || isBusy()) return;
    let notes;
    try {
      notes = await send(`notes/${encodeURIComponent(run)}`);
    } catch (error) {
      if (card.isConnected) card.replaceChildren(h("p", { class: "notes-result" }, error.cause));
      return;
    }
    if (!card.isConnected || isBusy()) return;
    const result = card.querySelector(".notes-result") || results();
    const locked = !notes.may_write;
    const save = async (edit, isTag) => {
      const isSaved = await result.follow(editRuns([run], edit));
      done(isSaved ? "" : result.textContent);
      if (isSaved) draw(card, run, done, isTag);
    };
    const mark = (name, text, title) =>
      h("button", {
        class: "quiet", title, disabled: locked, "aria-label": title,
        "aria-pressed": String(notes[name]), "data-focus": name,
        onclick: () => save({ [name]: !notes[name] }),
      }, text);
    const tag = ([key, value]) =>
      h("li", {}, h("button", {
        class: "notes-tag", disabled: locked, title: locked ? null : "Change this tag",
        onclick: () => write(card, `${key}=${value}`),
      }, h("span", {}, key), value), !locked && h("button", {
        class: "quiet", "aria-label": `Take away the tag ${key}`,
        onclick: () => save({ tags: { [key]: "" } }),
      }, "×"));
    const added = h("input", {
      "aria-label": "New tag", placeholder: "key=value", class: "notes-new", "data-focus": "tag",
      onkeydown: (event) => {
        if (event.key !== "Enter") return;
        const [key, ...rest] = added.value.split("=");
        save({ tags: { [key.trim()]: rest.join("=").trim() || "yes" } }, true);
      },
    });
    const tags = Object.entries(notes.tags);
    const hidden = tags.length - SHOWN;
    refill(card,
      h("div", { class: "notes-head" },
        mark("starred", notes.starred ? "★" : "☆", notes.starred ? "Take the star away" : "Give a star"),
        h("input", {
          value: notes.name, "aria-label": "Name of the run", class: "notes-name", readonly: locked,
          onchange: (event) => save({ name: event.target.value }),
        })),
      h("textarea", {
        value: notes.text, "aria-label": "Notes", placeholder: "Notes", rows: 3, readonly: locked,
        onchange: (event) => save({ text: event.target.value }),
      }),
      h("ul", { class: "notes-tags" }, tags.slice(0, SHOWN).map(tag),
        hidden > 0 && h("li", {}, `and ${hidden.toLocaleString("en")} more`), !locked && h("li", {}, added)),
      h("div", { class: "notes-head" }, mark("archived", notes.archived ? "Undo archiving" : "Archive",
        notes.archived ? "Take the run out of the archive" : "Leave the run out of all lists")),
      locked && tokenForm(() => draw(card, run, done)),
      result);
  }

  function write(card, text) {
    const field = card.querySelector(".notes-new");
    field.value = text;
    field.focus();
    field.setSelectionRange(text.indexOf("=") + 1, text.length);
  }

  /* Open the notes of a run in the table beside a button of its row, at a field or a tag to
     write. */
  async function openNotes(button, run, { field, tag }, done) {
    const card = h("div", { class: "notes" });
    const label = `Notes of ${run.name} ${run.detail}`;
    beside.open(button, h("div", { class: "notes-panel", role: "dialog", "aria-label": label }, card));
    await draw(card, run.run, done);
    beside.place();
    const first = card.querySelector(".notes-token input") || card.querySelector(field || ".notes-new");
    if (tag && first && !first.closest(".notes-token")) write(card, tag);
    else if (first) first.focus();
  }

  async function drawViews(panel) {
    const result = results();
    const here = () => window.radt.here() + window.location.search;
    const again = () => drawViews(panel);
    let found;
    try {
      found = await send("views");
    } catch (error) {
      panel.replaceChildren(h("p", { class: "notes-result" }, error.cause));
      return;
    }
    const change = async (body) => (await result.follow(send("views", body))) && again();
    refill(panel,
      found.may_write ? h("form", {
        class: "notes-token",
        onsubmit: (event) => {
          event.preventDefault();
          change({ name: event.target.elements.name.value, address: here() });
        },
      }, h("input", { name: "name", required: true, maxlength: 100, placeholder: "Name for this page", "aria-label": "Name of the view" }),
      h("button", { class: "quiet", type: "submit" }, "Save")) : tokenForm(again),
      h("ul", {}, found.views.map(([name]) => h("li", {},
        h("a", { href: window.radt.address(`view/${name.split("/").map(encodeURIComponent).join("/")}`), title: "Share this link" }, name),
        found.may_write && h("button", {
          class: "quiet", "aria-label": `Forget ${name}`,
          onclick: () => change({ name }),
        }, "×")))),
      !found.views.length && h("p", { class: "notes-result" }, "No saved views yet"),
      result);
    const first = panel.querySelector("input");
    if (first) first.focus();
  }

  document.addEventListener("click", (event) => {
    if (event.target.id !== "views-button") return;
    const panel = h("div", { class: "views", role: "dialog", "aria-label": "Saved views" });
    if (beside.open(event.target, panel)) drawViews(panel);
  });

  Object.assign(window.radt, { drawNotes: draw, editRuns, openNotes });
})();
