/* The colour scheme: the user's choice, else the system's. Loaded in the page's head, so that
   nothing is first drawn in the other colours. It is in the root's attribute `data-theme`. */
"use strict";

(function () {
  const KEY = "radt-theme";
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const systems = () => (dark.matches ? "dark" : "light");

  /* Browsers may be set to store nothing. The choice then lasts as long as the page. */
  const ifAllowed = (act) => { try { return act(window.localStorage); } catch { return null; } };
  const stored = () => ifAllowed((storage) => storage.getItem(KEY));
  /* Choosing the system's scheme follows the system again. */
  const store = (theme) => ifAllowed((storage) =>
    (theme === systems() ? storage.removeItem(KEY) : storage.setItem(KEY, theme)));

  const show = (theme) => { root.dataset.theme = theme; };
  const follow = () => show(stored() || systems());

  follow();
  dark.addEventListener("change", follow);
  window.addEventListener("storage", follow); // chosen in another tab

  document.addEventListener("click", (event) => {
    if (!event.target.closest("#scheme")) return;
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    store(theme);
    show(theme);
  });
})();
