/* The Compare page: small charts of all other metrics, in collapsible sections, and the field
   that filters charts by name. */
"use strict";

(function () {
  const { radt } = window;
  const { debounced, h, option, searchField, setOptions } = radt;
  const page = radt.compare;
  const FIND = "compare.find";
  const CLOSED = "compare.closed";
  const LONGEST = 200;

  let made = new Map();
  page.begun.push(() => {
    made = new Map();
  });

  page.found = (metric) =>
    option(FIND).toLowerCase().split(/\s+/).every((word) => metric.toLowerCase().includes(word));

  page.sections = () => {
    const own = new Set(page.charts().map((spec) => spec.metric));
    const closed = option(CLOSED).split(",");
    return Object.entries(page.facts.sections)
      .map(([title, all]) => ({
        title,
        metrics: all.filter((metric) => !own.has(metric) && page.found(metric)),
        closed: closed.includes(title),
      }))
      .filter(({ metrics }) => metrics.length);
  };

  function toggle(title) {
    const closed = new Set(option(CLOSED).split(",").filter(Boolean));
    if (!closed.delete(title)) closed.add(title);
    setOptions({ [CLOSED]: [...closed].join(",") });
  }

  function make(title) {
    const count = h("span", { class: "unit" });
    const button = h("button", {
      class: "section-toggle", onclick: () => toggle(title),
    }, page.icon("chevron"), h("span", {}, title), count);
    const body = h("div", { class: "charts small" });
    return { element: h("section", {}, h("h2", {}, button), body), button, count, body };
  }

  const fill = (holder, elements) => {
    if (elements.some((one, place) => holder.children[place] !== one)) holder.append(...elements);
  };

  page.arrange = (sections) => {
    const holder = document.getElementById("compare-sections");
    for (const [title, { element }] of made)
      if (!sections.some((one) => one.title === title)) {
        element.remove();
        made.delete(title);
      }
    for (const { title, metrics, closed } of sections) {
      if (!made.has(title)) made.set(title, make(title));
      const { button, count, body } = made.get(title);
      radt.setText(count, String(metrics.length));
      button.setAttribute("aria-expanded", String(!closed));
      body.hidden = closed;
      if (!closed) fill(body, metrics.map((metric) => page.cards.get(metric).element));
    }
    fill(holder, sections.map(({ title }) => made.get(title).element));
  };

  const find = debounced((text) => setOptions({ [FIND]: text.trim() }), 120);
  page.filterField = () =>
    searchField("Filter charts", option(FIND), find, { class: "field find", maxlength: LONGEST });
  page.unfilter = (metrics) => {
    if (!metrics.every(page.found)) setOptions({ [FIND]: "" });
  };
  page.filtered = () => option(FIND);
})();
