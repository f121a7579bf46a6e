/* The Workload and Timeline pages: what is shown, zoom, the cursor across all rows, the log. */
"use strict";

(function () {
  const { change, clock, open, setPart, setWindow, noUpdate } = window.radt;
  const frameOf = () => document.querySelector(".workload-time");
  const axis = () => (frameOf() && frameOf().dataset.axis) || "barrier";

  const triggered = () => {
    const [one] = window.dash_clientside.callback_context.triggered;
    return one || {};
  };

  /* Another workload starts unzoomed. */
  const goTo = (workload) =>
    change((view) => {
      view.workload = workload;
      setPart(view, "windows", { barrier: null });
    });

  const zoomTo = (range) => setWindow(axis(), range);

  window.radt.register({
    workloadPick: (chosen, shown) => {
      if (chosen && shown && chosen !== shown.id) goTo(chosen);
      return noUpdate();
    },

    workloadStep: () => {
      const one = triggered();
      if (!one.value) return noUpdate();
      goTo(JSON.parse(one.prop_id.replace(/\.n_clicks$/, "")).to);
      return noUpdate();
    },

    /* Zoom all rows to the range that was drawn on one. */
    workloadZoom: () => {
      const change = triggered().value || {};
      const start = change["xaxis.range[0]"];
      const end = change["xaxis.range[1]"];
      if (typeof start === "number" && typeof end === "number" && end > start)
        zoomTo([start, end]);
      return noUpdate();
    },

    /* A click starts from the window of earlier clicks, which may not be drawn yet. */
    workloadMove: (_clicks, seen) => {
      const one = triggered();
      if (!one.value || !seen) return noUpdate();
      const { action } = JSON.parse(one.prop_id.replace(/\.n_clicks$/, ""));
      const [first, last] = seen.whole;
      const chosen = (window.radt.view.windows || {})[axis()];
      const [from, to] = chosen ? chosen.split(",").map(Number) : [first, last];
      const length = to - from;
      const moved = { earlier: -length / 2, later: length / 2, in: 0, out: 0 }[action];
      if (action === "all") zoomTo(null);
      else {
        const grown = { in: -length / 4, out: length / 2 }[action] || 0;
        const start = Math.max(first, Math.min(from + moved - grown, last - length / 2));
        const end = Math.min(last, start + length + 2 * grown);
        const whole = start <= first && end >= last;
        zoomTo(whole ? null : [start, end]);
      }
      return noUpdate();
    },

    /* The open log is part of the view. */
    workloadLog: (run) => {
      if (run)
        change((view) => setPart(view, "options", { "workload.log": run.slice(0, 12) }));
      return noUpdate();
    },

    workloadFollow: (tick, shown) => (shown && shown.live ? tick : noUpdate()),

    /* Another experiment or day starts unzoomed. */
    timelinePick: (chosen) => {
      const { experiment, options } = window.radt.view;
      const day = (options || {})["timeline.day"];
      const known = day ? `day ${day}` : `experiment ${experiment}`;
      if (!chosen || chosen === known) return noUpdate();
      const [kind, name] = chosen.split(/ (.*)/s);
      change((view) => {
        if (kind === "experiment") view.experiment = name;
        setPart(view, "options", { "timeline.day": kind === "day" ? name : null });
        setPart(view, "windows", { wall: null });
      });
      return noUpdate();
    },

    /* A bar leads to its workload; one that stands for several is zoomed to. */
    timelineOpen: (click) => {
      const [point] = (click && click.points) || [];
      if (!point) return noUpdate();
      const [, workload, start, end] = point.customdata;
      if (workload) {
        const query = new URLSearchParams(window.location.search);
        query.set("w", workload);
        query.delete("t.barrier");
        open(`/workload?${query}`);
      } else if (end > start) zoomTo([start, end]);
      return noUpdate();
    },
  });

  /* One hairline across all rows, with the time. The plots share their left and right margins. */
  const LEFT = 56;
  const RIGHT = 12;

  /* `14:05:09.25`, in the time zone that the server has added. */
  const timeOfDay = (seconds, digits) =>
    new Date(seconds * 1000).toISOString().slice(11, 19 + (digits && digits + 1));

  const digitsOf = (span) => (span < 2 ? 3 : span < 20 ? 2 : span < 200 ? 1 : 0);

  document.addEventListener("mousemove", (event) => {
    const cursor = document.querySelector(".workload-cursor");
    if (!cursor) return;
    const graph = event.target.closest && event.target.closest(".workload-time .dash-graph");
    const plot = graph && graph.querySelector(".js-plotly-plot");
    const range = plot && plot.layout && plot.layout.xaxis && plot.layout.xaxis.range;
    const box = graph && graph.getBoundingClientRect();
    const x = box ? event.clientX - box.left : -1;
    const inside = range && x >= LEFT && x <= box.width - RIGHT;
    cursor.hidden = !inside;
    if (!inside) return;
    const share = (x - LEFT) / (box.width - LEFT - RIGHT);
    const seconds = range[0] + share * (range[1] - range[0]);
    const frame = frameOf();
    const digits = digitsOf(range[1] - range[0]);
    cursor.style.left = `${event.clientX - frame.getBoundingClientRect().left}px`;
    cursor.dataset.time = frame.dataset.offset
      ? timeOfDay(seconds + Number(frame.dataset.offset), digits)
      : clock(seconds, digits);
  });

  /* A double click resets the zoom. Plotly covers the page while the button is down, so the browser
     does not report a double click. */
  document.addEventListener(
    "mousedown",
    (event) => {
      const twice = event.button === 0 && event.detail === 2;
      if (twice && event.target.closest(".workload-time .dash-graph")) zoomTo(null);
    },
    true,
  );

  /* A log at its end follows new lines; a log that was scrolled up keeps its position. */
  const atEnd = new WeakMap();
  const isAtEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  document.addEventListener(
    "scroll",
    (event) => {
      if (event.target.id === "workload-log") atEnd.set(event.target, isAtEnd(event.target));
    },
    true,
  );
  new MutationObserver(() => {
    const log = document.getElementById("workload-log");
    if (log && atEnd.get(log) !== false) log.scrollTop = log.scrollHeight;
  }).observe(document, { childList: true, characterData: true, subtree: true });
})();
