/* The Workload and Timeline pages: navigation, zoom, the cursor across all rows, the
   tooltip's content, the log. */
"use strict";

(function () {
  const { change, clock, filled, number, open, runLog, setOptions, setPart, setWindow, tip } = window.radt;
  const frameOf = () => document.querySelector(".workload-time");
  const axis = () => frameOf().dataset.axis;
  /* The newest answer of the page's route. */
  let answer = { live: [] };

  /* Another workload starts unzoomed. */
  const goTo = (workload) =>
    change((view) => {
      view.workload = workload;
      setPart(view, "windows", { barrier: null });
    });

  const zoomTo = (range) => setWindow(axis(), range);

  /* Clicking a bar opens its workload. A bar that stands for several is zoomed to. */
  const openBar = ([, workload, start, end]) => {
    tip.hide();
    if (workload) {
      const query = new URLSearchParams(window.location.search);
      query.set("w", workload);
      query.delete("t.barrier");
      open(window.radt.address("workload", query));
    } else if (end > start) zoomTo([start, end]);
  };

  /* A click starts from the window of earlier clicks, which may not be drawn yet. */
  function move(action, [first, last]) {
    const chosen = (window.radt.view.windows || {})[axis()];
    const [from, to] = chosen ? chosen.split(",").map(Number) : [first, last];
    const length = to - from;
    const moved = { earlier: -length / 2, later: length / 2, in: 0, out: 0 }[action];
    if (action === "all") return zoomTo(null);
    const grown = { in: -length / 4, out: length / 2 }[action] || 0;
    const start = Math.max(first, Math.min(from + moved - grown, last - length / 2));
    const end = Math.min(last, start + length + 2 * grown);
    return zoomTo(start <= first && end >= last ? null : [start, end]);
  }

  filled["timeline/data"] = filled["workload/data"] = (_root, found) => {
    answer = found || answer;
    followLog();
  };

  document.addEventListener("click", ({ target }) => {
    const button = target.closest(".workload-panel-head [data-zoom]");
    if (button) move(button.dataset.zoom, answer.whole);
    const step = target.closest(".workload-step");
    if (step) goTo(step.dataset.workload);
  });

  document.addEventListener("choice", ({ target, detail }) => {
    if (target.id === "workload-pick") goTo(detail);
    if (target.id !== "timeline-pick") return;
    // Another experiment or day starts unzoomed.
    const [kind, name] = detail.split(/ (.*)/s);
    change((view) => {
      if (kind === "experiment") view.experiment = name;
      setPart(view, "options", { "timeline.day": kind === "day" ? name : null });
      setPart(view, "windows", { wall: null });
    });
  });

  /* Zoom all rows to the range that was drawn on one. */
  document.addEventListener("plotted", ({ target: plot }) => {
    if (plot.isLinked) return;
    plot.isLinked = true;
    plot.on("plotly_relayout", (change_) => {
      const [start, end] = [change_["xaxis.range[0]"], change_["xaxis.range[1]"]];
      if (typeof start === "number" && typeof end === "number" && end > start) zoomTo([start, end]);
    });
    if (plot.id === "timeline-graph")
      plot.on("plotly_click", ({ points: [point] }) => point && openBar(point.customdata));
  });

  /* One hairline across all rows, with the time. The plots share their left and right margins. */
  const LEFT = 56;
  const RIGHT = 12;

  /* `14:05:09.25`, in the server's time zone, which it has already applied. */
  const timeOfDay = (seconds, digits) =>
    new Date(seconds * 1000).toISOString().slice(11, 19 + (digits && digits + 1));

  const digitsOf = (span) => (span < 2 ? 3 : span < 20 ? 2 : span < 200 ? 1 : 0);

  document.addEventListener("mousemove", (event) => {
    const cursor = document.querySelector(".workload-cursor");
    if (!cursor) return;
    const pointer = { x: event.clientX, y: event.clientY };
    const plot = event.target.closest && event.target.closest(".workload-time .js-plotly-plot");
    const range = plot && plot.layout && plot.layout.xaxis && plot.layout.xaxis.range;
    const box = plot && plot.getBoundingClientRect();
    const x = box ? event.clientX - box.left : -1;
    const inside = range && x >= LEFT && x <= box.width - RIGHT;
    cursor.hidden = !inside;
    if (!inside) {
      if (!event.target.closest || !event.target.closest("#timeline-bar")) tip.hide();
      return;
    }
    const share = (x - LEFT) / (box.width - LEFT - RIGHT);
    const seconds = range[0] + share * (range[1] - range[0]);
    const frame = frameOf();
    const digits = digitsOf(range[1] - range[0]);
    cursor.style.left = `${event.clientX - frame.getBoundingClientRect().left}px`;
    cursor.dataset.time = axis() === "wall"
      ? timeOfDay(seconds + answer.offset_s, digits)
      : clock(seconds, digits);
    const { hovermode, meta } = plot.layout;
    if (!meta) tip.hide(); // nothing is drawn yet
    else if (hovermode) followBar(plot, pointer);
    else showValues(plot, pointer, seconds, cursor.dataset.time);
  });

  /* Plotly reports the bar under the pointer with a short delay. */
  function followBar(plot, pointer) {
    plot.pointer = pointer;
    if (!plot.followed) {
      plot.followed = true;
      plot.on("plotly_hover", () => tellBar(plot));
      plot.on("plotly_unhover", () => tip.hide());
    }
    tellBar(plot);
  }

  function tellBar(plot) {
    const [point] = plot._hoverdata || [];
    if (point) tip.show(plot.pointer, { text: [point.customdata].flat()[0] });
    else tip.hide();
  }

  /* Show the values of all runs and devices in a strip. A run's value is the height of its
     band. */
  function showValues(plot, pointer, at, time) {
    const { yaxis } = plot._fullLayout;
    const y = pointer.y - plot.getBoundingClientRect().top - yaxis._offset;
    const found = [];
    for (const { x, y: edges, customdata, meta } of plot._fullData) {
      const place = meta ? tip.nearest(x, at) : -1;
      const value = place < 0 ? NaN : Number((customdata || edges)[place] ?? NaN);
      if (!Number.isFinite(value)) continue;
      const edge = yaxis.d2p(edges[place]);
      const foot = customdata ? yaxis.d2p(edges[place] - value) : edge;
      found.push({ meta, value, away: Math.max(0, edge - y, y - foot) });
    }
    found.sort((a, b) => b.value - a.value);
    const unit = plot.layout.meta.unit && ` ${plot.layout.meta.unit}`;
    const rows = found.map(({ meta, value }) => ({
      colour: meta.colour,
      name: meta.name,
      value: `${number(value)}${unit}`,
      note: meta.estimated && "estimated",
    }));
    const nearest = found.reduce((best, one) => (best && best.away <= one.away ? best : one), null);
    if (rows.length) tip.show(pointer, { at: time, rows, nearest: rows[found.indexOf(nearest)] });
    else tip.hide();
  }

  /* One button makes the bars accessible by keyboard: it lies on a bar, and the arrow keys
     move it. */
  let chosen = null;

  const plotOf = (button) => button.parentElement.querySelector(".js-plotly-plot");

  /* The bars from top left to bottom right. */
  const barsOf = (plot) =>
    [...plot.data[0].customdata]
      .map((custom, point) => ({ custom, y: plot.data[0].y[point], start: custom[2] }))
      .sort((a, b) => a.y - b.y || a.start - b.start);

  /* Return the bar that begins nearest in the nearest lane. */
  const nearest = (bars, { y, start }) => {
    const far = (bar) => [Math.abs(bar.y - y), Math.abs(bar.start - start)];
    return bars.reduce((best, bar) => {
      const [[lane, time], [bestLane, bestTime]] = [far(bar), far(best)];
      return lane < bestLane || (lane === bestLane && time < bestTime) ? bar : best;
    });
  };

  const stepped = (bars, from, key) => {
    const lane = bars.filter((bar) => bar.y === from.y);
    const beside = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[key];
    if (beside) {
      const place = lane.indexOf(from) + beside;
      return lane[Math.max(0, Math.min(lane.length - 1, place))];
    }
    const others = bars.filter((bar) => (key === "ArrowUp" ? bar.y < from.y : bar.y > from.y));
    return others.length ? nearest(others, from) : from;
  };

  /* Move the button to its bar, and show the bar's text as if the pointer were there. */
  const choose = (button, key) => {
    const plot = plotOf(button);
    const bars = plot && plot.data && plot.data[0] && plot.data[0].customdata ? barsOf(plot) : [];
    if (!bars.length) return;
    const from = chosen ? nearest(bars, chosen) : bars[0];
    chosen = key ? stepped(bars, from, key) : from;
    const [first, last] = plot.layout.xaxis.range;
    const width = plot.clientWidth - LEFT - RIGHT;
    const x = (at) => LEFT + width * Math.max(0, Math.min(1, (at - first) / (last - first)));
    const [text, , start, end] = chosen.custom;
    const height = plot.data[0].width;
    const place = {
      left: x(start),
      top: plot.layout.margin.t + chosen.y - height / 2,
      width: Math.max(2, x(end) - x(start)),
      height,
    };
    Object.entries(place).forEach(([name, px]) => button.style.setProperty(`--${name}`, `${px}px`));
    button.setAttribute("aria-label", text.replaceAll("\n", ", "));
    const box = button.getBoundingClientRect();
    tip.show({ x: box.left + box.width / 2, y: box.top + box.height / 2 }, { text });
  };

  const isBar = (element) => element.id === "timeline-bar";

  document.addEventListener("focusin", (event) => {
    if (isBar(event.target)) choose(event.target);
  });
  document.addEventListener("focusout", (event) => {
    if (isBar(event.target)) tip.hide();
  });
  document.addEventListener("click", (event) => {
    if (isBar(event.target) && chosen) openBar(chosen.custom);
  });
  document.addEventListener("keydown", (event) => {
    const moves = /^(Arrow|Home$|End$)/.test(event.key) && !event.ctrlKey && !event.altKey;
    if (!moves || !isBar(event.target)) return;
    event.preventDefault();
    choose(event.target, event.key);
  });

  /* A double click resets the zoom. Plotly covers the page while the button is pressed, so
     the browser does not report a double click. */
  document.addEventListener(
    "mousedown",
    (event) => {
      const twice = event.button === 0 && event.detail === 2;
      if (twice && event.target.closest(".workload-time .js-plotly-plot")) zoomTo(null);
    },
    true,
  );

  /* Show the log of the chosen run (run_log.js), which follows a running one. */
  let logged = {};
  function followLog() {
    const tab = document.querySelector("#workload-log-tabs [aria-pressed=true]");
    if (!tab) return;
    const id = tab.dataset.run;
    const live = (answer.live || []).includes(id);
    const box = document.getElementById("run-log");
    if (logged.id === id && logged.box === box) logged.live = live;
    else runLog.begin(logged = { id, box, live }).catch(() => {}); // another run was chosen meanwhile
  }

  document.addEventListener("click", (event) => {
    const tab = event.target.closest("#workload-log-tabs button");
    if (!tab) return;
    for (const one of tab.parentElement.children) one.setAttribute("aria-pressed", String(one === tab));
    followLog();
    setOptions({ "workload.log": tab.dataset.run.slice(0, 12) });
  });
})();
