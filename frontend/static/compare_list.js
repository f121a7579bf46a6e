/* The Compare page: the list of picked workloads and runs. */
"use strict";

(function () {
  const { radt } = window;
  const { h, refill, searchField, swatch: coloured } = radt;
  const page = radt.compare;
  const { icon } = page;
  const SEARCHED_FROM = 10;

  const NO_STROKE = "solid";

  let drawn = null;
  let filter = "";

  page.begun.push(() => {
    drawn = null;
    filter = "";
  });

  const together = (unit) => {
    const { level } = page.board();
    return level === "workload" ||
      (level === "auto" && unit.whole && unit.collocated && page.facts.units.length > 1);
  };

  function list() {
    const holder = document.getElementById("compare-list");
    if (!holder) return;
    const { facts } = page;
    const { level, monochrome } = page.board();
    const strokes = strokesOf(facts.units);
    const known = JSON.stringify([
      facts.names, facts.text, facts.notes, facts.automatic, facts.units, page.hidden(), level,
      monochrome, page.trouble, strokes,
    ]);
    if (known === drawn) return;
    drawn = known;
    strokeOf = (key) => strokes[key];
    const scrolled = holder.querySelector(".picks");
    const top = scrolled ? scrolled.scrollTop : 0;
    const many = facts.units.reduce((sum, unit) => sum + unit.runs.length, 0) > SEARCHED_FROM;
    const rows = h("ul", { class: "picks", "aria-label": "Picked workloads and runs" },
      facts.units.flatMap((unit) => (unit.collocated || level === "workload"
        ? [unitRow(unit)] : unit.runs.map((run) => runRow(unit, run, run.short)))));
    const none = h("p", { class: "none", hidden: true }, "No run matches.");
    const search = many && searchField("Find in the list", filter, (text) => {
      filter = text;
      narrow();
    });
    if (!many) filter = "";
    const narrow = () => { none.hidden = page.narrow(rows, filter) || !facts.units.length; };
    refill(holder,
      h("div", { class: "list-head" },
        h("h1", { title: facts.names.join(", ") }, facts.names.join(", ") || "Compare"),
        h("button", {
          class: "quiet list-toggle", "data-focus": "toggle",
          "aria-expanded": String(holder.dataset.open === "yes"),
          onclick: (event) => {
            const open = holder.dataset.open !== "yes";
            holder.dataset.open = open ? "yes" : "no";
            event.currentTarget.setAttribute("aria-expanded", String(open));
          },
        }, "Runs"),
        h("p", { id: "facts" }, facts.text),
        facts.automatic && facts.units.length
          ? h("p", { class: "how-chosen" }, "picked automatically: the newest") : ""),
      ...[search, rows, none].filter(Boolean),
      h("div", { class: "list-foot" },
        h("a", { href: radt.address(), "data-keep": true, "data-focus": "change" }, "Change selection"),
        page.hidden().length
          ? h("button", {
              class: "quiet", "data-focus": "show-all",
              onclick: () => page.setHidden([]),
            }, "Show all") : ""));
    narrow();
    rows.scrollTop = top;
  }

  const wordsOf = ({ title, name, note }) => `${title} ${name} ${note}`.toLowerCase();

  function unitRow(unit) {
    const one = unit.runs.length === 1;
    const whole = together(unit);
    const stems = [unit.key];
    const runs = unit.runs.map((run) => run.key);
    const gone = isHidden([unit.key]) || runs.every((key) => isHidden([key]));
    const words = [unit, ...unit.runs].map(wordsOf).join(" ");
    return h("li", { class: "unit-row", "data-words": words },
      row({
        item: one ? Object.assign({}, unit.runs[0], { pick: unit.pick }) : unit,
        swatch: one ? (whole ? unit : unit.runs[0]) : whole ? unit : null,
        // If one of several runs is selected, use its own name, like its line.
        label: one && unit.runs[0].letter ? `${unit.name} ${unit.runs[0].letter}` : unit.name,
        name: one ? unit.runs[0].name : unit.note,
        note: one ? unit.runs[0].note : "",
        title: one ? unit.runs[0].title : unit.title,
        hidden: gone,
        keys: [unit.key, ...runs],
        unit: unit.key,
        strong: !one,
        workload: unit,
        enter: () => page.highlight([...stems, ...runs], stems),
        remove: () => remove(unit, unit.runs),
      }),
      one ? "" : h("ul", {}, unit.runs.map((run) => runRow(unit, run, run.letter, true))));
  }

  function runRow(unit, run, label, isInside) {
    const whole = together(unit);
    return h("li", { "data-words": `${wordsOf(unit)} ${wordsOf(run)}` }, row({
      item: run,
      swatch: whole ? null : run,
      label,
      name: run.name,
      note: run.note,
      title: run.title,
      hidden: isHidden([unit.key, ...(whole ? [] : [run.key])]),
      keys: whole ? [] : unit.runs.length > 1 ? [run.key] : [unit.key, run.key],
      workload: isInside ? null : unit,
      enter: () => page.highlight([run.key], [unit.key]),
      remove: () => remove(unit, [run]),
    }));
  }

  /* The dashes of list items, if all charts agree. For print, they depend on the index of a
     line in its chart. */
  let strokeOf = () => undefined;
  function strokesOf(units) {
    const found = {};
    const keys = new Set(units.flatMap((unit) => [unit.key, ...unit.runs.map((run) => run.key)]));
    for (const { meta } of page.drawn())
      for (const { key, stroke, hidden, estimated, members, colour } of (meta && meta.lines) || []) {
        for (const member of members) found[member] = { stroke, colour };
        const [stem] = key.split(/[/@]/, 1);
        // Dashes of estimated values describe the value, not the run.
        if (hidden || estimated || !keys.has(stem)) continue;
        found[stem] = found[stem] === undefined || found[stem] === stroke ? stroke : NO_STROKE;
      }
    return found;
  }
  page.listed = list;

  /* Draw a swatch with the dashes of its line, in SVG's format. */
  page.dashed = (swatch, stroke) => {
    if (!stroke || stroke === NO_STROKE) return;
    let at = 0;
    const stops = stroke.split(",").map((length, place) => {
      const from = at;
      at += parseFloat(length);
      return `${place % 2 ? "transparent" : "var(--ink)"} ${from}px ${at}px`;
    });
    swatch.dataset.stroke = stroke;
    swatch.style.setProperty("--stops", stops.join(", "));
  };

  function row(asked) {
    const { item, swatch, label, name, note, title, hidden, keys, strong, workload } = asked;
    const { enter, remove } = asked;
    const mark = swatch ? coloured("swatch", swatch.light, swatch.dark) : h("span", { class: "swatch" });
    if (swatch) {
      const look = strokeOf(swatch.key) || swatch.stroke;
      page.dashed(mark, look.stroke || look);
      // A run of a group has the colour of its group's line.
      if (look.colour) mark.style.setProperty("--ink", look.colour);
      if (page.board().monochrome) mark.dataset.mono = "";
    } else mark.dataset.none = "";
    const words = [label, name].filter(Boolean).join(" ");
    return h("div", {
      class: "pick", "data-hidden": hidden && "", "data-run": item.id, "data-key": item.key,
      "data-unit": asked.unit,
      onpointerenter: enter,
      onpointerleave: () => page.highlight(null),
      onfocusin: enter,
      onfocusout: () => page.highlight(null),
    },
      mark,
      h("span", { class: strong ? "pick-label strong" : "pick-label", title },
        !workload ? label : h("a", {
          href: radt.address("workload", `w=${workload.key.slice(1)}`), "data-keep": true,
          title: `Open ${workload.title}`, "data-focus": `open ${item.key}`,
        }, label)),
      h("span", { class: "pick-name", title }, name),
      h("span", { class: "pick-note", "data-status": item.status }, note),
      !keys.length ? "" : h("button", {
        class: "quiet square eye", "data-focus": `eye ${item.key}`,
        "aria-pressed": String(!hidden), "aria-label": `Show ${words}`,
        title: hidden ? "Show in all charts" : "Hide in all charts",
        onclick: () => hide(keys, !hidden),
      }, icon(hidden ? "closed" : "eye")),
      h("button", {
        class: "quiet square", "data-focus": `remove ${item.key}`,
        "aria-label": `Remove ${words}`, title: "Remove from the selection",
        onclick: remove,
      }, icon("cross")));
  }

  const isHidden = (keys) => {
    const hidden = page.hidden();
    return keys.some((key) => hidden.includes(key));
  };

  function hide(keys, hidden) {
    const before = page.hidden();
    if (hidden) {
      page.setHidden([...new Set([...before, keys[0]])]);
      return;
    }
    const [key] = keys;
    const unit = page.facts.units.find((one) => one.runs.some((run) => run.key === key));
    let rest = before.filter((one) => !keys.includes(one));
    if (unit && before.includes(unit.key)) {
      // A run of a hidden workload: the others stay hidden.
      rest = rest.filter((one) => one !== unit.key);
      rest.push(...unit.runs.map((run) => run.key).filter((one) => one !== key));
    }
    page.setHidden([...new Set(rest)]);
  }

  function remove(unit, runs) {
    const gone = new Set(runs.map((run) => run.pick));
    const stay = unit.runs.filter((run) => !gone.has(run.pick)).map((run) => run.pick);
    const picksOf = (other) =>
      other === unit ? stay : other.whole ? [other.pick] : other.runs.map((run) => run.pick);
    const next = page.facts.units.flatMap(picksOf);
    radt.change((view) => {
      view.picks = next;
    });
    page.say("Removed");
  }

  page.renderers.push(list);
})();
