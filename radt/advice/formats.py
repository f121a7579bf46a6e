"""Advice for terminals, as Markdown, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from radt.advice import lines
from radt.advice.advise import Advice
from radt.advice.lines import Grid
from radt.advice.texts import models_text, way_text
from radt.advice.words import Prediction

_NAME_CHARS = 24


def print_advice(console: Console, advice: Advice, *, all_of_them: bool = False) -> None:
    """For a terminal of 80 columns or more."""
    console.print()
    console.print(Text(lines.title(advice), style="bold"))
    for place in lines.places(advice):
        _indented(console, place, "dim")
    console.print()
    _print_grid(console, lines.solos(advice, all_of_them=all_of_them))
    console.print()
    shown, more = lines.recommended(advice, all_of_them=all_of_them)
    for one in shown:
        head, reasons = lines.recommendation(one)
        _indented(console, head, "bold")
        for reason in reasons:
            _indented(console, reason, "dim", 4)
    if more:
        _indented(console, f"{more:,} more: --all", "dim")
    if shown:
        console.print()
    grid, hidden = lines.predictions(advice, all_of_them=all_of_them)
    if grid.rows:
        _print_grid(console, grid)
        if hidden:
            _indented(console, f"{hidden:,} more: --all", "dim")
        _indented(console, lines.calibration(advice), "dim")
        console.print()
    for line in lines.accuracy(advice.accuracy):
        _indented(console, f"against what was measured, {line}")
    for line in lines.needs(advice):
        _indented(console, f"missing: {line}", "red")
    for line in advice.notes:
        _indented(console, f"note: {line}", "dim")
    console.print()


def _indented(console: Console, text: str, style: str = "", by: int = 2) -> None:
    console.print(Padding(Text(text, style=style), (0, 0, 0, by), expand=False))


def _print_grid(console: Console, grid: Grid) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for place, head in enumerate(grid.heads):
        if place == 0:
            table.add_column(f"  {head}", overflow="fold", max_width=_NAME_CHARS + 2)
        elif place < grid.left:
            table.add_column(head, overflow="fold", max_width=12)
        else:
            table.add_column(head, justify="right", no_wrap=True)
    for row in grid.rows:
        table.add_row(Padding(Text(row[0]), (0, 0, 0, 2)), *map(Text, row[1:]))
    console.print(table)


def markdown(advice: Advice, *, all_of_them: bool = False) -> str:
    """As a page."""
    parts = [f"# {_escaped(lines.title(advice))}", _list(lines.places(advice))]
    parts += ["## Alone", _markdown_grid(lines.solos(advice, all_of_them=all_of_them))]
    shown, more = lines.recommended(advice, all_of_them=all_of_them)
    if shown:
        parts.append("## What to do")
        for one in shown:
            head, reasons = lines.recommendation(one)
            parts += [f"**{_escaped(head)}**", _list(reasons)]
    if more:
        parts.append(f"{more:,} more are not shown.")
    grid, hidden = lines.predictions(advice, all_of_them=all_of_them)
    if grid.rows:
        parts += ["## Predictions", _markdown_grid(grid), lines.calibration(advice) + "."]
        if hidden:
            parts.append(f"{hidden:,} more are not shown.")
    for head, found in (
        ("Against what was measured", lines.accuracy(advice.accuracy)),
        ("Missing", lines.needs(advice)),
        ("Notes", advice.notes),
    ):
        if found:
            parts += [f"## {head}", _list(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _escaped(text: str) -> str:
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())


def _list(found: Iterable[str]) -> str:
    return "\n".join(f"- {_escaped(line)}" for line in found)


def _markdown_grid(grid: Grid) -> str:
    rules = ["---" if place < grid.left else "---:" for place in range(len(grid.heads))]
    rows = [[_escaped(cell) for cell in row] for row in (grid.heads, *grid.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rules, *rows[1:]))


def as_json(advice: Advice) -> str:
    """All of it, numbers in base units."""
    found = {
        "experiment": advice.study.experiment,
        "goal": advice.wish.goal.value,
        "max_slowdown": advice.wish.max_slowdown,
        "separate": advice.wish.separate,
        "memory_margin": advice.margin,
        "alone": [
            {
                "name": solo.name,
                "run": solo.run_id,
                "host": solo.host,
                "devices": solo.devices,
                "repeats": solo.count,
                "seconds": {of.value: value for of, value in solo.paces_s.items()},
                "shares": {of.value: value for of, value in solo.shares.items()},
                "sm_activity_is_gpu_utilization": solo.sm_is_utilization,
                "memory_bytes": solo.footprint and solo.footprint.peak_bytes,
                "memory_of": solo.footprint and solo.footprint.of.value,
            }
            for solo in advice.study.solos.values()
        ],
        "recommendations": [
            {
                "for": one.subject,
                "best": None if one.best is None else _prediction(one.best),
                "reasons": [
                    {
                        "rule": reason.rule.name.lower(),
                        "section": reason.rule.value.section or None,
                        "text": reason.rule.value.text,
                        "numbers": reason.numbers,
                    }
                    for reason in one.reasons
                ],
            }
            for one in advice.recommendations
        ],
        "predictions": [_prediction(one) for one in advice.predictions],
        "accuracy": {
            "slowdown_count": len(advice.accuracy.slowdowns),
            "median_error": advice.accuracy.median_error,
            "worst_error": advice.accuracy.worst and abs(advice.accuracy.worst.error),
            "in_range": advice.accuracy.within,
            "fit_count": len(advice.accuracy.decided),
            "fit_wrong": [one.label for one in advice.accuracy.wrong],
            "slowdowns": [
                {
                    "workload": one.label,
                    "model": one.name,
                    "expected": one.expected,
                    "measured": one.measured,
                }
                for one in advice.accuracy.slowdowns
            ],
        },
        "missing": lines.needs(advice),
        "notes": list(advice.notes),
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _prediction(one: Prediction) -> dict[str, Any]:
    return {
        "models": models_text(one.candidate),
        "workloads": list(one.candidate.labels),
        "why": one.candidate.origin.value,
        "method": one.candidate.method.value,
        "how": way_text(one.candidate),
        "degree": one.candidate.degree,
        "fits": one.fit.value,
        "memory": list(_rooms(one)),
        "gain": one.gain,
        "energy": one.energy,
        "calibrated_by": one.calibrated_by,
        "rows": [
            {
                "model": row.row.solo.name,
                "collocation": str(row.row.collocation),
                "expected": row.expected,
                "low": row.range.low,
                "high": row.range.high,
                "limit": row.limit,
            }
            for row in one.rows
        ],
        "measured_slowdowns": list(one.measured),
        "measured_fit": one.measured_fit,
        "unknown": list(one.unknown),
    }


def _rooms(one: Prediction) -> Iterator[dict[str, Any]]:
    for room in one.rooms:
        if room.name:
            yield {
                "of": room.name,
                "need_bytes": room.need_bytes,
                "capacity_bytes": room.capacity_bytes,
                "margin_bytes": room.margin_bytes,
            }
