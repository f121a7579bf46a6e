"""A report as one HTML file: nothing is fetched, nothing runs, and it prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from radt.model import RunStatus
from radt.report.formats.chart_bars import chart_bars
from radt.report.formats.columns import INTERVAL_WORDS, Column, column, told
from radt.report.formats.content import Content, Line, reasons_of, runs_text
from radt.report.formats.html_style import STYLE
from radt.report.formats.matrix import Matrix, matrices
from radt.report.formats.svg_bars import MAX_BARS, bars_svg, legend, width_of
from radt.report.formats.tables import ACTIVITY, Sheet, sheets
from radt.report.quantities import ABOUT, Quantity
from radt.units import NO_VALUE, plural

#: Not even what a name smuggled in could load or run anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CHARTS = (
    Quantity.TIME_PER_EPOCH,
    Quantity.SLOWDOWN,
    Quantity.SAMPLES_PER_S,
    Quantity.SPEED_UP,
    Quantity.SM_ACTIVE,
    Quantity.GPU_UTILIZATION,
    Quantity.CPU,
    Quantity.GPU_MEMORY_PEAK,
    Quantity.MEMORY_PEAK,
    Quantity.POWER,
    Quantity.ENERGY_PER_EPOCH,
    Quantity.PCIE_RX,
    Quantity.CARBON,
)
#: Pixels that a figure has around its chart.
_FIGURE_EDGES = 34
#: Names up to here stay on one line.
_SHORT_CHARS = 28


def as_html(content: Content) -> str:
    """The whole page."""
    title = f"{content.title} · radt report"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style></head>",
            "<body><main>",
            *_body(content),
            "</main></body></html>",
            "",
        ]
    )


def _body(content: Content) -> Iterator[str]:
    facts = [
        plural(len(content.items), "workload"),
        plural(sum(item.summary.run_count for item in content.items), "run"),
        f"window: {content.window}",
    ]
    yield (
        f"<header><h1>{escape(content.title)}</h1>"
        f'<p class="facts">{escape(" · ".join(facts))}</p></header>'
    )
    found = sheets(content)
    yield from map(_sheet, found[:1])
    yield from _charts(content)
    yield from map(_sheet, found[1:])
    yield from map(_matrix, matrices(content))
    notes = "".join(f"<li>{escape(note)}</li>" for note in content.notes)
    yield f"<footer><p>{escape(INTERVAL_WORDS)}</p>{f'<ul>{notes}</ul>' if notes else ''}</footer>"


def _sheet(sheet: Sheet) -> str:
    columns = [column(one, sheet.estimates(one)) for one in sheet.quantities]
    heads = [_head("workload"), *([_head("runs")] if sheet.of_runs else [])]
    heads.append('<th scope="col" class="number" title="Repeats">n</th>')
    heads += [
        f'<th scope="col" class="number" title="{escape(ABOUT[one.quantity].explanation)}">'
        f"{escape(one.title)}{_unit(one)}</th>"
        for one in columns
    ]
    rows = [_row(sheet, line, columns) for line in sheet.lines]
    title = f"<h2>{escape(sheet.title)}</h2>" if sheet.title else ""
    return (
        f'<section>{title}<div class="card scroll"><table><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _head(text: str) -> str:
    return f'<th scope="col">{text}</th>'


def _unit(one: Column) -> str:
    return f'<span class="unit">{escape(one.unit)}</span>' if one.unit else ""


def _row(sheet: Sheet, line: Line, columns: Sequence[Column]) -> str:
    name = escape(line.item.name) if line.is_first else ""
    cells = [f'<th scope="row"{_folding(name)}>{name}</th>']
    if sheet.of_runs:
        runs = escape(runs_text(line.group))
        cells.append(f"<td{_folding(runs)}>{runs}{_status(line)}</td>")
    cells.append(f'<td class="number">{sheet.count_text(line)}</td>')
    cells += [_cell(sheet, line, one) for one in columns]
    first = ' class="first"' if line.is_first else ""
    return f"<tr{first}>{''.join(cells)}</tr>"


def _folding(text: str) -> str:
    return ' class="wrap"' if len(text) > _SHORT_CHARS else ""


def _status(line: Line) -> str:
    status = line.group.status
    if status is RunStatus.FINISHED:
        return ""
    bad = " bad" if status in (RunStatus.FAILED, RunStatus.KILLED) else ""
    title = escape("; ".join(reasons_of(line.group)))
    return f'<span class="status{bad}" title="{title}">{status.value}</span>'


def _cell(sheet: Sheet, line: Line, one: Column) -> str:
    if not sheet.is_told(line, one.quantity):
        return "<td></td>"
    estimate = line.estimate(one.quantity)
    if estimate is None:
        return f'<td class="number none">{NO_VALUE}</td>'
    number, mark, half = one.text(estimate).partition(" ±")
    about = escape(told(one.quantity, estimate, len(line.group.runs)))
    interval = f' <span class="half">±{half}</span>' if mark else ""
    return f'<td class="number" title="{about}">{number}{interval}</td>'


def _charts(content: Content) -> Iterator[str]:
    figures, words = [], ""
    busy = set(ACTIVITY) & set(content.quantities)
    for quantity in _CHARTS:
        if quantity not in content.quantities or (quantity is Quantity.CPU and busy):
            continue
        bars = chart_bars(content, quantity)
        known = [bar.estimate for bar in bars if bar.estimate is not None]
        if not known:
            continue
        axis = column(quantity, known)
        words = words or legend(bars)
        unit = [axis.unit] if axis.unit else []
        if len(bars) > MAX_BARS:
            unit.append(f"the first {MAX_BARS} of {len(bars):,}")
        figures.append(
            f'<figure class="card" style="flex-basis:{width_of(bars) + _FIGURE_EDGES:.0f}px">'
            f"<figcaption>{escape(axis.title)}"
            f" <span>{escape(' · '.join(unit))}</span></figcaption>"
            f"{bars_svg(axis, bars, axis.head)}</figure>"
        )
    if figures:
        yield f'<section>{words}<div class="charts">{"".join(figures)}</div></section>'


def _matrix(matrix: Matrix) -> str:
    heads = "".join(f'<th scope="col" class="number">{escape(one)}</th>' for one in matrix.columns)
    rows = []
    for name, cells in zip(matrix.rows, matrix.cells, strict=True):
        made = "".join(
            f'<td class="number none">{NO_VALUE}</td>'
            if cell is None
            else f'<td class="number" style="--share:{cell.heat * 60:.0f}"'
            f' title="{escape(cell.about)}">{escape(cell.text)}</td>'
            for cell in cells
        )
        rows.append(f'<tr><th scope="row" class="wrap">{escape(name)}</th>{made}</tr>')
    return (
        f'<section><h2>{escape(matrix.title)}</h2><p class="why">{escape(matrix.explanation)}</p>'
        f'<div class="card scroll"><table class="matrix"><thead><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )
