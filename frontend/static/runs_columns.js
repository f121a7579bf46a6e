/* The Runs page: the list of all columns, to choose those of the table. */
"use strict";

(function () {
  const { checkLine, h, searchField, setText } = window.radt;

  const STATISTICS = ["last", "min", "max", "mean"];

  /* Open the list beside its button. It follows the table. */
  window.radt.chooseColumns = async (page) => {
    let offered = null;
    const filter = searchField("Filter columns", "", () => draw());
    const list = h("div", { class: "runs-offer" });
    const reset = h("button", { class: "quiet", onclick: () => page.setColumns(null) },
      "Automatic");

    const chosen = () => page.answer.columns.map(({ key, width_px: px }) => [key, px]);
    const has = (key) => page.answer.columns.some((column) => column.key === key);

    function set(key, on) {
      const others = chosen().filter(([one]) => one !== key);
      page.setColumns(on ? [...others, [key, 0]] : others);
    }

    const box = (key, label, title) =>
      checkLine(key, has(key), (on) => set(key, on), h("span", { class: "metric-name" }, label), { title: title || label });

    const item = ({ key, label, title, metric }) => (metric ? h("div", {
      class: "runs-offer-metric", role: "group", "aria-label": label,
    }, h("span", { title: label }, label), STATISTICS.map((one) => box(`${label}.${one}`, one)))
      : box(key, label, title));

    function section({ title, items }) {
      const text = filter.value.toLowerCase();
      const shown = items.filter(({ label }) => label.toLowerCase().includes(text));
      return shown.length > 0 && h("section", {}, h("h3", {}, title), shown.map(item));
    }

    function draw() {
      if (!offered) return setText(list, "Loading");
      return list.isConnected && window.radt.refill(list, offered.sections.map(section));
    }

    window.radt.compare.openPanel(page.columns, "Columns",
      () => [h("div", { class: "runs-offer-head" }, filter, reset), list], "runs-offer-panel");
    page.columnsDrawn = draw;
    draw();
    offered = await window.radt.post("runs/columns", {});
    draw();
  };
})();
