/* The Explore page: its state, its requests, brushes, and the run under the pointer.
   canvas.js draws. */
"use strict";

(function () {
  const { radt } = window;
  const { h, change, onScheme, option, post, scheme, setAttribute, setOptions, setPart, setText, refill, open, tip, canvas: plot } = radt;

  const RETRY_MS = 2000;
  const POLL_MS = 500;
  const OPTIONS = ["x", "y", "colour", "axes", "target", "xbest", "ybest"];
  const BRUSH = "explore.brush";
  const DRAG_PX = 4;

  let root = null;
  let wanted = null;
  let asking = null;
  let data = null;
  let columns = {};
  let places = {};
  let importanceOf = null;

  const byId = (name) => document.getElementById(`explore-${name}`);
  const isHere = () => Boolean(root && root.isConnected);

  /* Return the part of the view that determines the data, without brushes and picks. */
  function viewOfData() {
    const { experiment, options = {}, search } = radt.view;
    const chosen = Object.entries(options)
      .filter(([name]) => name.startsWith("explore.") && name !== BRUSH);
    return { experiment, search, options: Object.fromEntries(chosen) };
  }

  async function askData() {
    if (asking) asking.abort();
    const mine = (asking = new AbortController());
    const have = data ? Object.keys(columns) : [];
    const body = { view: viewOfData(), stamp: data && data.stamp, have };
    let found;
    try {
      found = await post("explore/data", body, mine.signal);
    } catch (error) {
      if (error.name !== "AbortError")
        setTimeout(() => mine === asking && isHere() && askData(), RETRY_MS);
      return;
    }
    if (mine !== asking || !isHere()) return;
    if (found.problem) setText(byId("facts"), found.problem.cause);
    else learn(found);
  }

  function learn(found) {
    if (found.ids) {
      columns = {};
      data = found;
    } else Object.assign(data, { shown: found.shown });
    for (const [key, column] of Object.entries(found.columns)) columns[key] = { key, ...column };
    if (found.choices) fillChoices();
    for (const name of OPTIONS) setField(name, "value", textOf(data.shown[name]));
    setField("experiment", "value", data.experiment);
    draw();
    askImportance();
  }

  const setField = (name, what, text) => setAttribute(byId(name), `data-${what}`, text);

  const textOf = (value) => [value].flat().join(";");

  function fillChoices() {
    const { choices } = data;
    const offer = (name, some) => setField(name, "choices", JSON.stringify(some));
    for (const name of ["x", "y", "axes"]) offer(name, choices);
    offer("colour", [{ value: "", label: "none" }, ...choices]);
    /* The forest predicts numbers, and params are its inputs. */
    offer("target", choices.filter((one) => one.group !== "Params"));
  }

  function brushes() {
    const found = {};
    for (const part of option(BRUSH).split(";")) {
      const [key, range] = part.split("=");
      const ends = (range || "").split("..").map(Number);
      if (ends.length === 2 && ends.every(Number.isFinite)) found[decodeURIComponent(key)] = ends;
    }
    return found;
  }

  /* Set ranges, null for none. The runs within all of them become the selection. */
  function brush(ranges) {
    const next = { ...brushes(), ...ranges };
    for (const [key, range] of Object.entries(next))
      if (range) next[key] = range.map((end) => Number(end.toPrecision(6)));
      else delete next[key];
    const text = Object.entries(next)
      .map(([key, [low, high]]) => `${encodeURIComponent(key)}=${low}..${high}`).join(";");
    change((view) => {
      setPart(view, "options", { [BRUSH]: text });
      const met = metBy(next);
      if (!text || met.length > data.mostPicks) delete view.picks;
      else view.picks = met.map((run) => data.pick + data.ids[run].slice(0, 12));
    });
  }

  function metBy(ranges) {
    const tests = Object.entries(ranges).filter(([key]) => columns[key])
      .map(([key, [low, high]]) => [columns[key].values, low, high]);
    return data.ids.map((_, run) => run).filter((run) =>
      tests.every(([values, low, high]) =>
        values[run] !== null && values[run] >= low && values[run] <= high));
  }

  const BARE = /^[\w.][\w.-]*$/;
  const FIELDS = { "time:epoch": "time_per_epoch", "time:duration": "duration" };

  /* Return the address of the Runs page whose search finds all runs within the ranges. */
  function listAddress(ranges) {
    const quoted = (text) => (BARE.test(text) ? text : `"${text}"`);
    const { search = "" } = radt.view;
    const terms = Object.entries(ranges).filter(([key]) => columns[key]).flatMap(([key, [low, high]]) => {
      const name = quoted(FIELDS[key] || key.slice(key.indexOf(":") + 1));
      const { texts } = columns[key];
      if (!texts) return [`${name}>=${low}`, `${name}<=${high}`];
      return [`${name}=${texts.filter((_, place) => place >= low && place <= high).map(quoted).join(",")}`];
    });
    const all = [search, ...terms.filter((term) => !` ${search} `.includes(` ${term} `))];
    return radt.address("", new URLSearchParams({ e: data.experiment, q: all.join(" ").trim() }));
  }

  function look() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--radt-${name}`).trim();
    return {
      scheme: scheme(), hues: data.hues[scheme()], accent: of("accent"), dim: of("dim"), text: of("text"),
      grid: of("hover"), axis: of("line"), paper: of("paper"),
    };
  }

  function draw() {
    if (!data || !isHere()) return;
    const { shown } = data;
    if (![shown.x, shown.y, ...shown.axes].every((key) => columns[key])) return;
    const ranges = brushes();
    const isBrushed = Object.keys(ranges).length > 0;
    const met = new Set(isBrushed ? metBy(ranges) : data.ids.keys());
    const isMet = (run) => met.has(run);
    const colours = plot.colouring(columns[shown.colour], look());
    drawFacts(ranges, met);
    // One that cannot be drawn leaves the other.
    for (const [name, drawChart] of [["scatter plot", drawScatter], ["parallel coordinates", drawParallel]])
      try {
        drawChart({ isMet, colours, ranges });
      } catch (error) {
        console.warn(error);
        setText(byId("facts"), `The ${name} cannot be drawn: ${error.message}`);
      }
  }

  function drawFacts(ranges, met) {
    const count = data.ids.length;
    const search = radt.view.search ? ` that match “${radt.view.search}”` : "";
    setText(byId("facts"), `${runsText(count)}${search}`);
    const chips = Object.entries(ranges).map(([key, range]) => {
      const column = columns[key];
      if (!column) return null;
      const scale = plot.scaleOf(column, 0);
      const [low, high] = range;
      const text = scale.isText
        ? column.texts.filter((_, place) => place >= low && place <= high).join(", ")
        : `${scale.text(Math.max(low, scale.low))} – ${scale.text(Math.min(high, scale.high))}`;
      return h("button", {
        class: "filter-chip", "data-focus": key, title: "Remove this range",
        onclick: () => brush({ [key]: null }),
      }, `${column.title} ${text}`, h("span", { "aria-hidden": "true" }, "✕"));
    }).filter(Boolean);
    const parts = [...chips];
    if (chips.length) {
      const text = met.size.toLocaleString("en");
      const link = (name, href, words) => h("a", { href, "data-keep": true, "data-focus": name }, words);
      if (met.size <= data.mostPicks)
        parts.push(link("compare", radt.address("compare"), `Compare ${text} brushed →`));
      parts.push(link("list", listAddress(ranges), `List ${text} →`));
    }
    refill(byId("brushed"), parts);
  }

  function placeOf(name, height) {
    const element = byId(name);
    if (!element.firstChild) {
      element.append(h("canvas", { role: "img" }), h("canvas", { "aria-hidden": "true" }));
      new ResizeObserver(draw).observe(element);
      listen(name, element);
    }
    element.style.height = `${height}px`;
    const size = { width: element.clientWidth, height };
    const [canvas, above] = element.children;
    plot.prepared(above, size.width, size.height);
    return { element, canvas, above, size };
  }

  /* True if the charts are side by side (explore.css). */
  const isWide = () => window.matchMedia("(min-width: 2600px)").matches;
  const tall = (least, share, most) =>
    Math.round(Math.min(Math.max(window.innerHeight * share, least), most));

  function drawScatter({ isMet, colours }) {
    const { shown } = data;
    const [x, y] = [columns[shown.x], columns[shown.y]];
    const runs = [...data.ids.keys()]
      .filter((run) => x.values[run] !== null && y.values[run] !== null);
    const front = x.texts || y.texts
      ? [] : plot.front(runs.filter((run) => isMet(run) && data.counts[run]), x, y, shown.xbest, shown.ybest);
    const place = placeOf("scatter", tall(320, 0.5, 1080));
    place.canvas.setAttribute("aria-label",
      `Scatter of ${y.title} over ${x.title}, ${runs.length} runs; the list has the Pareto front`);
    places.scatter = {
      ...place,
      ...plot.scatter(place.canvas, place.size,
        { x, y, runs, counts: data.counts, isMet, colours, front }, look()),
    };
    drawFront(runs, x, y, front, colours);
  }

  const runsText = (count) => `${count.toLocaleString("en")} ${count === 1 ? "run" : "runs"}`;

  function drawFront(runs, x, y, front, colours) {
    const missing = data.ids.length - runs.length;
    const left = runs.filter((run) => !data.counts[run]).length;
    const shown = front.slice(0, 100);
    const [xTexts, yTexts] = [x, y].map((column) =>
      plot.scaleOf(column, 0).texts?.(shown.map((run) => column.values[run])));
    const head = ({ title, unit }) => h("th", {}, unit ? `${title} [${unit}]` : title);
    const row = (run, place) => h("tr", {
      "data-run": data.ids[run],
      onpointerenter: () => point(run), onpointerleave: () => point(null),
    },
      h("td", {}, h("a", { href: radt.address("run", `id=${data.ids[run]}`),
        "data-focus": data.ids[run] }, data.names[run])),
      h("td", {}, yTexts[place]), h("td", {}, xTexts[place]));
    const legend = columns[data.shown.colour];
    refill(byId("front"),
      legend && h("h3", {}, `Colour: ${legend.title}`),
      colours.ramp && h("div", { class: "explore-ramp" },
        h("span", {}, colours.ends[0]),
        h("span", { class: "explore-bar", style: `background: linear-gradient(to right, ${colours.ramp})` }),
        h("span", {}, colours.ends[1])),
      colours.items.length > 0 && h("ul", { class: "explore-legend" },
        colours.items.map(({ colour, text }) =>
          h("li", {}, h("span", { class: "explore-dot", style: `background: ${colour}` }), text))),
      h("h3", {}, front.length ? `Pareto front: ${runsText(front.length)}` : "No Pareto front"),
      front.length > 0
        ? h("div", { class: "explore-scroll", tabindex: "0", role: "region",
          "aria-label": "Pareto front" },
          h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "run"), head(y), head(x))),
            h("tbody", {}, shown.map(row))))
        : h("p", {}, "Choose which end of both axes is better, and numbers for both."),
      front.length > 0 && h("p", {}, "No other run that counts is better in both."),
      left > 0 && h("p", {},
        `× ${runsText(left)} that failed or otherwise ${left === 1 ? "does" : "do"} not count: never in the front.`),
      missing > 0 && h("p", {},
        `${runsText(missing)} ${missing === 1 ? "has" : "have"} no finite value for one of these.`));
  }

  function drawParallel({ isMet, colours, ranges }) {
    const place = placeOf("parallel", tall(280, isWide() ? 0.5 : 0.4, 1080));
    const axes = data.shown.axes.map((key) => columns[key]);
    place.canvas.setAttribute("aria-label",
      `Parallel coordinates of ${data.ids.length} runs: ${axes.map((one) => one.title).join(", ")}`);
    const runs = [...data.ids.keys()];
    places.parallel = {
      ...place, axes,
      ...plot.parallel(place.canvas, place.size,
        { axes, runs, counts: data.counts, isMet, colours, brushes: ranges }, look()),
    };
    const all = data.choices.reduce((count, group) => count + group.items.length, 0);
    setText(byId("count"), `${axes.length} of ${all}`);
    if (!byId("ends")) place.element.append(h("div", { id: "explore-ends" }));
    refill(byId("ends"), axes.flatMap((axis, n) =>
      ["from", "to"].map((word, end) => endOf(axis, n, word, end, ranges[axis.key]))));
  }

  /* An end of an axis's range, for the keyboard: arrow keys move it, Delete removes the
     range. */
  function endOf(axis, n, word, end, range) {
    const { top, height, left, scales } = places.parallel;
    const scale = scales[n];
    const whole = [scale.back(0), scale.back(1)];
    const ends = range || whole;
    const inner = axis.texts ? (end ? Math.floor : Math.ceil)(ends[end])
      : Math.min(Math.max(ends[end], scale.low), scale.high);
    const placeOfEnd = (value) => Math.min(Math.max(scale.at(value), 0), 1);
    const step = axis.texts ? 1 / axis.texts.length : 0.02;
    const steps = { ArrowUp: step, ArrowRight: step, ArrowDown: -step, ArrowLeft: -step,
      PageUp: 5 * step, PageDown: -5 * step, Home: -1, End: 1 };
    return h("div", {
      style: `left: ${left(n)}px; top: ${top + (1 - placeOfEnd(ends[end])) * height}px`,
      class: "explore-end", role: "slider", tabindex: 0, "data-focus": `${axis.key} ${word}`,
      "aria-label": `${axis.title}, ${word}`, "aria-orientation": "vertical", "aria-valuemin": scale.low,
      "aria-valuemax": scale.high, "aria-valuenow": inner, "aria-valuetext": scale.text(inner),
      onkeydown: (event) => {
        if (event.key === "Delete") brush({ [axis.key]: null });
        else if (event.key in steps) {
          const now = brushes()[axis.key] || whole; /* the last change may not be drawn yet */
          const other = placeOfEnd(now[1 - end]);
          const [least, most] = end ? [other + step, 1] : [0, other - step];
          const next = Math.min(Math.max(placeOfEnd(now[end]) + steps[event.key], least), most);
          const moved = now.map((value, place) => (place === end ? scale.back(next) : value));
          brush({ [axis.key]: scale.at(moved[0]) < 1e-3 && scale.at(moved[1]) > 1 - 1e-3 ? null : moved });
        } else return;
        event.preventDefault();
      },
    });
  }

  let pointed = null;

  function point(run) {
    pointed = run;
    const ink = look().text;
    for (const name of ["scatter", "parallel"]) {
      const place = places[name];
      if (!place) continue;
      const context = plot.prepared(place.above, place.size.width, place.size.height);
      if (run === null) continue;
      context.strokeStyle = ink;
      context.lineWidth = 2;
      context.beginPath();
      if (name === "parallel")
        place.path(run).forEach(([x, y], n) => (n ? context.lineTo(x, y) : context.moveTo(x, y)));
      else {
        const { x, y } = data.shown;
        if (columns[x].values[run] === null || columns[y].values[run] === null) continue;
        context.arc(...place.at(run), 6, 0, 7);
      }
      context.stroke();
    }
  }

  function tell(run, event) {
    if (run === null) return void tip.hide();
    const { shown } = data;
    const params = Object.keys(columns).filter((key) => key.startsWith("param:"));
    const keys = [...new Set([shown.y, shown.x, shown.colour, ...shown.axes, ...params])];
    const rows = keys.filter((key) => columns[key]).slice(0, tip.MAX_ROWS).map((key) => ({
      name: columns[key].title,
      value: plot.scaleOf(columns[key], 0).text(columns[key].values[run]),
    }));
    tip.show({ x: event.clientX, y: event.clientY }, {
      at: `${data.names[run]} · ${data.statuses[run].toLowerCase()}`, rows, foot: "Click to open the run",
    });
  }

  function listen(name, element) {
    let start = null;
    const where = (event) => {
      const box = element.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const isDrag = (from, to) => Math.hypot(to[0] - from[0], to[1] - from[1]) > DRAG_PX;
    element.addEventListener("pointerdown", (event) => {
      if (event.button || !places[name]) return;
      const at = where(event);
      const axis = name === "parallel" ? places.parallel.axisAt(at[0]) : 0;
      start = { at, axis };
      element.setPointerCapture(event.pointerId);
    });
    element.addEventListener("pointermove", (event) => {
      const place = places[name];
      if (!place) return;
      const at = where(event);
      if (start && isDrag(start.at, at) && start.axis >= 0) {
        tell(null);
        showBox(name, place, start, at);
        return;
      }
      const onAxis = name === "parallel" && place.axisAt(at[0]) >= 0;
      element.style.cursor = onAxis ? "ns-resize" : "crosshair";
      const run = onAxis ? null : place.nearest(...at);
      if (run !== pointed) point(run);
      tell(run, event);
    });
    element.addEventListener("pointerleave", () => {
      if (start) return;
      point(null);
      tell(null);
    });
    element.addEventListener("pointercancel", () => (start = null));
    element.addEventListener("pointerup", (event) => {
      const began = start;
      start = null;
      const place = places[name];
      if (!began || !place) return;
      const at = where(event);
      point(null);
      tell(null);
      if (isDrag(began.at, at)) {
        if (began.axis >= 0) brush(rangesOf(name, place, began, at));
        return;
      }
      const run = place.nearest(...at);
      if (name === "parallel" && began.axis >= 0) brush({ [place.axes[began.axis].key]: null });
      else if (run !== null) open(radt.address("run", `id=${data.ids[run]}`));
    });
  }

  const sorted = (a, b) => (a < b ? [a, b] : [b, a]);

  function rangesOf(name, place, start, end) {
    if (name === "parallel") {
      const key = place.axes[start.axis].key;
      return { [key]: sorted(place.back(start.axis, start.at[1]), place.back(start.axis, end[1])) };
    }
    const [from, to] = [place.back(...start.at), place.back(...end)];
    return { [data.shown.x]: sorted(from[0], to[0]), [data.shown.y]: sorted(from[1], to[1]) };
  }

  function showBox(name, place, start, at) {
    const context = plot.prepared(place.above, place.size.width, place.size.height);
    const { accent } = look();
    const x = name === "parallel" ? [place.left(start.axis) - 8, place.left(start.axis) + 8]
      : sorted(start.at[0], at[0]);
    const y = sorted(start.at[1], at[1]);
    context.fillStyle = accent;
    context.strokeStyle = accent;
    context.globalAlpha = 0.2;
    context.fillRect(x[0], y[0], x[1] - x[0], y[1] - y[0]);
    context.globalAlpha = 1;
    context.strokeRect(x[0], y[0], x[1] - x[0], y[1] - y[0]);
  }

  async function askImportance() {
    const view = viewOfData();
    /* Do not recompute for each new value: a forest of ten thousand runs takes seconds. */
    const key = JSON.stringify([data.experiment, view.search, data.shown.target, data.ids.length]);
    if (key === importanceOf) return;
    importanceOf = key;
    const { stamp } = data;
    refill(byId("importance"), h("p", { class: "explore-wait" }, "Computing"));
    while (isHere() && key === importanceOf) {
      /* No answer while the dashboard is being restarted. */
      const found = await post("explore/importance", { view, stamp }).catch(() => null);
      if (!isHere() || key !== importanceOf) return;
      if (found && !found.computing) {
        if (found.problem) refill(byId("importance"), h("p", {}, found.problem.cause));
        else byId("importance").innerHTML = found.html;
        return;
      }
      await new Promise((done) => setTimeout(done, POLL_MS));
    }
  }

  radt.drawn["explore/data"] = (here, revision) => {
    if (here !== root) {
      root = here;
      places = {};
      data = wanted = importanceOf = null;
      columns = {};
    }
    const key = JSON.stringify([viewOfData(), revision]);
    if (revision && key !== wanted) {
      wanted = key;
      askData();
    } else draw();
  };

  document.addEventListener("choice", ({ target, detail }) => {
    if (!data || !isHere() || !root.contains(target)) return;
    const name = target.id.replace(/^explore-/, "");
    if (name === "experiment")
      change((view) => {
        view.experiment = detail;
        delete view.picks;
        setPart(view, "options", { [BRUSH]: null });
      });
    else setOptions({ [`explore.${name}`]: detail || "none" });
  });

  onScheme(draw);
})();
