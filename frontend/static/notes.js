/* What people write (frontend/notes.py): the notes of a run, and saved views. */
"use strict";

(function () {
  const { h, refill, register, noUpdate } = window.radt;
  const TOKEN = "radt-write-token";

  /* Ask a route, or have it change something; throws { cause, remedy }. */
  async function send(path, body) {
    const headers = {
      "Content-Type": "application/json",
      "X-Radt-Write-Token": window.sessionStorage.getItem(TOKEN) || "",
    };
    const how = body && { method: "POST", body: JSON.stringify(body) };
    const answer = await fetch(path, { ...how, headers }).catch(() => {
      throw { cause: "The dashboard does not answer.", remedy: "Is it still running?" };
    });
    const found = await answer.json().catch(() => ({ cause: `The dashboard answers ${answer.status}.` }));
    if (!answer.ok) throw found;
    return found;
  }

  /* Change notes of runs: any of { name, text, tags, starred, archived }. */
  const editRuns = (runs, edit) => send("/notes", { runs, ...edit });

  /* A line that says what came of a change. */
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

  /* Asks for the token that the dashboard was started with, for changes. */
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
    }), h("button", { class: "quiet" }, "Unlock"));

  /* ---- the notes of a run -------------------------------------------------------------------- */

  const isTyping = (card) => Boolean(card.querySelector(":is(input, textarea):focus"));

  async function draw(run) {
    const card = document.getElementById("notes");
    if (!card || isTyping(card)) return;
    let notes;
    try {
      notes = await send(`/notes/${encodeURIComponent(run)}`);
    } catch (error) {
      if (card.isConnected) card.replaceChildren(h("p", { class: "notes-result" }, error.cause));
      return;
    }
    if (!card.isConnected || isTyping(card)) return;
    const result = card.querySelector(".notes-result") || results();
    const locked = !notes.may_write;
    const save = async (edit) => (await result.follow(editRuns([run], edit))) && draw(run);
    const mark = (name, text, title) =>
      h("button", {
        type: "button", class: "quiet", title, disabled: locked, "aria-label": title,
        "aria-pressed": String(notes[name]), "data-focus": name,
        onclick: () => save({ [name]: !notes[name] }),
      }, text);
    const tag = ([key, value]) =>
      h("li", {}, h("span", {}, key), value, !locked && h("button", {
        type: "button", class: "quiet", "aria-label": `Take away the tag ${key}`,
        onclick: () => save({ tags: { [key]: "" } }),
      }, "×"));
    const added = h("input", {
      "aria-label": "New tag", placeholder: "key=value", class: "notes-new",
      onkeydown: (event) => {
        if (event.key !== "Enter") return;
        const [key, ...rest] = added.value.split("=");
        added.blur();
        save({ tags: { [key.trim()]: rest.join("=").trim() || "yes" } });
      },
    });
    refill(card,
      h("div", { class: "notes-head" },
        mark("starred", notes.starred ? "★" : "☆", notes.starred ? "Take the star away" : "Give a star"),
        h("input", {
          value: notes.name, "aria-label": "Name of the run", class: "notes-name", readonly: locked,
          onchange: (event) => save({ name: event.target.value }),
        }),
        mark("archived", notes.archived ? "Archived" : "Archive",
          notes.archived ? "Take the run out of the archive" : "Archive the run")),
      h("textarea", {
        value: notes.text, "aria-label": "Notes", placeholder: "Notes", rows: 3, readonly: locked,
        onchange: (event) => save({ text: event.target.value }),
      }),
      h("ul", { class: "notes-tags" }, Object.entries(notes.tags).map(tag), !locked && h("li", {}, added)),
      locked && tokenForm(() => draw(run)),
      result);
  }

  register({
    notes: (run) => {
      if (run) draw(run);
      return noUpdate();
    },
  });

  /* ---- saved views --------------------------------------------------------------------------- */

  async function drawViews(panel) {
    const result = results();
    const here = () => window.location.pathname + window.location.search;
    const again = () => drawViews(panel);
    let found;
    try {
      found = await send("/views");
    } catch (error) {
      panel.replaceChildren(h("p", { class: "notes-result" }, error.cause));
      return;
    }
    const change = async (body) => (await result.follow(send("/views", body))) && again();
    refill(panel,
      found.may_write ? h("form", {
        class: "notes-token",
        onsubmit: (event) => {
          event.preventDefault();
          change({ name: event.target.elements.name.value, address: here() });
        },
      }, h("input", { name: "name", required: true, maxlength: 100, placeholder: "Save this page as…", "aria-label": "Name of the view" }),
      h("button", { class: "quiet" }, "Save")) : tokenForm(again),
      h("ul", {}, found.views.map(([name]) => h("li", {},
        h("a", { href: `/view/${encodeURIComponent(name)}`, title: "Share this link" }, name),
        found.may_write && h("button", {
          type: "button", class: "quiet", "aria-label": `Forget ${name}`,
          onclick: () => change({ name }),
        }, "×")))),
      !found.views.length && h("p", { class: "notes-result" }, "No saved views yet"),
      result);
    const first = panel.querySelector("input");
    if (first) first.focus();
  }

  document.addEventListener("click", (event) => {
    if (event.target.id !== "views-button" || document.querySelector(".views")) return;
    const panel = h("div", {
      class: "views", popover: "auto", role: "dialog", "aria-label": "Saved views",
      ontoggle: ({ newState }) => newState === "closed" && panel.remove(),
    });
    document.body.append(panel);
    panel.showPopover();
    drawViews(panel);
  });

  Object.assign(window.radt, { editRuns });
})();
