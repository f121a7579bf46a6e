/* The Runs page: the list of all columns, to choose those of the table. */
"use strict";

(function () {
  const { h, setText } = window.radt;

  const STATISTICS = ["last", "min", "max", "mean"];

  /* Open the list beside its button. It follows the table. */
  window.radt.chooseColumns = async (page) => {
    let offered = null;
    const filter = h("input", {
      type: "search", placeholder: "Filter columns", "aria-label": "Filter columns",
      oninput: () => draw(),
    });
    const list = h("div", { class: "runs-offer" });
    const reset = h("button", { type: "button", class: "quiet", onclick: () => page.setColumns(null) },
      "Automatic");

    const chosen = () => page.answer.columns.map(({ key, width_px: px }) => [key, px]);
    const has = (key) => page.answer.columns.some((column) => column.key === key);

    function set(key, on) {
      const others = chosen().filter(([one]) => one !== key);
      page.setColumns(on ? [...others, [key, 0]] : others);
    }

    const box = (key, label, title) => h("label", { title: title || label },
      h("input", {
        type: "checkbox", checked: has(key), "data-focus": key,
        onchange: (event) => set(key, event.target.checked),
      }), h("span", {}, label));

    const metric = ({ metric: name }) => h("div", { class: "runs-offer-metric", role: "group",
      "aria-label": name },
      h("span", { title: name }, name), STATISTICS.map((one) => box(`${name}.${one}`, one)));

    function section(title, entries, name, make) {
      const text = filter.value.toLowerCase();
      const shown = entries.filter((entry) => name(entry).toLowerCase().includes(text));
      return shown.length > 0 && h("section", {}, h("h3", {}, title), shown.map(make));
    }

    function draw() {
      if (!offered) return setText(list, "…");
      if (!list.isConnected) return undefined;
      const label = (entry) => entry.label;
      const simple = ({ key, label: text, title }) => box(key, text, title);
      return window.radt.refill(list,
        section("Of every run", offered.fields, label, simple),
        section("Logged metrics", offered.metrics.filter((one) => one.logged),
          (one) => one.metric, metric),
        section("Parameters", offered.params, label, simple),
        section("Measured", offered.metrics.filter((one) => !one.logged),
          (one) => one.metric, metric),
        section("Tags", offered.tags, label, simple));
    }

    window.radt.compare.openPanel(page.columns, "Columns",
      () => [h("div", { class: "runs-offer-head" }, filter, reset), list], "runs-offer-panel");
    page.columnsDrawn = draw;
    draw();
    offered = await window.radt.post("runs/columns", {});
    draw();
  };
})();
