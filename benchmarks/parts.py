"""Run the parts of a benchmark, print and write what they found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.document import replace_section, section
from benchmarks.results import Findings, bar_table
from benchmarks.timing import Load


def run_parts(
    parts: Mapping[str, Callable[[], Findings]],
    heading: str,
    command: str,
    setting: str = "",
    write: Path | None = None,
) -> int:
    """Run parts one after another; return 1 if a target is missed.

    Args:
        parts: What to measure, by name.
        heading: Heading of the section that is written.
        command: The command that measures the same again.
        setting: Under which conditions.
        write: File in which the section is replaced.
    """
    load, found = Load(), Findings()
    for measure in parts.values():
        part = measure()
        load.look()
        for table in part.tables:
            print(f"\n{table.plain()}", flush=True)
        found.tables += part.tables
        found.bars += part.bars
    found.tables.append(bar_table(found.bars))
    print(f"\n{found.tables[-1].plain()}\n\n{load}")
    if write is not None:
        replace_section(write, section(heading, command, load, found.tables, setting))
    return int(not all(bar.held for bar in found.bars))
