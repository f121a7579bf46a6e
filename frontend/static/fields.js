/* Fields for one or several values from a searchable list (`choice_field` in
   frontend/pages/page.py), following WAI-ARIA's combobox pattern
   (https://www.w3.org/WAI/ARIA/apg/patterns/combobox/). The server or a page's script sets
   `data-choices` and `data-value`; the user's choice is a new `data-value`, several values
   joined by ";", and an event "choice". With `data-search`, the route there finds the choices
   for a typed text. */
"use strict";

(function () {
  const { h, post, setAttribute, setText } = window.radt;
  /* Maximum number of choices shown; more are found by typing. */
  const MOST_SHOWN = 200;
  const SEPARATOR = ";";
  const follows = new WeakMap();

  /* Choices are strings, `{value, label}`, or `{group, items}` of these. */
  const choicesOf = (text) => JSON.parse(text)
    .flatMap((one) => (one.items || [one]).map((item) =>
      (typeof item === "string" ? { value: item, label: item } : { group: one.group, ...item })));

  const parts = (text) => text.split(SEPARATOR).map((part) => part.trim()).filter(Boolean);

  function build(root) {
    const { label, nothing, placeholder, search } = root.dataset;
    const most = Number(root.dataset.most);
    const isMany = most > 1;
    const isFree = "free" in root.dataset;
    let choices = [];
    let values = [];
    let shown = [];
    let active = -1;
    let typed = false;

    function set(text) {
      if (text === root.dataset.value) return;
      root.dataset.value = text;
      root.dispatchEvent(new CustomEvent("choice", { bubbles: true, detail: text }));
    }
    /* Let the server find the choices for a text; the newest text counts. */
    let asking = null;
    async function find(text) {
      if (!search) return;
      if (asking) asking.abort();
      asking = new AbortController();
      const asked = { view: window.radt.view, search: text, value: root.dataset.value };
      const found = await post(search, asked, asking.signal).catch(() => null);
      if (found && found.choices) root.dataset.choices = JSON.stringify(found.choices);
    }
    const isOpen = () => !box.hidden;
    const labelOf = (value) => (choices.find((one) => one.value === value) || { label: value }).label;

    const list = h("ul", { id: `${root.id}-list`, role: "listbox", "aria-label": label });
    const note = h("p", { role: "status" });
    const box = h("div", { class: "choices", hidden: true }, list, note);
    const input = h("input", {
      type: "text", role: "combobox", "aria-label": label, "aria-controls": list.id,
      "aria-autocomplete": "list", "aria-expanded": "false", autocomplete: "off", spellcheck: "false",
      onclick: open, oninput: type, onkeydown: press, onblur: leave,
    });
    const chips = h("span", { class: "choice-chips" });
    root.append(chips, input, box);
    root.addEventListener("mousedown", (event) => {
      if (event.target === input) return;
      event.preventDefault(); // the field keeps the focus
      if (event.target !== root) return;
      input.focus();
      open();
    });

    function draw() {
      chips.replaceChildren(...(isMany ? values : []).map((value) =>
        h("span", { class: "choice-chip" }, labelOf(value), h("button", {
          tabindex: "-1", "aria-label": `Remove ${labelOf(value)}`,
          onclick: () => setValues(values.filter((one) => one !== value)),
        }))));
      input.placeholder = isMany && values.length ? "" : placeholder || "";
      if (!typed) input.value = isMany ? "" : labelOf(values[0]);
      if (isOpen()) drawList();
    }

    function drawList() {
      const words = typed ? input.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
      const isFull = isMany && values.length >= most;
      const found = isFull ? [] : choices.filter((one) =>
        !(isMany && values.includes(one.value)) &&
        words.every((word) => one.label.toLowerCase().includes(word)));
      shown = found.slice(0, MOST_SHOWN);
      const more = found.length - shown.length;
      setText(note, isFull ? `At most ${most}` : more ? `${more.toLocaleString("en")} more: type to find them`
        : found.length || isFree ? "" : nothing);
      list.replaceChildren(...shown.flatMap((one, place) => [
        one.group !== (shown[place - 1] || {}).group &&
          h("li", { role: "presentation", class: "choice-group" }, one.group),
        h("li", {
          id: `${list.id}-${place}`, role: "option", "aria-selected": String(values.includes(one.value)),
          onclick: () => choose(one.value),
        }, one.label),
      ].filter(Boolean)));
      list.hidden = !shown.length;
      point(Math.min(active, shown.length - 1));
    }

    function point(place) {
      active = place;
      for (const element of list.querySelectorAll("[data-active]")) delete element.dataset.active;
      const element = document.getElementById(`${list.id}-${place}`);
      setAttribute(input, "aria-activedescendant", element && element.id);
      if (!element) return;
      element.dataset.active = "";
      element.scrollIntoView({ block: "nearest" });
    }

    function open() {
      if (isOpen()) return;
      if (!isMany) input.select();
      box.hidden = false;
      input.setAttribute("aria-expanded", "true");
      delete box.dataset.end;
      drawList();
      point(isMany ? -1 : shown.findIndex((one) => one.value === values[0]));
      if (box.getBoundingClientRect().right > document.documentElement.clientWidth) box.dataset.end = "";
      box.scrollIntoView({ block: "nearest" });
      find(""); // what was recorded since
    }

    function close() {
      box.hidden = true;
      input.setAttribute("aria-expanded", "false");
      input.removeAttribute("aria-activedescendant");
      if (typed) find("");
      typed = false;
      draw();
    }

    function setValues(next) {
      values = next;
      set(values.join(SEPARATOR));
      draw();
    }

    function choose(value) {
      if (isMany) {
        typed = false;
        setValues([...values, value]);
      } else {
        setValues([value]);
        close();
      }
    }

    function add() {
      const more = parts(input.value).filter((one) => !values.includes(one));
      typed = false;
      if (more.length) setValues([...values, ...more].slice(0, most));
      else draw();
    }

    function type() {
      typed = input.value !== "" || !isMany;
      if (isFree && input.value.includes(SEPARATOR)) add();
      open();
      active = isFree ? -1 : 0;
      drawList();
      find(input.value);
    }

    function press(event) {
      const { key } = event;
      const step = { ArrowDown: 1, ArrowUp: -1 }[key];
      if (step) {
        if (!isOpen()) open();
        else if (shown.length) point((Math.max(active, step < 0 ? 0 : -1) + step + shown.length) % shown.length);
      } else if (key === "Enter" && isOpen() && shown[active]) choose(shown[active].value);
      else if (key === "Enter" && isFree) leave();
      else if (key === "Backspace" && isMany && !input.value) setValues(values.slice(0, -1));
      else if (key === "Escape" && isOpen()) close();
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    function leave() {
      if (isFree && typed) add();
      close();
    }

    const known = {};
    return () => {
      const { choices: given = "[]", value = "" } = root.dataset;
      if (known.given === given && known.value === value) return;
      Object.assign(known, { given, value });
      choices = choicesOf(given);
      values = isMany ? parts(value) : [value];
      const pointed = shown[active];
      draw();
      if (isOpen() && pointed) point(shown.findIndex((one) => one.value === pointed.value));
    };
  }

  new MutationObserver(() => {
    for (const root of document.getElementsByClassName("choice-field")) {
      if (!follows.has(root)) follows.set(root, build(root));
      follows.get(root)();
    }
  }).observe(document, {
    childList: true, subtree: true, attributeFilter: ["data-choices", "data-value"],
  });
})();
