"""The resources that rows request from a cluster: the columns Nodes, Gpus, Partition, etc.

Without ``--on`` they are only checked and have no effect, except that Memory limits containers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from radt.errors import UsageError
from radt.experiment.columns import parse_timeout
from radt.setting_values import SWITCHES
from radt.units import parse_memory_bytes

_GPUS = re.compile(r"(?:(\d{1,4})(?:\s*[×xX*:]\s*(?=[A-Za-z])|$))?([A-Za-z][\w.-]*)?", re.ASCII)
_DAYS = re.compile(r"(\d{1,3})-(\d{1,2}):([0-5]\d):([0-5]\d)", re.ASCII)
_MOST_NODES = 9999


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """GPUs per node: their number, None for as many as Devices names; and type, "" for any."""

    count: int | None = None
    kind: str = ""

    @classmethod
    def parse(cls, text: str) -> GpuRequest:
        """Parse a Gpus cell: ``a100``, ``2×a100``, ``2*a100``, ``2``, or nothing.

        Raises:
            UsageError: The text is none of these.
        """
        match = _GPUS.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"{text.strip()!r} is not a number or type of GPUs",
                "Write a100, 2×a100 or 2*a100, or 2 for two of any type",
            )
        return cls(None if match[1] is None else int(match[1]), match[2] or "")

    def __str__(self) -> str:
        if self.count is None:
            return self.kind
        return f"{self.count}×{self.kind}" if self.kind else str(self.count)


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that a row requests from a cluster; ``None`` and "" for empty cells.

    ``time_s`` is for one repeat, including set-up; ``memory_bytes`` is per node, and the limit of a
    row's container.
    """

    nodes: int | None = None
    gpus: GpuRequest = GpuRequest()
    partition: str = ""
    exclusive: bool | None = None
    memory_bytes: int | None = None
    time_s: float | None = None


def parse_nodes(text: str) -> int | None:
    """Parse a Nodes cell: a number of at least 1, None if empty.

    Raises:
        UsageError: It is not such a number.
    """
    given = text.strip()
    if not given:
        return None
    if not (given.isascii() and given.isdigit()) or not 1 <= int(given) <= _MOST_NODES:
        raise UsageError(f"expected a number of nodes, got {given!r}", "Write 1, or leave it empty")
    return int(given)


def parse_exclusive(text: str) -> bool | None:
    """Parse an Exclusive cell: yes or no, None if empty.

    Raises:
        UsageError: It is neither.
    """
    given = text.strip().lower()
    if given and given not in SWITCHES:
        raise UsageError(f"expected yes or no, got {text.strip()!r}", "Write yes or no")
    return SWITCHES.get(given)


def parse_memory(text: str) -> int | None:
    """Parse a Memory cell to bytes, None if empty.

    Raises:
        UsageError: It is not an amount of memory.
    """
    return parse_memory_bytes(text) if text.strip() else None


def parse_time(text: str) -> float | None:
    """Parse a Time cell to seconds, None if empty: as Timeout, or with days in Slurm's format.

    Raises:
        UsageError: It is not a duration.
    """
    match = _DAYS.fullmatch(text.strip())
    if match is None:
        return parse_timeout(text)
    days, hours, minutes, seconds = map(int, match.groups())
    return parse_timeout(str(((days * 24 + hours) * 60 + minutes) * 60 + seconds))
