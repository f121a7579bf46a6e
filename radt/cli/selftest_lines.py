"""How a selftest looks on a terminal; without colour and at 80 columns, too."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.text import Text

from radt import units
from radt.cli.render import printable
from radt.selftest.results import Finding, Selftest, Verdict

_MARKS = {
    Verdict.HELD: ("✔", "green"),
    Verdict.MISSED: ("✘", "red"),
    Verdict.UNCLEAR: ("?", "yellow"),
    Verdict.NOTED: ("·", "dim"),
    Verdict.FAILED: ("✘", "red"),
}
_SUBJECT, _VALUE, _BAR = 25, 9, 17
_INDENT = 3
_MIN_COLUMN = 24


def opening_lines(machine: str, listeners: str, seed: int) -> Iterator[Text]:
    """What is about to be measured, and on what."""
    yield Text()
    yield Text.assemble(("radt selftest", "bold"), f" · {printable(machine)}")
    yield Text(f"   listeners {printable(listeners)} · seed {seed}", "dim")
    yield Text()


def warning_lines(text: str, width: int) -> Iterator[Text]:
    """Why the numbers may say less than they seem to."""
    for number, line in enumerate(_wrapped(text, width - _INDENT)):
        yield Text.assemble(("!  " if number == 0 else "   ", "yellow"), (line, "yellow"))


def finding_lines(finding: Finding, width: int) -> Iterator[Text]:
    """Mark, subject, value, bar; what else there is to say beside or below it."""
    mark, style = _MARKS[finding.verdict]
    head = Text.assemble((f"{mark}  ", style), finding.subject.ljust(_SUBJECT))
    if finding.failure:
        room = max(width - head.cell_len, _MIN_COLUMN)
        for number, part in enumerate(_wrapped(finding.failure, room)):
            yield Text.assemble(head if number == 0 else " " * head.cell_len, part)
        for part in _wrapped(finding.remedy, room):
            yield Text.assemble(" " * head.cell_len, (part, "dim"))
        return
    value = finding.value_text
    bar = finding.bar_text
    if finding.verdict is Verdict.UNCLEAR:
        bar = f"{bar}: cannot tell"
    elif finding.verdict is Verdict.MISSED:
        bar = f"{bar}: missed"
    detail = printable(finding.detail)
    full = Text.assemble(head, (value.rjust(_VALUE), "bold"))
    for column in (bar.ljust(_BAR), bar):  # in columns if there is room for them
        beside = Text.assemble(full, (f"  {column}" if bar else "", style), "  ", (detail, "dim"))
        beside.rstrip()
        if beside.cell_len <= width:
            yield beside
            return
    yield Text.assemble(full, (f"  {bar}" if bar else "", style))
    indent = _INDENT + _SUBJECT + 2
    for part in _wrapped(detail, max(width - indent, _MIN_COLUMN)):
        yield Text.assemble(" " * indent, (part, "dim"))


def closing_lines(found: Selftest, width: int) -> Iterator[Text]:
    """How many bars are held, and how long all of it took."""
    counts = [
        f"{found.count(verdict)} {verdict}"
        for verdict in (Verdict.HELD, Verdict.MISSED, Verdict.UNCLEAR, Verdict.FAILED)
        if found.count(verdict)
    ]
    style = "bold" if found.passed else "bold red"
    yield Text()
    yield Text.assemble(
        (", ".join(counts) or "nothing was measured", style),
        (f" · {units.duration(found.took_s)}", "dim"),
    )
    if found.count(Verdict.UNCLEAR):
        text = "more --pairs, longer --seconds, or an idle machine would tell"
        for line in _wrapped(text, width - _INDENT):
            yield Text(f"   {line}", "dim")
    yield Text()


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), width, break_on_hyphens=False)
