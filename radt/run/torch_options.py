"""Options for recording PyTorch, set by the runner in variables or by the script."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from radt.errors import UsageError
from radt.home import REPORTS, RunDir
from radt.model import ListenerChoice
from radt.run.notices import warn_once


def loaded_torch() -> Any:
    """Return the module torch; None if it is not imported, or not completely yet."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(getattr(torch, "__spec__", None), "_initializing", False):
        return None
    return torch


#: Set by the runner; the same names as in `radt.listeners.pytorch`.
METRICS_VARIABLE = "RADT_TORCH"
TRACE_VARIABLE = "RADT_TORCHPROF"
TRACE_OPTIONS_VARIABLE = "RADT_TORCHPROF_OPTIONS"

#: Names in the Listeners column.
METRICS_WORD = "torch"
TRACE_WORD = "torchprof"
#: Listeners that run in the process itself, so that the collector need not know them.
INSIDE_WORDS = frozenset({METRICS_WORD, TRACE_WORD})

#: A step of a large model has some 10,000 events, each of which takes 1 KB of memory.
DEFAULT_STEPS = 100
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options of a trace: what to trace, and where the file goes.

    ``epochs`` is None for the second epoch or its substitute (see
    `radt.run.torch_trace.TorchTracer`). ``steps`` ends a trace early in loops that report their
    steps.
    """

    reports: Path
    epochs: tuple[range, ...] | None = None
    steps: int = DEFAULT_STEPS
    memory: bool = False
    stack: bool = False
    shapes: bool = False

    @classmethod
    def parse(cls, reports: Path, words: Sequence[str]) -> TraceOptions:
        """Parse the options of a Listeners column: ``epochs=2-3``, ``steps=20``, ``stack``.

        Raises:
            UsageError: An option is not valid.
        """
        given: dict[str, Any] = {}
        for text in words:
            word, _, value = text.partition("=")
            if word == "epochs":
                given[word] = tuple(_epochs(part) for part in value.split(","))
            elif word == "steps":
                given[word] = _steps(value)
            elif word in ("memory", "stack", "shapes") and not value:
                given[word] = True
            else:
                raise UsageError(
                    f"{text!r} is not an option of {TRACE_WORD}",
                    "Use epochs=2-3, steps=100, memory, stack or shapes",
                )
        return cls(reports, **given)


@dataclass(frozen=True, slots=True)
class TorchWishes:
    """PyTorch recording options of this process."""

    metrics: bool = False
    trace: TraceOptions | None = None

    @classmethod
    def find(
        cls,
        torch: bool | None,
        choices: Sequence[ListenerChoice],
        run_dir: RunDir,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Return the script's choices, or else those of the variables.

        Args:
            torch: The script's choice whether to record metrics.
            choices: The listeners of a script that begins its own run.
            run_dir: Where the run's files go.

        Raises:
            UsageError: An option of the script is not valid.
        """
        options = {choice.name: choice.options for choice in choices}
        variable = environ.get(METRICS_VARIABLE, "").strip()
        if torch is None:
            torch = METRICS_WORD in options or variable not in ("", "0")
        if TRACE_WORD in options:
            return cls(torch, TraceOptions.parse(run_dir.artifacts / REPORTS, options[TRACE_WORD]))
        return cls(torch, _of_variables(environ))


def _of_variables(environ: Mapping[str, str]) -> TraceOptions | None:
    reports = environ.get(TRACE_VARIABLE)
    if not reports:
        return None
    words = [word for word in environ.get(TRACE_OPTIONS_VARIABLE, "").split(":") if word]
    try:
        return TraceOptions.parse(Path(reports), words)
    except UsageError as error:
        warn_once(f"{TRACE_WORD} uses its defaults: {error}")
        return TraceOptions(Path(reports))


def _epochs(text: str) -> range:
    match = _RANGE.fullmatch(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise UsageError(
            f"epochs={text} is not a list of epochs", "Write epochs=2, epochs=2-3 or epochs=1,5"
        )
    return range(first, last + 1)


def _steps(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UsageError(f"steps={text} is not a number of steps", "Write steps=20")
    return int(text)
