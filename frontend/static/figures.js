/* Plotly figures: those of a page's parts (frontend/pages/parts.py), and those logged by scripts
   (frontend/data/run/figure.py), in the style of the page (frontend/charts/logged.py). */
"use strict";

(function () {
  const { h, onScheme, plotly, PLAIN, scheme, setAttribute } = window.radt;
  const WITH_IMAGE = { ...PLAIN, displayModeBar: "hover", doubleClick: false, modeBarButtons: [["toImage"]] };
  const drawn = new Map(); /* redraw function of each figure on the page */

  /* Draw a figure as soon as its box has a size, and follow its size until it leaves the page. */
  function follow(box, draw) {
    drawn.set(box, draw);
    if (box._fullLayout) return void draw();
    sized.unobserve(box); // a figure that could not be drawn is observed already
    sized.observe(box);
  }

  /* Draw a figure of a page's part. The box then sends the event "plotted". */
  function drawFigure(box, { data, layout }) {
    box.style.height = `${layout.height}px`;
    const filename = `radt ${box.closest("[aria-label]").ariaLabel}`;
    follow(box, async () => {
      try {
        if (!box._fullLayout) box.replaceChildren(); // the message of a failure
        await (await plotly()).react(box, data, layout, { ...WITH_IMAGE, toImageButtonOptions: { format: "svg", filename } });
        box.dispatchEvent(new CustomEvent("plotted", { bubbles: true }));
      } catch (error) {
        console.warn(error);
        if (window.Plotly) window.Plotly.purge(box); // the next figure starts anew
        box.replaceChildren(h("p", { class: "workload-dim", role: "status" },
          `This figure cannot be drawn: ${error.message}`));
      }
    });
  }

  /* Draw the figure that the server has read once its container is on the page, or in the
     container of another figure, which stays visible until then. */
  function figure(read, label, link, box = h("div", { class: "run-figure", role: "img" })) {
    setAttribute(box, "aria-label", label);
    follow(box, async () => {
      const { data, layout } = JSON.parse(read.figure);
      const template = read.templates[scheme()];
      try {
        await (await plotly()).react(box, data, { ...layout, template, autosize: true }, PLAIN);
      } catch (error) {
        console.warn(error);
        box.replaceWith(h("p", { class: "workload-dim" }, "Plotly cannot draw this figure. ", link));
      }
    });
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

  onScheme(() => drawn.forEach((draw, box) => box._fullLayout && draw()));

  Object.assign(window.radt, { figure, drawFigure });
})();
