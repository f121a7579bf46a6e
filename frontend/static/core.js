/* Shared by all pages, loaded first: elements, texts, links, callbacks, view and address. */
"use strict";

(function () {
  const noUpdate = () => window.dash_clientside.no_update;
  const send = (id, data) => window.dash_clientside.set_props(id, { data });
  const { plotly: plotlyAddress } = document.currentScript.dataset;

  /* ---- elements ------------------------------------------------------------------------------ */

  /* Create an element. Attributes that begin with "on" are listeners; strings become text
     nodes. Buttons send no form unless their type says so. */
  function h(tag, attributes, ...children) {
    const element = document.createElement(tag);
    if (tag === "button") element.type = "button";
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "value" || name === "checked") element[name] = value;
      else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child || child === 0));
    return element;
  }

  function setText(element, text) {
    if (element.textContent !== (text || "")) element.textContent = text || "";
  }

  function setAttribute(element, name, value) {
    if (value === undefined || value === null || value === false || value === "")
      element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }

  /* Return a field whose text `search` gets after each change. */
  const searchField = (label, text, search, more) =>
    h("input", {
      class: "field", type: "search", placeholder: label, "aria-label": label, "data-focus": label, value: text,
      oninput: ({ target }) => search(target.value), ...more,
    });

  /* Return a line of a list with a checkbox, whose new state `check` gets. */
  const checkLine = (name, isChecked, check, content, more) =>
    h("label", { class: "metric-row", ...more }, h("input", {
      type: "checkbox", checked: isChecked, "data-focus": name, onchange: ({ target }) => check(target.checked),
    }), content);

  /* Return a short line in the colour of a run, for both schemes. */
  function swatch(className, light, dark) {
    const element = h("span", { class: className });
    element.style.setProperty("--light", light);
    element.style.setProperty("--dark", dark);
    return element;
  }

  /* Replace the content of an element. The focused element, identified by `data-focus`, keeps
     the focus, and regions their scroll position. */
  function refill(element, ...children) {
    const active = document.activeElement;
    const name = element.contains(active) ? active.dataset.focus : undefined;
    const regions = () => [...element.querySelectorAll("[data-focus][role=region]")];
    const lefts = new Map(regions().map((one) => [one.dataset.focus, one.scrollLeft]));
    element.replaceChildren(...children.flat().filter(Boolean));
    for (const one of regions()) one.scrollLeft = lefts.get(one.dataset.focus) || 0;
    if (name === undefined) return true;
    const again = [...element.querySelectorAll("[data-focus]")]
      .find((one) => one.dataset.focus === name);
    if (again) again.focus({ preventScroll: true });
    return Boolean(again);
  }

  /* Follow the pointer until its button is released, or Escape is pressed. */
  function drag(move, end) {
    const stop = new AbortController();
    const on = (type, act) => window.addEventListener(type, act, { capture: true, signal: stop.signal });
    const finish = (isDropped) => {
      stop.abort();
      end(isDropped);
    };
    on("pointermove", move);
    on("pointerup", () => finish(true));
    on("pointercancel", () => finish(false));
    on("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      finish(false);
    });
  }

  /* Return a function that calls `act` with its newest arguments once no call has come for a time. */
  function debounced(act, ms) {
    let timer = 0;
    return (...given) => {
      clearTimeout(timer);
      timer = setTimeout(act, ms, ...given);
    };
  }

  const scheme = () => document.documentElement.dataset.theme;
  const onScheme = (act) => new MutationObserver(() => act())
    .observe(document.documentElement, { attributeFilter: ["data-theme"] });

  /* ---- texts --------------------------------------------------------------------------------- */

  /* `1:02`, `1:02:03`, `−0:04.25` */
  function clock(seconds, decimals = 0) {
    const [whole, rest] = Math.abs(seconds).toFixed(decimals).split(".");
    const two = (number) => String(number).padStart(2, "0");
    const hours = Math.floor(whole / 3600);
    const minutes = Math.floor(whole / 60) % 60;
    const parts = hours ? [hours, two(minutes), two(whole % 60)] : [minutes, two(whole % 60)];
    return (seconds < 0 ? "−" : "") + parts.join(":") + (rest ? `.${rest}` : "");
  }

  /* Four significant digits: `12,340`, `0.5`, `1.2e−7`. */
  function number(value) {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6))
      return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e").replace("-", "−")
        .replace("e-", "e−");
    const text = String(Number(value.toPrecision(4)));
    const [whole, rest] = text.split(".");
    const grouped = whole.length > 4 ? whole.replace(/\B(?=(\d{3})+$)/g, ",") : whole;
    return (rest ? `${grouped}.${rest}` : grouped).replace("-", "−");
  }

  /* ---- requests ------------------------------------------------------------------------------ */

  /* Send JSON and return the JSON of the answer, null if nothing changed. An answer of
     another type is not the dashboard's, but for example a proxy's login page. */
  async function post(path, body, signal) {
    const response = await fetch(address(path), {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json" },
      body: JSON.stringify(body),
      credentials: "same-origin",
      signal,
    });
    if (response.status === 204) return null;
    if (!(response.headers.get("Content-Type") || "").startsWith("application/json"))
      throw new Error(`status ${response.status}`);
    return response.json();
  }

  /* Plotly, loaded on first use, and its settings for charts without buttons. */
  const PLAIN = {
    displayModeBar: false, displaylogo: false, showSendToCloud: false, showTips: false, doubleClick: "autosize",
  };
  let library = null;
  async function plotly() {
    library = library || new Promise((resolve, reject) => {
      if (window.Plotly) resolve();
      else document.head.append(h("script", { src: plotlyAddress, onload: resolve, onerror: reject }));
    });
    try {
      await library;
    } catch {
      library = null; // so that the next use retries
      throw new Error("Plotly could not be loaded");
    }
    return window.Plotly;
  }

  /* Return the answer to a user's request. Throws { cause, remedy }. */
  async function request(path, options) {
    let answer;
    try {
      answer = await fetch(address(path), options);
    } catch (error) {
      throw { cause: "The dashboard does not answer.", remedy: "Is it still running?" };
    }
    if (answer.ok) return answer;
    const found = await answer.json().catch(() => ({}));
    throw Object.assign({ cause: `The dashboard answers ${answer.status}.`, remedy: "" }, found);
  }

  /* ---- links --------------------------------------------------------------------------------- */

  /* Return the address of a path of the dashboard (frontend/addresses.py); the query may be text,
     URLSearchParams or that of an address. */
  function address(path = "", query = "") {
    const rest = String(query).replace(/^\?/, "");
    return `./${path}${rest && "?"}${rest}`;
  }

  /* Return the path of the current page. */
  const here = () => window.location.pathname.split("/").pop();

  /* Open another page of the dashboard without reloading the application. */
  function open(href) {
    window.history.pushState({}, "", href);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  }

  /* For `onclick` of a link: like `open`, unless the user wants a new tab. */
  function follow(event, link = event.currentTarget) {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    open(link.href);
  }

  /* Links with `data-keep` set what their own address has and keep the rest of the view. */
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-keep]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    const query = new URLSearchParams(window.location.search);
    const set = new URLSearchParams(link.search);
    for (const name of [...query.keys()])
      if (set.has(name) || (set.has("id") && name.startsWith("o.run."))) query.delete(name);
    for (const [name, value] of set) query.append(name, value);
    open(`${link.pathname}?${query}`);
  });

  /* ---- the view (frontend/view.py) ----------------------------------------------------------- */

  /* Change the view outside of callbacks. `alter` gets a copy, to modify or replace. */
  function change(alter) {
    const copy = structuredClone(radt.view);
    const next = alter(copy) || copy;
    if (JSON.stringify(next) === JSON.stringify(radt.view)) return;
    radt.view = next;
    send("view", next);
  }

  /* Set entries of `view[part]`, an object that is omitted when empty. */
  function setPart(view, part, entries) {
    const next = { ...view[part], ...entries };
    for (const [name, value] of Object.entries(next))
      if (value === undefined || value === null || value === "") delete next[name];
    if (Object.keys(next).length) view[part] = next;
    else delete view[part];
  }

  /* Options of single pages are texts, "" if not set. */
  const option = (name) => (radt.view.options || {})[name] || "";
  const setOptions = (options) => change((view) => setPart(view, "options", options));

  /* Zoom all charts with the x axis `x` to a range; null shows everything. */
  const setWindow = (x, range) =>
    change((view) => setPart(view, "windows", {
      [x]: range && range.map((end) => Number(end.toPrecision(13))).join(","),
    }));

  /* ---- callbacks (`_in_browser` in frontend/app.py) ------------------------------------ */

  const dash = (window.dash_clientside = window.dash_clientside || {});
  dash.radt = dash.radt || {};
  const register = (functions) => Object.assign(dash.radt, functions);

  const radt = (window.radt = {
    view: {}, noUpdate,
    /* Scripts that draw a page from its route's data instead of parts (parts.js), by route. They
       are called with the element and the store's revision, which is null until it is known. */
    drawn: {},
    send, h, setText, setAttribute, searchField, checkLine, swatch, refill, drag, debounced, scheme, onScheme, clock, number,
    address, here, open, follow, post, request, plotly, PLAIN,
    change, setPart, option, setOptions, setWindow, register,
  });

  /* Poll at once when the page comes to the front, as browsers slow down background pages. */
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && document.getElementById("live")) send("tick", -Date.now());
  });

  register({
    /* A page in the background requests nothing. */
    tick: (n) => (document.hidden ? noUpdate() : n),

    /* Update the address with the view, without filling the browser's history. Links lead to
       other pages with the same view. */
    address: (query, links) => {
      window.history.replaceState(window.history.state, "", address(here(), query));
      return links.map((link) => address(link.page, query));
    },

    title: (text) => {
      document.title = text;
      return noUpdate();
    },

    /* Mark the link to the current page. */
    current: (path) => {
      for (const link of document.querySelectorAll(".bar nav a"))
        setAttribute(link, "aria-current", link.pathname === path && "page");
      return noUpdate();
    },

    /* Retry a page that could not be shown when the store changes. Show the error of a page
       that can no longer be shown. */
    retry: (revision, trouble, count) => {
      if (!revision) return noUpdate();
      const broken = revision.startsWith("!");
      if (broken !== Boolean(trouble) || (trouble && trouble !== revision))
        return (count || 0) + 1;
      return noUpdate();
    },
  });
})();
