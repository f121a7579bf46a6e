/* What runs in the browser on every page: the view, its address, colours, the pulse. */
"use strict";

(function () {
  const noUpdate = () => window.dash_clientside.no_update;

  /* The view as JSON (frontend/view.py), and the one way to change it outside of callbacks:
     `change` is given a copy, which it may alter or replace. */
  const radt = (window.radt = Object.assign(window.radt || {}, {
    view: {},
    change: (alter) => {
      const copy = structuredClone(radt.view);
      const next = alter(copy) || copy;
      if (JSON.stringify(next) === JSON.stringify(radt.view)) return;
      radt.view = next;
      window.dash_clientside.set_props("view", { data: next });
    },
  }));

  /* A page that comes to the front asks at once: browsers slow down what is in the background. */
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && document.getElementById("live"))
      window.dash_clientside.set_props("tick", { data: -Date.now() });
  });

  const dash = (window.dash_clientside = window.dash_clientside || {});
  dash.radt = Object.assign(dash.radt || {}, {
    /* The colours in use, now and whenever they change: Mantine keeps them on the root. */
    scheme: () => {
      const root = document.documentElement;
      const current = () => root.getAttribute("data-mantine-color-scheme") || "light";
      new MutationObserver(() =>
        window.dash_clientside.set_props("paper", { data: current() }),
      ).observe(root, { attributeFilter: ["data-mantine-color-scheme"] });
      return current();
    },

    /* A page in the background asks for nothing. */
    tick: (n) => (document.hidden ? noUpdate() : n),

    /* The address follows the view without filling the browser's history, and links lead to
       other pages with the same view. */
    address: (query, links) => {
      const rest = query ? "?" + query : "";
      window.history.replaceState(window.history.state, "", window.location.pathname + rest);
      return links.map((link) => link.page + rest);
    },

    /* The link to the page that is shown. */
    current: (path) => {
      for (const link of document.querySelectorAll(".bar nav a")) {
        if (link.pathname === path) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
      }
      return noUpdate();
    },

    /* For `radt.change`. */
    keep: (view) => {
      radt.view = view || {};
      return noUpdate();
    },

    /* A page that could not be shown is tried again when the store changes, and one that can no
       longer be shown says so. */
    retry: (revision, trouble, count) => {
      if (!revision) return noUpdate();
      const broken = revision.startsWith("!");
      if (broken !== Boolean(trouble) || (trouble && trouble !== revision))
        return (count || 0) + 1;
      return noUpdate();
    },
  });
})();
