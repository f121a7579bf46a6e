"""The reference of what reports tell."""

from __future__ import annotations

from docs.generator import markdown
from docs.generator.docstrings import as_markdown
from radt.analysis.quantities import Quantity, Statistic
from radt.analysis.series_quantities import Relation, SeriesQuantity
from radt.render import report_csv, report_json


def quantities_reference() -> str:
    """Every quantity with its name, title and unit."""
    return markdown.table(
        ("quantity", "in tables", "unit", "meaning", "source series"),
        [
            (
                f'<span id="{quantity}"></span>{markdown.code(quantity)}',
                markdown.plain(quantity.info.title),
                markdown.code(quantity.info.unit),
                f"{markdown.plain(quantity.info.explanation)}.",
                ", else ".join(markdown.code(metric) for metric in quantity.info.metrics),
            )
            for quantity in Quantity
        ],
    )


def series_quantities_reference() -> str:
    """Every statistic of a series."""
    examples = [
        SeriesQuantity(statistic, "METRIC", Relation.AT_LEAST, 0.65)
        if statistic is Statistic.TIME_TO
        else SeriesQuantity(statistic, "METRIC")
        for statistic in Statistic
    ]
    return markdown.table(
        ("quantity", "meaning"),
        [
            (markdown.code(each.value), f"{markdown.plain(each.info.explanation)}.")
            for each in examples
        ],
    )


def report_files_reference() -> str:
    """What is in the files that programs read: CSV and JSON."""
    return "\n\n".join(
        f"### {title}\n\n{as_markdown(module.__doc__ or '')}"
        for title, module in (("CSV", report_csv), ("JSON", report_json))
    )
