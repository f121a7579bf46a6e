/* Plotly figures logged by scripts: their traces and layout (frontend/data/run/figure.py) in
   the style of the page (frontend/charts/logged.py). */
"use strict";

(function () {
  const { h, plotly, setAttribute } = window.radt;
  const CONFIG = { displayModeBar: false, displaylogo: false, showTips: false, doubleClick: "autosize" };
  const drawn = new Map(); /* redraw function of each figure on the page */

  /* Draw the figure that the server has read once its container is on the page, or in the
     container of another figure, which stays visible until then. */
  function figure(read, label, link, box = h("div", { class: "run-figure", role: "img" })) {
    setAttribute(box, "aria-label", label);
    drawn.set(box, async () => {
      const { data, layout } = JSON.parse(read.figure);
      const template = read.templates[document.documentElement.dataset.theme];
      try {
        await (await plotly()).react(box, data, { ...layout, template, autosize: true }, CONFIG);
      } catch (error) {
        console.warn(error);
        box.replaceWith(h("p", { class: "workload-dim" }, "Plotly cannot draw this figure. ", link));
      }
    });
    if (box._fullLayout) drawn.get(box)();
    else sized.observe(box);
    return box;
  }

  const sized = new ResizeObserver((entries) => {
    for (const { target } of entries)
      if (!target.isConnected) {
        sized.unobserve(target);
        drawn.delete(target);
        if (window.Plotly) window.Plotly.purge(target);
      } else if (target._fullLayout) window.Plotly.Plots.resize(target);
      else if (target.offsetWidth) drawn.get(target)();
  });

  new MutationObserver(() => drawn.forEach((draw, box) => box._fullLayout && draw()))
    .observe(document.documentElement, { attributeFilter: ["data-theme"] });

  window.radt.figure = figure;
})();
