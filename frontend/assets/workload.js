/* The Workload page in the browser: another workload, zoom, the cursor across all rows, the log. */
"use strict";

(function () {
  const noUpdate = () => window.dash_clientside.no_update;
  const radt = (window.radt = window.radt || {});
  const AXIS = "barrier";

  const triggered = () => {
    const [one] = window.dash_clientside.callback_context.triggered;
    return one || {};
  };

  /* Another workload begins unzoomed: its times are others. */
  const goTo = (workload) =>
    radt.change((view) => {
      view.workload = workload;
      if (view.windows) delete view.windows[AXIS];
    });

  const zoomTo = (window_) =>
    radt.change((view) => {
      view.windows = Object.assign({}, view.windows);
      if (window_) view.windows[AXIS] = window_.map((s) => +s.toPrecision(10)).join(",");
      else delete view.windows[AXIS];
      if (!Object.keys(view.windows).length) delete view.windows;
    });

  const dash = (window.dash_clientside = window.dash_clientside || {});
  dash.radt = Object.assign(dash.radt || {}, {
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

    /* The stretch that was drawn over one row becomes that of all. */
    workloadZoom: () => {
      const change = triggered().value || {};
      const start = change["xaxis.range[0]"];
      const end = change["xaxis.range[1]"];
      if (typeof start === "number" && typeof end === "number" && end > start)
        zoomTo([start, end]);
      return noUpdate();
    },

    workloadMove: (_clicks, seen) => {
      const one = triggered();
      if (!one.value || !seen) return noUpdate();
      const { action } = JSON.parse(one.prop_id.replace(/\.n_clicks$/, ""));
      const length = seen.end - seen.start;
      const [first, last] = seen.whole;
      const moved = { earlier: -length / 2, later: length / 2, in: 0, out: 0 }[action];
      if (action === "all") zoomTo(null);
      else {
        const grown = { in: -length / 4, out: length / 2 }[action] || 0;
        const start = Math.max(first, Math.min(seen.start + moved - grown, last - length / 2));
        const end = Math.min(last, start + length + 2 * grown);
        const whole = start <= first && end >= last;
        zoomTo(whole ? null : [start, end]);
      }
      return noUpdate();
    },

    /* Which log is open is part of the view. */
    workloadLog: (run) => {
      if (run)
        radt.change((view) => {
          view.options = Object.assign({}, view.options, { "workload.log": run.slice(0, 12) });
        });
      return noUpdate();
    },

    workloadFollow: (tick, shown) => (shown && shown.live ? tick : noUpdate()),
  });

  /* One hairline across all rows, with the time. The plots share their left and right margins. */
  const LEFT = 56;
  const RIGHT = 12;

  function label(seconds, span) {
    const digits = span < 2 ? 3 : span < 20 ? 2 : span < 200 ? 1 : 0;
    const sign = seconds < 0 ? "−" : "";
    const total = Math.abs(seconds);
    const whole = Math.floor(+total.toFixed(digits));
    const rest = (total - Math.floor(total)).toFixed(digits).slice(1);
    const pad = (n) => String(n).padStart(2, "0");
    const minutes = Math.floor(whole / 60);
    const hours = Math.floor(minutes / 60);
    const clock = hours
      ? `${hours}:${pad(minutes % 60)}:${pad(whole % 60)}`
      : `${minutes}:${pad(whole % 60)}`;
    return sign + clock + (digits ? rest : "");
  }

  document.addEventListener("mousemove", (event) => {
    const cursor = document.getElementById("workload-cursor");
    if (!cursor) return;
    const graph = event.target.closest && event.target.closest("#workload-time .dash-graph");
    const plot = graph && graph.querySelector(".js-plotly-plot");
    const range = plot && plot.layout && plot.layout.xaxis && plot.layout.xaxis.range;
    const box = graph && graph.getBoundingClientRect();
    const x = box ? event.clientX - box.left : -1;
    const inside = range && x >= LEFT && x <= box.width - RIGHT;
    cursor.hidden = !inside;
    if (!inside) return;
    const share = (x - LEFT) / (box.width - LEFT - RIGHT);
    const seconds = range[0] + share * (range[1] - range[0]);
    const frame = document.getElementById("workload-time").getBoundingClientRect();
    cursor.style.left = `${event.clientX - frame.left}px`;
    cursor.dataset.time = label(seconds, range[1] - range[0]);
  });

  /* Twice pressed: all of the time again. Plotly covers the page while the button is down, so the
     browser sees no double click. */
  document.addEventListener(
    "mousedown",
    (event) => {
      const twice = event.button === 0 && event.detail === 2;
      if (twice && event.target.closest("#workload-time .dash-graph")) zoomTo(null);
    },
    true,
  );

  /* A log that is at its end stays there; one that was scrolled up stays where it is. */
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
