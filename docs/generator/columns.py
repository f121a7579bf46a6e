"""The reference of the columns of experiment files, from their schema."""

from __future__ import annotations

from docs.generator import markdown
from radt.experiment.columns import WRITTEN, Column


def columns_reference() -> str:
    """Every column that means something to radt."""
    rows = []
    for column in Column:
        field = column.field
        empty = [markdown.code(text) for text in sorted(field.missing) if text]
        meaning = markdown.plain(field.description)
        if empty:
            meaning += f" {', '.join(empty)} {'counts' if len(empty) == 1 else 'count'} as empty."
        if field.max_length is not None:
            meaning += f" At most {field.max_length:,} characters."
        rows.append(
            (
                f'<span id="{column.lower()}"></span>{markdown.code(column)}',
                meaning,
                markdown.plain(field.if_empty),
                markdown.code(field.example),
                "radt" if column in WRITTEN else "you",
            )
        )
    return markdown.table(
        ("column", "content", "if empty or absent", "example", "written by"), rows
    )
