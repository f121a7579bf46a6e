"""How a report looks as a page of its own: light and dark as the reader's system, and on paper."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ground: #f6f7f9; --text: #23272d; --dim: #5f6771;
  --line: #dfe3e8; --grid: #eceef1; --bad: #b42318; --heat: #d55e00;
  --naive: #0072b2; --mps: #c47a00; --mig: #00946b; --mixed: #c0629a; }
@media (prefers-color-scheme: dark) { :root { --paper: #1b1e22; --ground: #141619; --text: #dfe3e8;
  --dim: #949da8; --line: #343a41; --grid: #2a2e34; --bad: #ff8a80; --heat: #e8702a;
  --naive: #3a95d0; --mps: #e69f00; --mig: #0cb488; --mixed: #d68bb5; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 24px; background: var(--ground); color: var(--text);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans",
  "Liberation Sans", Arial, sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 1600px; margin: 0 auto; display: grid; gap: 24px; }
main > * { min-width: 0; }
h1 { margin: 0; font-size: 20px; line-height: 1.3; overflow-wrap: anywhere; }
h2 { margin: 0 0 8px; font-size: 15px; }
p { margin: 0; }
.facts, .why, footer { color: var(--dim); }
.why { margin-bottom: 8px; max-width: 80ch; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 4px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: 6px 12px; text-align: left; font-weight: 400; white-space: nowrap;
  vertical-align: baseline; }
thead th { color: var(--dim); border-bottom: 1px solid var(--line); vertical-align: bottom; }
thead .unit { display: block; font-size: 12px; }
tbody th { font-weight: 600; }
tbody tr.first:not(:first-child) > * { border-top: 1px solid var(--line); }
.number { text-align: right; }
.number .half { color: var(--dim); }
.none { color: var(--dim); }
.wrap { white-space: normal; min-width: 24ch; overflow-wrap: anywhere; }
tbody th.wrap { max-width: 28ch; }
.status { margin-left: 8px; padding: 0 6px; border: 1px solid var(--line); border-radius: 4px;
  font-size: 12px; white-space: nowrap; }
.status.bad { color: var(--bad); }
.charts { display: flex; flex-wrap: wrap; gap: 16px; }
.charts figure { flex-grow: 1; flex-shrink: 1; max-width: 100%; }
figure { margin: 0; padding: 12px 16px; min-width: 0; }
figcaption { font-weight: 600; }
figcaption span { color: var(--dim); font-weight: 400; }
svg { display: block; width: 100%; height: auto; margin-top: 8px; }
svg text { font-size: 11px; fill: var(--text); }
svg .tick { text-anchor: end; fill: var(--dim); }
svg .block, svg .name, svg .value { text-anchor: middle; }
svg .block { fill: var(--dim); }
svg .slanted { text-anchor: end; }
svg .end { fill: var(--dim); }
svg .grid { stroke: var(--grid); }
svg .axis { stroke: var(--dim); }
svg .part { stroke: var(--dim); stroke-dasharray: 2 3; }
svg .whisker { stroke: var(--text); fill: none; }
svg .estimated { fill-opacity: 0.55; }
.way-naive { fill: var(--naive); background: var(--naive); }
.way-mps { fill: var(--mps); background: var(--mps); }
.way-mig { fill: var(--mig); background: var(--mig); }
.way-mixed { fill: var(--mixed); background: var(--mixed); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin-bottom: 8px; }
.legend i { display: inline-block; width: 10px; height: 10px; margin-right: 6px;
  border-radius: 2px; }
.card:has(.matrix) { width: fit-content; max-width: 100%; }
.matrix { width: auto; }
.matrix td { background: color-mix(in srgb, var(--heat) calc(var(--share, 0) * 1%), transparent); }
footer ul { margin: 8px 0 0; padding-left: 20px; }
footer li { overflow-wrap: anywhere; }
@media (max-width: 700px) { body { padding: 12px; } th, td { padding: 5px 8px; } }
@media print {
  :root { color-scheme: light; --paper: #fff; --ground: #fff; --text: #000;
    --dim: #444; --line: #bbb; --grid: #ddd;
    --naive: #0072b2; --mps: #c47a00; --mig: #00946b; --mixed: #c0629a; }
  body { padding: 0; font-size: 10px; print-color-adjust: exact;
    -webkit-print-color-adjust: exact; }
  main { gap: 12px; }
  .scroll { overflow: visible; }
  th, td { padding: 3px 5px; white-space: normal; }
  .charts { gap: 8px; }
  figure, tr { break-inside: avoid; }
}
"""
