"""The reference of what reports tell."""

from __future__ import annotations

from docs.generator import markdown
from docs.generator.docstrings import as_markdown
from radt.report.formats import json_report, tidy_csv
from radt.report.quantities import ABOUT


def quantities_reference() -> str:
    """Every quantity with its name, title and unit."""
    return markdown.table(
        ("quantity", "in tables", "unit", "what it is", "read of"),
        [
            (
                f'<span id="{name}"></span>{markdown.code(name)}',
                markdown.plain(about.title),
                markdown.code(about.unit),
                f"{markdown.plain(about.explanation)}.",
                ", else ".join(markdown.code(metric) for metric in about.metrics),
            )
            for name, about in ABOUT.items()
        ],
    )


def report_files_reference() -> str:
    """What is in the files that programs read: CSV and JSON."""
    return "\n\n".join(
        f"### {title}\n\n{as_markdown(module.__doc__ or '')}"
        for title, module in (("CSV", tidy_csv), ("JSON", json_report))
    )
