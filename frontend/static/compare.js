/* The Compare page: its state, its requests, and the charts themselves. The list, the
   controls, the heads of charts and their linking are in compare_*.js. */
"use strict";

(function () {
  const { radt } = window;
  const { h, change, onScheme, option, PLAIN, post, scheme, setOptions, setPart } = radt;

  const BOARD = {
    level: "auto",
    x: null,
    smoothing_pct: 0,
    relative: "off",
    baseline: null,
    monochrome: false,
    ema: 0,
    robust: false,
    group_by: "",
    band: "confidence",
  };
  const NO_FACTS = { names: [], text: "", notes: [], units: [], metrics: [], charts: [], sections: {}, params: [] };
  const RETRY_MS = 2000;
  /* Width of a chart beyond its lines, and the growth at which it is drawn again. */
  const AXES_PX = 64;
  const STEP_PX = 100;
  const MAX_CHARTS = 64;
  const OVER = "over.";
  const HIDDEN = "compare.hidden";
  const MAX_HIDDEN = 200; // an option of the view has at most 3,000 characters

  const page = (radt.compare = {
    root: null,
    facts: NO_FACTS,
    known: {},
    key: null,
    revision: null,
    cards: new Map(),
    /* Callbacks of the other files, called when the page is shown and when anything changes. */
    begun: [],
    renderers: [],
    MAX_CHARTS,

    view: () => radt.view || {},
    board: () => Object.assign({}, BOARD, page.view().board),
    charts: () => page.view().charts || page.facts.charts,
    /* The settings of a chart, with the board's for those that it does not set. */
    of: (spec) => {
      const board = page.board();
      const own = {};
      for (const name of ["level", "x", "smoothing_pct", "relative", "baseline"])
        own[name] = spec[name] === undefined || spec[name] === null ? board[name] : spec[name];
      const natural = [spec.metric, spec.second].filter(Boolean)
        .map((name) => (page.metric(name) || {}).x || "barrier");
      const both = natural.every((x) => x === natural[0]) ? natural[0] : "barrier";
      own.x = spec.over ? "metric" : own.x || both;
      return own;
    },
    /* The name of a chart's zoom, which all charts over the same x share. */
    zoomOf: (spec) => (spec.over ? `${OVER}${spec.over}` : page.of(spec).x),
    OVER,
    metric: (name) => page.facts.metrics.find((one) => one.metric === name),
    window: (x) => {
      const text = (page.view().windows || {})[x];
      return text ? text.split(",").map(Number) : null;
    },
    hidden: () => option(HIDDEN).split(",").filter(Boolean),

    setBoard: (name, value) =>
      change((view) => setPart(view, "board", { [name]: value === BOARD[name] ? null : value })),
    changeCharts: (alter) =>
      change((view) => {
        const charts = structuredClone(page.charts());
        view.charts = alter(charts) || charts;
      }),
    /* Change one chart; undefined, null and defaults remove a setting. */
    changeChart: (slot, settings) =>
      page.changeCharts((charts) => {
        const spec = charts.find((one) => one.slot === slot);
        if (!spec) return;
        for (const [name, value] of Object.entries(settings)) {
          if (value === undefined || value === null) delete spec[name];
          else spec[name] = value;
        }
      }),
    addCharts: (metrics) => {
      page.changeCharts((charts) => {
        for (const metric of metrics) {
          const slot = freeSlot(charts);
          if (slot !== undefined) charts.push({ metric, slot });
        }
      });
      page.unfilter(metrics);
    },
    freeSlot,
    setHidden: (keys) => setOptions({ [HIDDEN]: keys.slice(0, MAX_HIDDEN).join(",") }),
    say: (text) => {
      const status = document.getElementById("compare-status");
      if (status) status.textContent = text;
    },
    drawn: () => [...page.cards.values()].filter((card) => card.drawn),
    render: () => page.renderers.forEach((draw) => draw()),
    icon,
  });

  function freeSlot(charts) {
    const taken = new Set(charts.map((one) => one.slot));
    for (let slot = 0; slot < MAX_CHARTS; slot++) if (!taken.has(slot)) return slot;
    return undefined;
  }

  const PATHS = {
    eye: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8Z M8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4Z",
    closed: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8Z M3 14 13 2",
    chevron: "M6 4l4 4-4 4",
    pin: "M5.5 2.5h5M6.5 2.5v4L4 9.5h8l-2.5-3v-4M8 9.5v4.5",
    cross: "M4 4l8 8M12 4l-8 8",
    grip: "M6 3.5v.01M10 3.5v.01M6 8v.01M10 8v.01M6 12.5v.01M10 12.5v.01",
    more: "M3.5 8v.01M8 8v.01M12.5 8v.01",
    plus: "M8 3v10M3 8h10",
    corner: "M13 5v8H5",
  };
  function icon(name) {
    const ns = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(ns, "svg");
    svg.setAttribute("viewBox", "0 0 16 16");
    svg.setAttribute("class", "icon icon-" + name);
    svg.setAttribute("aria-hidden", "true");
    const path = document.createElementNS(ns, "path");
    path.setAttribute("d", PATHS[name]);
    svg.append(path);
    return svg;
  }

  const picked = () => {
    const { picks, experiment } = page.view();
    return { picks, experiment };
  };

  /* Answers may arrive after the user has left the page. */
  const isHere = () => Boolean(page.root && page.root.isConnected);

  let asking = null;
  async function askFacts() {
    if (asking) asking.abort();
    const mine = (asking = new AbortController());
    try {
      const { stamp, fingerprint } = page.known;
      const found = await post("compare/facts", { view: picked(), stamp, fingerprint },
        mine.signal);
      if (mine !== asking || !isHere()) return;
      page.trouble = found && found.problem;
      if (found && !found.problem) learn(found);
      else if (found) page.known = {};
      page.render();
    } catch (error) {
      if (error.name === "AbortError" || mine !== asking) return;
      page.known = {};
      setTimeout(() => mine === asking && isHere() && askFacts(), RETRY_MS);
    }
  }

  function learn(found) {
    page.known = { stamp: found.stamp, fingerprint: found.fingerprint };
    if (found.facts) page.facts = found.facts;
    for (const card of page.cards.values())
      if (card.fingerprint !== found.fingerprint) card.due = true;
  }

  radt.drawn["compare/facts"] = (root, revision) => {
    if (root !== page.root) begin(root);
    const key = JSON.stringify(picked());
    if (key !== page.key) {
      page.key = key;
      page.known = {};
      askFacts();
    } else if (revision && revision !== page.revision) {
      askFacts();
      for (const card of page.cards.values())
        if (page.facts.live || !card.drawn || card.failed) card.due = true;
    }
    page.revision = revision || page.revision;
    page.render();
  };

  let seen = null;
  let sized = null;
  const cardOf = new WeakMap();

  function begin(root) {
    end();
    const known = JSON.parse(root.dataset.known);
    page.root = root;
    page.facts = NO_FACTS;
    page.trouble = null;
    page.key = JSON.stringify(known.picked);
    page.revision = known.revision;
    learn(known);
    seen = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          const card = cardOf.get(entry.target);
          if (card) card.near = entry.isIntersecting;
        }
        page.cards.forEach(refresh);
      },
      { rootMargin: "320px" },
    );
    sized = new ResizeObserver((entries) => {
      for (const { target } of entries)
        if (target.classList.contains("js-plotly-plot") && target.offsetWidth)
          window.requestAnimationFrame(() => {
            if (target.isConnected && target._fullLayout)
              page.busy(target, window.Plotly.Plots.resize(target));
          });
    });
    page.begun.forEach((start) => start(root));
  }

  /* Clean up after the page was closed, as Plotly keeps listeners on the window. */
  function end() {
    if (!page.root) return;
    if (asking) asking.abort();
    for (const card of [...page.cards.values()]) close(card);
    seen.disconnect();
    sized.disconnect();
    page.root = null;
  }

  /* The user's charts are in numbered slots. Those of the sections are named after their
     metrics (compare_sections.js). */
  function open(slot) {
    const small = typeof slot === "string";
    const element = small
      ? h("article", { class: "card small" }, h("div", { class: "card-chart" }))
      : page.root.querySelector(`article[data-slot="${slot}"]`);
    const graph = h("div", { class: "graph" });
    const note = h("div", { class: "card-note", role: "status", hidden: true });
    const body = h("div", { class: "card-body", tabindex: "0", role: "group" }, graph, note);
    const card = { slot, small, element, graph, note, body, near: false, due: true, drawn: false };
    card.holder = element.querySelector(".card-chart");
    page.dress(card);
    card.holder.replaceChildren(card.head, body, ...(small ? [] : [card.corner]));
    element.hidden = false;
    page.cards.set(slot, card);
    cardOf.set(element, card);
    seen.observe(element);
    return card;
  }

  function close(card) {
    page.cards.delete(card.slot);
    if (card.asking) card.asking.abort();
    clearTimeout(card.timer);
    seen.unobserve(card.element);
    discard(card);
    card.element.hidden = true;
    if (card.small) card.element.remove();
    for (const name of ["data-metric", "style"]) card.element.removeAttribute(name);
    card.holder.replaceChildren();
  }

  /* Plotly draws in several steps, and fails if the graph is cleared between two of them. */
  const work = new WeakMap();
  page.busy = (graph, step) => {
    const before = work.get(graph);
    work.set(graph, Promise.allSettled(before ? [before, step] : [step]));
    return step;
  };

  function discard(card) {
    if (!card.drawn) return;
    card.drawn = false;
    const { graph } = card;
    sized.unobserve(graph);
    card.graph = h("div", { class: "graph" });
    graph.replaceWith(card.graph);
    Promise.resolve(work.get(graph)).then(() => window.Plotly.purge(graph));
  }

  function cards() {
    const shown = new Map();
    for (const spec of page.charts()) if (page.found(spec.metric)) shown.set(spec.slot, spec);
    const rest = page.sections();
    for (const { metrics, closed } of rest)
      if (!closed) for (const metric of metrics) shown.set(metric, { metric });
    for (const card of [...page.cards.values()])
      if (!shown.has(card.slot) || shown.get(card.slot).metric !== card.spec.metric) close(card);
    for (const [slot, spec] of shown)
      (page.cards.get(slot) || open(slot)).spec = spec;
    page.arrange(rest);
    [...shown.keys()].forEach((slot, place) => {
      const card = page.cards.get(slot);
      card.place = place;
      page.describe(card);
    });
    for (const slot of shown.keys()) {
      const card = page.cards.get(slot);
      const asked = question(card);
      const key = JSON.stringify(asked);
      if (key !== card.key) {
        card.key = key;
        card.asked = asked;
        card.fingerprint = undefined;
        card.due = true;
        // Before the observer reports, so that charts on the first screen are requested at once.
        if (!card.near) card.near = isNear(card.element);
      }
    }
    page.cards.forEach(refresh);
  }

  const isNear = (element) => {
    const { top, bottom } = element.getBoundingClientRect();
    return bottom > -320 && top < window.innerHeight + 320;
  };

  function question({ spec, small, body }) {
    const x = page.zoomOf(spec);
    const { board, windows } = page.view();
    const window_ = (windows || {})[x];
    return {
      view: {
        ...picked(),
        board,
        charts: [spec],
        windows: window_ ? { [x]: window_ } : undefined,
        options: { [HIDDEN]: option(HIDDEN) },
      },
      scheme: scheme(),
      small: small || undefined,
      width_px: Math.round((body.offsetWidth - AXES_PX) / STEP_PX) * STEP_PX,
      height_px: Math.round(body.offsetHeight / STEP_PX) * STEP_PX,
    };
  }

  async function refresh(card) {
    if (!card.due || !card.near || document.hidden || !isHere()) return;
    const key = card.key;
    if (card.asking && card.askingFor === key) return; // requested again afterwards: still due
    if (card.asking) card.asking.abort();
    card.due = false;
    const mine = (card.asking = new AbortController());
    card.askingFor = key;
    clearTimeout(card.timer);
    card.answer = Promise.all([
      post("compare/figure", { ...card.asked, fingerprint: card.fingerprint }, mine.signal),
      radt.plotly(),
    ]);
    let found;
    try {
      [found] = await card.answer;
    } catch (error) {
      if (card.asking !== mine) return;
      card.asking = null;
      if (error.name === "AbortError") return;
      trouble(card, { cause: "The dashboard does not answer.", remedy: "The page retries by itself." });
      card.timer = setTimeout(() => {
        card.due = true;
        refresh(card);
      }, RETRY_MS);
      return;
    }
    if (card.asking !== mine || page.cards.get(card.slot) !== card) return;
    card.asking = null;
    if (!isHere()) {
      card.due = true;
      return;
    }
    if (found) receive(card, found);
    else if (card.failed) {
      card.failed = false;
      note(card, "");
    }
    refresh(card);
  }

  /* Charts are drawn when they come into view, but paper shows all of them. */
  document.addEventListener("keydown", async (event) => {
    if (event.key !== "p" || !(event.ctrlKey || event.metaKey) || !isHere()) return;
    event.preventDefault();
    page.say("Drawing all charts");
    const all = () => [...page.cards.values()];
    for (const card of all()) card.near = true;
    page.cards.forEach(refresh);
    while (all().some((card) => card.asking)) await Promise.allSettled(all().map((card) => card.answer));
    await Promise.all(all().map((card) => work.get(card.graph)));
    window.print();
  });

  /* Plotly has drawn for the width of the screen. With a view box, drawings fit the paper. */
  const drawings = () => (page.root ? [...page.root.querySelectorAll(".main-svg")] : []);
  window.addEventListener("beforeprint", () => {
    for (const svg of drawings())
      svg.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`);
  });
  window.addEventListener("afterprint", () => {
    for (const svg of drawings()) svg.removeAttribute("viewBox");
  });

  function receive(card, found) {
    if (found.problem) {
      card.fingerprint = undefined;
      trouble(card, found.problem);
      return;
    }
    card.fingerprint = found.fingerprint;
    card.failed = false;
    if (found.missing) {
      discard(card);
      card.meta = undefined;
      note(card, found.missing, "");
      page.describe(card);
      return;
    }
    card.axes = found.axes;
    // While the pointer draws a zoom, nothing below it may move.
    if (card.graph._dragging) {
      card.waiting = found.figure;
      window.addEventListener("mouseup", () => setTimeout(() => late(card)), { once: true });
    } else paint(card, found.figure);
  }

  function late(card) {
    const figure = card.waiting;
    card.waiting = undefined;
    if (figure && page.cards.get(card.slot) === card && isHere()) paint(card, figure);
  }

  function paint(card, figure) {
    delete figure.layout.height;
    figure.layout.autosize = true;
    const first = !card.drawn;
    const { graph } = card;
    const failed = (error) => {
      if (card.graph !== graph || page.cards.get(card.slot) !== card) return;
      console.warn(error);
      discard(card);
      if (first) broken(card, error);
      else paint(card, figure); // Plotly cannot add an axis while a chart moves to another range
    };
    note(card, "");
    card.range = page.rangeOf(figure.layout);
    card.drawn = true;
    card.meta = figure.layout.meta || {};
    try {
      page.busy(graph, window.Plotly.react(graph, figure.data, figure.layout, PLAIN)).catch(failed);
    } catch (error) {
      failed(error);
      return;
    }
    if (first) {
      sized.observe(graph);
      page.link(card);
    }
    page.describe(card);
    page.painted(card);
    page.listed();
    page.zoomed();
  }

  /* The other charts stay. This one is requested again with the next revision of the store. */
  function broken(card, error) {
    card.meta = card.fingerprint = undefined;
    trouble(card, { cause: "This chart cannot be drawn.", remedy: error.message });
    page.describe(card);
  }

  function trouble(card, { cause, remedy }) {
    card.failed = true;
    note(card, cause, remedy);
  }

  function note(card, text, remedy) {
    card.note.hidden = !text;
    if (text) card.note.replaceChildren(h("p", {}, text), remedy ? h("p", {}, remedy) : "");
    else card.note.replaceChildren();
    card.body.dataset.state = text ? (card.drawn ? "stale" : "empty") : "drawn";
  }

  page.renderers.push(cards);
  document.addEventListener("visibilitychange", () => page.cards.forEach(refresh));

  onScheme(() => isHere() && page.render());
})();
