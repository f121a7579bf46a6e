/* The Compare page: panels beside a button, whose content follows the page. */
"use strict";

(function () {
  const page = window.radt.compare;
  const { beside, h, refill } = window.radt;

  let open = null;

  /* `fill` returns the panel's content, and is called again whenever something changes. The
     focused field keeps the focus. */
  page.openPanel = (button, label, fill, className) => {
    const element = h("div", {
      class: `panel ${className}`, role: "dialog", "aria-label": label, tabindex: "-1",
    }, fill());
    if (!beside.open(button, element)) return;
    open = { element, fill };
    const first = element.querySelector("[autofocus]") || element.querySelector("input, select, button");
    (first || element).focus({ preventScroll: true });
  };

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

  page.renderers.push(() => {
    if (!open || !open.element.isConnected) return;
    const { element, fill } = open;
    // A field in which the user is typing stays as it is.
    if (element.querySelector(":is([type=search], [type=number], [type=range]):focus")) return;
    const scrolled = () => [element, ...element.querySelectorAll("[data-scroll]")];
    const tops = scrolled().map((one) => one.scrollTop);
    const content = fill();
    if (!content) {
      beside.close();
      return;
    }
    refill(element, content);
    scrolled().forEach((one, place) => { one.scrollTop = tops[place] || 0; });
    beside.place();
  });
})();
