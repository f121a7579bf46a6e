/* Draw on canvases for the Explore page: scales, scatter plot, parallel coordinates. */
"use strict";

(function () {
  const { radt } = window;
  const { number } = radt;

  /* Light to dark on white, dark to light on black: matplotlib's plasma, where it has
     contrast. */
  const RAMPS = {
    light: ["#0d0887", "#6a00a8", "#b12a90", "#e16462"],
    dark: ["#c13b82", "#e16462", "#fca636", "#f0f921"],
  };
  const DECADES_FOR_LOG = 2;

  function scaleOf(column, margin) {
    const { texts, values, factor } = column;
    if (texts) return textScale(texts);
    let low = Infinity;
    let high = -Infinity;
    /* Between whole numbers, such as seeds, there are no ticks. */
    const least = factor === 1 && values.every((value) => value === null || Number.isInteger(value))
      ? 1 : 0;
    for (const value of values) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) [low, high] = [0, 1];
    const isLog = low > 0 && high / low >= 10 ** DECADES_FOR_LOG;
    const to = isLog ? Math.log10 : (value) => value;
    const from = isLog ? (value) => 10 ** value : (value) => value;
    let [first, last] = [to(low), to(high)];
    /* Values that differ only by rounding count as one: no tick fits between them. */
    const isOne = last - first <= Math.abs(last) * 1e-9;
    const pad = isOne ? 0.5 * (Math.abs(last) || 1) : (last - first) * margin;
    first -= pad;
    last += pad;
    const at = (value) => (to(value) - first) / (last - first);
    const text = (value) => number(value * factor);
    return {
      isLog, low, high, at,
      back: (place) => from(first + place * (last - first)),
      ticks: (most) =>
        (isLog ? logTicks(first, last, most)
          : ticks(first * factor, last * factor, most, least).map((value) => value / factor))
          .map((value) => ({ at: at(value), text: text(value) })),
      text: (value) => (value === null ? "–" : `${text(value)} ${column.unit}`.trim()),
      /* The numbers of a table's column, with equally many decimals and without the unit. */
      texts: (some) => {
        const shown = some.map(text);
        if (shown.some((one) => /e/.test(one))) return shown;
        const decimals = Math.max(...shown.map((one) => (one.split(".")[1] || "").length), 0);
        return some.map((value) => (value * factor).toLocaleString("en",
          { minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replace("-", "−"));
      },
    };
  }

  function textScale(texts) {
    const at = (place) => (place + 0.5) / texts.length;
    return {
      low: 0, high: texts.length - 1, at, isText: true,
      back: (place) => place * texts.length - 0.5,
      ticks: (most) => {
        const every = Math.ceil(texts.length / most);
        return texts.map((text, place) => ({ at: at(place), text }))
          .filter((_, place) => place % every === 0);
      },
      text: (place) => (place === null ? "–" : texts[place]),
    };
  }

  function ticks(first, last, most, least) {
    const rough = Math.max((last - first) / most, least);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
    const found = [];
    for (let n = Math.ceil(first / step); n * step <= last + step * 1e-9; n++) found.push(n * step);
    return found;
  }

  function logTicks(first, last, most) {
    const every = Math.max(1, Math.ceil((last - first) / most));
    const found = [];
    for (let n = Math.ceil(first); n <= last; n += every) found.push(10 ** n);
    return found;
  }

  const channels = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));

  function mixed(stops, place) {
    const at = Math.min(Math.max(place, 0), 1) * (stops.length - 1);
    const index = Math.min(Math.floor(at), stops.length - 2);
    const [from, to] = [channels(stops[index]), channels(stops[index + 1])];
    const parts = from.map((part, n) => Math.round(part + (to[n] - part) * (at - index)));
    return `rgb(${parts.join(",")})`;
  }

  function colouring(column, look) {
    if (!column) return { of: () => look.accent, items: [] };
    if (column.texts) {
      const of = (place) => (place === null ? look.dim : look.hues[place] || look.dim);
      const items = column.texts.slice(0, look.hues.length)
        .map((text, place) => ({ text, colour: of(place) }));
      const rest = column.texts.length - items.length;
      if (rest > 0) items.push({ text: `${rest} more`, colour: look.dim });
      return { of: (run) => of(column.values[run]), items };
    }
    const scale = scaleOf(column, 0);
    /* As many colours as people can distinguish. Runs of one colour are one path. */
    const shades = Array.from({ length: 32 }, (_, n) => mixed(RAMPS[look.scheme], n / 31));
    return {
      of: (run) => {
        const value = column.values[run];
        return value === null ? look.dim : shades[Math.round(scale.at(value) * 31)];
      },
      items: [],
      ramp: RAMPS[look.scheme],
      ends: [scale.text(scale.low), scale.text(scale.high)],
    };
  }

  /* Fit a canvas to its container at the screen's resolution. Return its context, cleared. */
  function prepared(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    return context;
  }

  const fontOf = (canvas, size) => `${size}px ${getComputedStyle(canvas).fontFamily}`;

  function fitted(context, text, width) {
    if (context.measureText(text).width <= width) return text;
    let end = text.length;
    while (end > 1 && context.measureText(text.slice(0, end) + "…").width > width) end--;
    return text.slice(0, end) + "…";
  }

  function byColour(runs, colours) {
    const groups = new Map();
    for (const run of runs) {
      const colour = colours.of(run);
      if (!groups.has(colour)) groups.set(colour, []);
      groups.get(colour).push(run);
    }
    return groups;
  }

  const EDGE = { left: 64, right: 16, top: 8, bottom: 48 };

  /* Draw, with a cross for each run that does not count. Return the position of each run, and
     the inverse scales. */
  function scatter(canvas, size, data, look) {
    const { x, y, runs, counts, isMet, colours, front } = data;
    const [width, height] = [size.width - EDGE.left - EDGE.right, size.height - EDGE.top - EDGE.bottom];
    const context = prepared(canvas, size.width, size.height);
    const [sx, sy] = [scaleOf(x, 0.04), scaleOf(y, 0.06)];
    const left = (place) => EDGE.left + place * width;
    const top = (place) => EDGE.top + (1 - place) * height;
    context.font = fontOf(canvas, 11);
    context.lineWidth = 1;
    context.textBaseline = "middle";
    for (const tick of sy.ticks(Math.max(2, height / 48))) {
      if (tick.at < 0 || tick.at > 1) continue;
      line(context, left(0), top(tick.at), left(1), top(tick.at), look.grid);
      context.fillStyle = look.dim;
      context.textAlign = "right";
      context.fillText(fitted(context, tick.text, EDGE.left - 12), left(0) - 8, top(tick.at));
    }
    context.textAlign = "center";
    const across = Math.max(2, Math.floor(width / 96));
    for (const tick of sx.ticks(across)) {
      if (tick.at < 0 || tick.at > 1) continue;
      line(context, left(tick.at), top(0), left(tick.at), top(1), look.grid);
      context.fillStyle = look.dim;
      context.fillText(fitted(context, tick.text, width / across), left(tick.at), top(0) + 14);
    }
    context.fillStyle = look.text;
    context.font = fontOf(canvas, 12);
    context.fillText(named(x, sx), left(0.5), size.height - 10);
    context.save();
    context.translate(10, top(0.5));
    context.rotate(-Math.PI / 2);
    context.fillText(named(y, sy), 0, 0);
    context.restore();

    const at = (run) => [left(sx.at(x.values[run])), top(sy.at(y.values[run]))];
    const radius = runs.length > 2000 ? 2 : runs.length > 300 ? 3 : 4;
    const points = (some, colour, opacity) => {
      context.globalAlpha = opacity;
      context.fillStyle = context.strokeStyle = colour;
      context.lineWidth = 1.5;
      context.beginPath();
      for (const run of some.filter((one) => counts[one])) {
        const [px, py] = at(run);
        context.moveTo(px + radius, py);
        context.arc(px, py, radius, 0, 7);
      }
      context.fill();
      context.beginPath();
      for (const run of some.filter((one) => !counts[one])) {
        const [px, py] = at(run);
        context.moveTo(px - radius, py - radius);
        context.lineTo(px + radius, py + radius);
        context.moveTo(px - radius, py + radius);
        context.lineTo(px + radius, py - radius);
      }
      context.stroke();
      context.globalAlpha = 1;
    };
    points(runs.filter((run) => !isMet(run)), look.axis, 0.7);
    const opacity = runs.length > 2000 ? 0.65 : 0.85;
    for (const [colour, some] of byColour(runs.filter(isMet), colours)) points(some, colour, opacity);
    if (front.length) {
      context.strokeStyle = look.text;
      context.lineWidth = 1.5;
      context.beginPath();
      front.forEach((run, n) => {
        const [px, py] = at(run);
        if (n) context.lineTo(px, at(front[n - 1])[1]);
        context.lineTo(px, py);
      });
      context.stroke();
      for (const run of front) {
        context.beginPath();
        context.arc(...at(run), radius + 2, 0, 7);
        context.stroke();
      }
    }
    return {
      at,
      back: (px, py) => [sx.back((px - EDGE.left) / width), sy.back(1 - (py - EDGE.top) / height)],
      nearest: (px, py) => {
        let best = null;
        let least = 14 ** 2;
        for (const run of runs) {
          const [rx, ry] = at(run);
          const far = (rx - px) ** 2 + (ry - py) ** 2;
          if (far < least || (far === least && isMet(run))) [best, least] = [run, far];
        }
        return best;
      },
    };
  }

  const named = (column, scale) =>
    column.title + (column.unit ? ` [${column.unit}]` : "") + (scale.isLog ? ", logarithmic" : "");

  function line(context, x0, y0, x1, y1, colour) {
    context.strokeStyle = colour;
    context.beginPath();
    context.moveTo(Math.round(x0) + 0.5, Math.round(y0) + 0.5);
    context.lineTo(Math.round(x1) + 0.5, Math.round(y1) + 0.5);
    context.stroke();
  }

  const SIDE = { left: 48, right: 96, top: 40, bottom: 16 };

  function parallel(canvas, size, data, look) {
    const { axes, runs, counts, isMet, colours, brushes } = data;
    const context = prepared(canvas, size.width, size.height);
    const height = size.height - SIDE.top - SIDE.bottom;
    const apart = (size.width - SIDE.left - SIDE.right) / Math.max(axes.length - 1, 1);
    const left = (axis) => SIDE.left + axis * apart;
    const scales = axes.map((axis) => scaleOf(axis, 0.02));
    /* A run without a value has a separate position below the axis. */
    const top = (axis, run) => {
      const value = axes[axis].values[run];
      return value === null ? size.height - 4 : SIDE.top + (1 - scales[axis].at(value)) * height;
    };
    const draw = (some, colour, opacity) => {
      context.globalAlpha = opacity;
      context.strokeStyle = colour;
      for (const isCounted of [true, false]) {
        context.setLineDash(isCounted ? [] : [4, 4]);
        context.beginPath();
        for (const run of some.filter((one) => counts[one] === isCounted))
          for (let axis = 0; axis < axes.length; axis++) {
            if (axis) context.lineTo(left(axis), top(axis, run));
            else context.moveTo(left(axis), top(axis, run));
          }
        context.stroke();
      }
      context.setLineDash([]);
      context.globalAlpha = 1;
    };
    const met = runs.filter(isMet);
    context.lineWidth = 1;
    if (met.length < runs.length) draw(runs.filter((run) => !isMet(run)), look.axis, 0.1);
    const opacity = Math.max(0.08, Math.min(0.8, 60 / met.length));
    for (const [colour, some] of byColour(met, colours)) draw(some, colour, opacity);

    context.textBaseline = "middle";
    axes.forEach((axis, place) => {
      const x = left(place);
      line(context, x, SIDE.top, x, SIDE.top + height, look.axis);
      context.font = fontOf(canvas, 11);
      context.textAlign = "left";
      for (const tick of scales[place].ticks(Math.max(2, height / 40))) {
        if (tick.at < 0 || tick.at > 1) continue;
        const y = SIDE.top + (1 - tick.at) * height;
        line(context, x - 3, y, x, y, look.axis);
        const text = fitted(context, tick.text, Math.min(apart, 120) - 12);
        context.lineWidth = 3;
        context.strokeStyle = look.paper;
        context.strokeText(text, x + 6, y);
        context.lineWidth = 1;
        context.fillStyle = look.text;
        context.fillText(text, x + 6, y);
      }
      context.font = fontOf(canvas, 12);
      context.fillStyle = look.text;
      context.textAlign = place ? "center" : "left";
      const title = named(axis, { isLog: false });
      context.fillText(fitted(context, title, place ? apart - 12 : apart / 2 + 32),
        place ? x : x - 32, 12);
      const range = brushes[axis.key];
      if (range) {
        const [from, to] = range.map((end) =>
          SIDE.top + (1 - Math.min(Math.max(scales[place].at(end), 0), 1)) * height);
        context.fillStyle = look.accent;
        context.globalAlpha = 0.22;
        context.fillRect(x - 8, to, 16, Math.max(from - to, 2));
        context.globalAlpha = 1;
        context.strokeStyle = look.accent;
        context.strokeRect(Math.round(x) - 7.5, Math.round(to) + 0.5, 15, Math.max(from - to, 2));
      }
    });
    return {
      top: SIDE.top, height, left, scales,
      path: (run) => axes.map((_, axis) => [left(axis), top(axis, run)]),
      axisAt: (px) => axes.findIndex((_, axis) => Math.abs(left(axis) - px) <= 16),
      back: (axis, py) => scales[axis].back(1 - (py - SIDE.top) / height),
      nearest: (px, py) => {
        const axis = Math.min(Math.max(Math.floor((px - SIDE.left) / apart), 0), axes.length - 2);
        if (axis < 0) return null;
        const share = (px - left(axis)) / apart;
        let best = null;
        let least = 12;
        for (const run of met) {
          const y = top(axis, run) + share * (top(axis + 1, run) - top(axis, run));
          if (Math.abs(y - py) < least) [best, least] = [run, Math.abs(y - py)];
        }
        return best;
      },
    };
  }

  /* Return the runs that no other run surpasses in both columns, in the order of `x`, best
     first. */
  function front(runs, x, y, xBest, yBest) {
    if (xBest === "none" || yBest === "none") return [];
    const [sx, sy] = [xBest === "low" ? 1 : -1, yBest === "low" ? 1 : -1];
    const order = [...runs].sort((a, b) =>
      sx * (x.values[a] - x.values[b]) || sy * (y.values[a] - y.values[b]));
    let best = Infinity;
    return order.filter((run) => {
      const value = sy * y.values[run];
      if (value >= best) return false;
      best = value;
      return true;
    });
  }

  radt.canvas = { scaleOf, colouring, prepared, scatter, parallel, front };
})();
