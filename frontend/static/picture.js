/* Pictures of charts (share.js): an SVG sheet in the light colours, with title, units and
   legend. Plotly draws the charts. A canvas makes PNG from the sheet, and the browser's print
   dialog makes PDF. */
"use strict";

(function () {
  const { radt } = window;
  const { h, post } = radt;
  const NS = "http://www.w3.org/2000/svg";
  const SINGLE = { left: 0, top: 0, width: 880, height: 440 };
  const EDGE_PX = 16, HEADER_PX = 40, TITLE_PX = 44, ROW_PX = 20, MARK_PX = 40;
  const MAX_LEGEND = 60, MAX_LABEL = 48;
  const PNG_SCALE = 2;
  const TEXT = "#23272d", DIM = "#5f6771";

  function svg(tag, attributes, ...children) {
    const element = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  const text = (words, x, y, size, more) =>
    svg("text", { x, y, "font-size": size, fill: TEXT, ...more }, words);

  function placed(subject) {
    const { cards, charts, root } = radt.compare;
    const chosen = charts().map(({ slot }) => cards.get(slot))
      .filter((card) => card && (subject === "page" || String(card.slot) === subject));
    if (chosen.length === 1) return [[chosen[0], SINGLE]];
    const grid = root.querySelector(".charts").getBoundingClientRect();
    return chosen.map((card) => {
      const { left, top, width, height } = card.element.getBoundingClientRect();
      return [card, { left: left - grid.left, top: top - grid.top, width, height }];
    });
  }

  async function drawn({ asked, spec }, { left, top, width, height }) {
    const [width_px, height_px] = [Math.round(width), Math.round(height) - TITLE_PX];
    const found = await post("compare/figure", {
      ...asked, width_px, height_px, scheme: "light", paper: true,
    });
    if (!found || found.problem) throw (found && found.problem) || new Error("no answer");
    const meta = found.figure ? found.figure.layout.meta : { unit: "", notes: [found.missing] };
    const facts = [meta.unit, meta.aggregate && `${meta.aggregate} of runs`, meta.band,
      meta.relative && meta.relative !== "off" && `${meta.relative} to the baseline`, ...meta.notes];
    const box = svg("g", { transform: `translate(${left} ${top})` },
      text(spec.metric, 0, 16, 13, { "font-weight": 600 }),
      text(facts.filter(Boolean).join(" · "), 0, 34, 12, { fill: DIM }));
    if (found.figure) {
      const { data, layout } = found.figure;
      const plotly = await radt.plotly();
      const image = await plotly.toImage({ data, layout },
        { format: "svg", width: width_px, height: height_px, imageDataOnly: true });
      const { documentElement } = new DOMParser().parseFromString(image, "image/svg+xml");
      documentElement.setAttribute("y", TITLE_PX);
      box.append(documentElement);
    }
    return [box, meta];
  }

  /* Return lines with their names, each once: a run looks the same in all charts. */
  function legend(metas, width) {
    const entries = new Map();
    for (const meta of metas) {
      const keys = new Set((meta.lines || []).map(({ key }) => key));
      const beside = ((meta.second || {}).lines || []).filter(({ key }) => !keys.has(key));
      for (const line of [...(meta.lines || []), ...beside].filter(({ hidden }) => !hidden)) {
        const look = [line.key, line.colour, line.stroke].join(" ");
        if (!entries.has(look)) entries.set(look, { ...line, labels: new Set() });
        entries.get(look).labels.add(line.label);
      }
    }
    // If it is a workload's sum in one chart and its mean in another, use only the name.
    const names = [...entries.values()].map((line) => [line,
      line.labels.size === 1 ? line.label : line.short]);
    const more = names.length - MAX_LEGEND;
    if (more > 0) names.splice(MAX_LEGEND, more, [{ colour: "none" }, `and ${more} more`]);
    const shown = names.map(([line, name]) =>
      [line, name.length > MAX_LABEL ? `${name.slice(0, MAX_LABEL - 1)}…` : name]);
    const longest = Math.max(0, ...shown.map(([, name]) => name.length));
    const columns = Math.max(1, Math.floor(width / (7 * longest + MARK_PX + EDGE_PX)));
    const box = svg("g", {});
    shown.forEach(([{ colour, stroke }, name], place) => {
      const x = (place % columns) * (width / columns);
      const y = Math.floor(place / columns) * ROW_PX + ROW_PX / 2;
      box.append(
        svg("line", {
          x1: x, x2: x + MARK_PX - 10, y1: y, y2: y, stroke: colour, "stroke-width": 2,
          "stroke-dasharray": stroke && stroke !== "solid" ? stroke : "none",
        }),
        text(name, x + MARK_PX, y + 4, 12));
    });
    return [box, Math.ceil(shown.length / columns) * ROW_PX];
  }

  async function sheet(subject) {
    const { facts, zoomText } = radt.compare;
    const charts = placed(subject);
    if (!charts.length) throw { cause: "There is no chart.", remedy: "Add a chart to the page first." };
    const boxes = [];
    for (const [card, box] of charts) boxes.push(await drawn(card, box));
    const end = (side, size) => Math.max(...charts.map(([, box]) => box[side] + box[size]));
    const [width, height] = [end("left", "width"), end("top", "height")];
    const [names, legendPx] = legend(boxes.map(([, meta]) => meta), width);
    const body = svg("g", { transform: `translate(${EDGE_PX} ${EDGE_PX + HEADER_PX})` },
      ...boxes.map(([box]) => box), names);
    names.setAttribute("transform", `translate(0 ${height})`);
    const size = [width + 2 * EDGE_PX, height + legendPx + HEADER_PX + 2 * EDGE_PX];
    const title = [...facts.names, zoomText()].filter(Boolean).join(" · ");
    const { fontFamily } = getComputedStyle(document.body);
    return {
      name: [facts.names.length === 1 ? facts.names[0] : "compared",
        ...(subject === "page" ? [] : [charts[0][0].spec.metric])],
      root: svg("svg", {
        xmlns: NS, width: size[0], height: size[1], viewBox: `0 0 ${size[0]} ${size[1]}`,
        "font-family": fontFamily,
      },
        svg("rect", { width: "100%", height: "100%", fill: "#ffffff" }),
        text(title, EDGE_PX, EDGE_PX + 16, 15), body),
    };
  }

  async function png(blob, root) {
    const image = new Image();
    image.src = URL.createObjectURL(blob);
    await image.decode();
    URL.revokeObjectURL(image.src);
    const canvas = h("canvas");
    canvas.width = root.getAttribute("width") * PNG_SCALE;
    canvas.height = root.getAttribute("height") * PNG_SCALE;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const made = await new Promise((resolve) => canvas.toBlob(resolve));
    if (made) return made;
    throw { cause: "The picture is too large for a PNG in this browser.", remedy: "Save it as SVG." };
  }

  /* Print only the sheet, as a file of this name. */
  function print(root, name) {
    const { title } = document;
    const [width, height] = ["width", "height"].map((side) => root.getAttribute(side));
    document.body.append(h("div", { class: "print-sheet" }, root,
      h("style", {}, `@page { size: ${width}px ${height}px; margin: 0; }`)));
    document.title = name;
    window.addEventListener("afterprint", () => {
      root.parentNode.remove();
      document.title = title;
    }, { once: true });
    window.print();
  }

  /* Make a picture of "page", or of the chart in a slot. Return its file name and content.
     For PDF there is no content, as the browser's print dialog writes it. */
  radt.picture = async (subject, format) => {
    const { name, root } = await sheet(subject);
    const stem = ["radt", ...name].map((word) => word.replace(/[^\p{L}\p{N}_.+-]+/gu, "-")).join("-");
    if (format === "pdf") return print(root, stem);
    const blob = new Blob([new XMLSerializer().serializeToString(root)], { type: "image/svg+xml" });
    return { name: `${stem}.${format}`, blob: format === "png" ? await png(blob, root) : blob };
  };
})();
