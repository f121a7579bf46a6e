/* The log of a run, on the Run and the Workload page: only parts around the visible lines are loaded. The end follows a
   running run. A search lists the matching lines. */
"use strict";

(function () {
  const { address, debounced, h, refill, searchField, setText } = window.radt;
  /* Maximum number of parts kept on the page, of up to 64 KB each; others are fetched on
     scrolling. */
  const MOST = 24;
  const FULL = 64 * 1024;
  const NEAR_PX = 400;
  const FOLLOW_MS = 1000;
  const TYPING_MS = 250;

  let run = null; /* { id, live } */
  let home = null; /* the log's box when the run was shown */
  let log = null; /* { size, rest }: size of the log, and its incomplete last line */
  let found = null; /* { text, matches, scanned, lines, size } */
  let busy = false;
  let follows = false;

  const byId = (id) => document.getElementById(id);
  const parts = () => [...byId("run-log").querySelectorAll(".run-part")];
  const start = () => Number(parts()[0].dataset.start);
  const end = () => Number(parts().at(-1).dataset.end);
  const isWhole = () => end() + log.rest >= log.size;
  const lines = (texts) => texts.map((text) => h("div", {}, text || "\n"));

  async function fetchFrom(name, query) {
    const mine = run;
    const answer = await window.radt.media.ask(mine, name, query);
    if (mine !== run) throw new DOMException("another run is shown", "AbortError");
    return answer;
  }

  async function ask(query) {
    const part = await fetchFrom("log", query);
    if (part.missing) throw new Error(part.missing);
    part.element = h("div", { class: "run-part", "data-start": part.start, "data-end": part.end }, lines(part.lines));
    return part;
  }

  /* Update the log's size. Its last line, while incomplete, is a separate element. */
  function seen(part) {
    const box = byId("run-log");
    for (const old of box.querySelectorAll(".run-rest")) old.remove();
    log = { size: part.size, text: part.size_text, rest: part.end === end() && part.rest ? part.size - part.end : 0 };
    if (log.rest) box.append(h("div", { class: "run-rest" }, part.rest));
    const where = !isWhole() ? `at ${Math.round((100 * end()) / log.size)} %` : start() ? "end" : "all";
    setText(byId("run-log-note"), `${where} of ${log.text}${run.live ? " · follows" : ""}`);
    byId("run-log-last").hidden = isWhole();
  }

  async function jump(query) {
    const part = await ask(query);
    byId("run-log").replaceChildren(part.element);
    seen(part);
    return part;
  }

  async function earlier() {
    if (!start()) return;
    const part = await ask(`before=${start()}`);
    const box = byId("run-log");
    const fromEnd = box.scrollHeight - box.scrollTop;
    box.prepend(part.element);
    const all = parts();
    if (all.length > MOST) {
      all.at(-1).remove();
      seen({ ...part, end: -1 });
    } else seen({ ...part, end: end(), rest: log.rest ? box.lastElementChild.textContent : "" });
    box.scrollTop = box.scrollHeight - fromEnd;
  }

  async function later() {
    const part = await ask(`after=${end()}`);
    const box = byId("run-log");
    if (part.size < end()) return void (await last()); // the file was replaced
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
    const all = parts();
    const latest = all.at(-1);
    if (end() - Number(latest.dataset.start) < FULL) {
      latest.append(...lines(part.lines));
      latest.dataset.end = part.end;
    } else if (part.lines.length) latest.after(part.element);
    const above = box.scrollHeight;
    if (all.length > MOST) all[0].remove();
    seen(part);
    if (follows && isWhole()) box.scrollTop = box.scrollHeight;
    else box.scrollTop -= Math.max(0, above - box.scrollHeight);
  }

  async function last() {
    await jump("");
    byId("run-log").scrollTop = byId("run-log").scrollHeight;
  }

  async function alone(action) {
    if (busy || !log) return;
    busy = true;
    try {
      await action();
    } finally {
      busy = false;
    }
  }

  const quietly = (action) => alone(action).catch(() => {}); // the next scroll retries

  function scrolled() {
    const box = byId("run-log");
    if (box.scrollTop < NEAR_PX && start()) quietly(earlier);
    else if (box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_PX && !isWhole()) quietly(later);
  }

  async function search(text) {
    if (!found || found.text !== text) found = { text, matches: [], scanned: 0, lines: 0, size: 1 };
    const current = found;
    const query = { text, scanned: current.scanned, lines: current.lines };
    const answer = await fetchFrom("search", new URLSearchParams(query));
    if (current !== found) return;
    Object.assign(found, answer, { matches: [...found.matches, ...answer.matches] });
    show();
    if (!answer.matches.length && answer.scanned < answer.size) await search(text);
  }

  function marked(line, text) {
    const pieces = [];
    const lowered = line.toLowerCase();
    let from = 0;
    for (let at; (at = lowered.indexOf(text.toLowerCase(), from)) >= 0; from = at + text.length)
      pieces.push(line.slice(from, at), h("mark", {}, line.slice(at, at + text.length)));
    return [...pieces, line.slice(from)];
  }

  async function goTo(match) {
    await jump(`after=${match.start}`);
    const box = byId("run-log");
    const line = box.querySelector(".run-part > div");
    line.classList.add("run-hit");
    await earlier();
    box.scrollTop += line.getBoundingClientRect().top - box.getBoundingClientRect().top - 60;
    box.focus({ preventScroll: true });
  }

  function show() {
    const box = byId("run-log-found");
    if (!found) return void box.replaceChildren();
    const more = found.scanned < found.size;
    const count = found.matches.length.toLocaleString("en");
    const share = more ? ` in the first ${Math.floor((100 * found.scanned) / found.size)} %` : "";
    const { text } = found;
    refill(box,
      h("p", { class: "workload-dim", role: "status" },
        `${count} ${found.matches.length === 1 ? "line" : "lines"} with “${text}”${share}`,
        more && h("button", { class: "quiet", "data-focus": "more", onclick: () => search(text).catch(fail) }, "search on")),
      found.matches.length > 0 && h("ol", { class: "run-found", "aria-label": "Lines found" },
        found.matches.map((match) =>
          h("li", {}, h("button", {
            class: "quiet", "data-focus": match.start,
            onclick: () => alone(() => goTo(match)).catch(fail),
          }, h("span", { class: "workload-number" }, match.number.toLocaleString("en")),
          h("span", {}, marked(match.line, text)))))));
  }

  function fail(error) {
    if (error.name !== "AbortError") setText(byId("run-log-note"), error.message);
  }

  const typed = debounced((text) => {
    found = null;
    if (text) search(text).catch(fail);
    else show();
  }, TYPING_MS);

  async function begin(shown) {
    run = shown;
    follows = run.live;
    log = found = null;
    busy = false;
    const box = (home = byId("run-log"));
    box.replaceChildren();
    show();
    byId("run-log-tools").replaceChildren(
      h("button", { class: "quiet", id: "run-log-last", hidden: true, onclick: () => quietly(last) }, "latest"),
      searchField("Search the log", "", typed, { class: "run-search" }),
      h("a", { href: address(`files/${encodeURIComponent(run.id)}/log`), download: "" }, "whole log"));
    try {
      await last();
    } catch (error) {
      fail(error);
      if (error.name === "AbortError") throw error;
      return;
    }
    if (!log.size) setText(byId("run-log-note"), "nothing printed");
    box.onscroll = scrolled;
  }

  /* Append new lines of a running run if the end is on the page, and once more after its end. */
  setInterval(() => {
    if (document.hidden || !home || !home.isConnected || !(run.live || follows)) return;
    follows = run.live;
    if (!log) begin(run).catch(() => {}); // it did not exist yet
    else if (isWhole()) quietly(later);
  }, FOLLOW_MS);

  window.radt.runLog = { begin };
})();
