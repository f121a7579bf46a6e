/* The Compare page: panels that open beside a button, one at a time. */
"use strict";

(function () {
  const page = window.radt.compare;
  const { h, refill } = window.radt;

  let open = null;

  /* `fill` returns the panel's content, and is called again whenever something changes. The
     focused field keeps the focus. */
  page.openPanel = (button, label, fill, className) => {
    const again = open && open.button === button;
    if (open) closePanel();
    if (again) return;
    const element = h("div", {
      class: `panel ${className || ""}`, role: "dialog", "aria-label": label, tabindex: "-1",
    });
    open = { button, element, fill };
    button.setAttribute("aria-expanded", "true");
    document.body.append(element);
    fillAgain();
    place();
    const first = element.querySelector("[autofocus]") || element.querySelector("input, select, button");
    (first || element).focus({ preventScroll: true });
    document.addEventListener("pointerdown", outside, true);
    document.addEventListener("keydown", escape, true);
    document.addEventListener("focusin", left);
    window.addEventListener("resize", place);
    window.addEventListener("popstate", closePanel);
    window.addEventListener("scroll", place, true);
  };

  page.closePanel = closePanel;

  /* Show only the rows that contain all words of a text, and the sections with such rows. Return
     whether there are any. */
  page.narrow = (holder, text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...holder.querySelectorAll("[data-words]")];
    for (const row of rows) row.hidden = !words.every((word) => row.dataset.words.includes(word));
    for (const section of holder.querySelectorAll("section"))
      section.hidden = !section.querySelector("[data-words]:not([hidden])");
    return rows.some((row) => !row.hidden);
  };

  function closePanel() {
    if (!open) return;
    const { button, element } = open;
    const inside = element.contains(document.activeElement);
    open = null;
    button.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside, true);
    document.removeEventListener("keydown", escape, true);
    document.removeEventListener("focusin", left);
    window.removeEventListener("resize", place);
    window.removeEventListener("popstate", closePanel);
    window.removeEventListener("scroll", place, true);
    element.remove();
    if (inside && button.isConnected) button.focus({ preventScroll: true });
  }

  function outside(event) {
    if (!open.element.contains(event.target) && !open.button.contains(event.target)) closePanel();
  }

  function left(event) {
    if (!open.element.contains(event.target) && event.target !== open.button) closePanel();
  }

  function escape(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    closePanel();
  }

  function fillAgain() {
    const { element, fill } = open;
    const scrolled = [...element.querySelectorAll("[data-scroll]")].map((one) => one.scrollTop);
    const top = element.scrollTop;
    const content = fill();
    if (!content) {
      closePanel();
      return;
    }
    refill(element, content);
    element.querySelectorAll("[data-scroll]").forEach((one, i) => { one.scrollTop = scrolled[i] || 0; });
    element.scrollTop = top;
  }

  function place() {
    if (!open) return;
    if (!open.button.isConnected) {
      closePanel();
      return;
    }
    const box = open.button.getBoundingClientRect();
    const { element } = open;
    const margin = 8;
    const below = window.innerHeight - box.bottom - 2 * margin;
    const above = box.top - 2 * margin;
    const up = below < Math.min(element.scrollHeight, 320) && above > below;
    element.style.maxHeight = `${Math.max(160, up ? above : below)}px`;
    const left_ = Math.min(box.left, window.innerWidth - element.offsetWidth - margin);
    element.style.left = `${Math.max(margin, left_)}px`;
    element.style.top = up
      ? `${Math.max(margin, box.top - element.offsetHeight - 4)}px`
      : `${box.bottom + 4}px`;
  }

  /* Do not overwrite a field in which the user is typing. */
  page.renderers.push(() => {
    if (!open) return;
    const active = document.activeElement;
    const writing =
      open.element.contains(active) && active.matches('input[type="search"], input[type="number"], input[type="range"]');
    if (!writing) fillAgain();
    place();
  });
})();
