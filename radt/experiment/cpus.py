"""What a Cpus cell says: so many CPUs, or these."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from radt.errors import UsageError

#: Far above what Linux can have (NR_CPUS is at most 8192 on x86).
MAX_CPU = 65535
_MAX_DIGITS = 9
_AROUND = re.compile(r"\s*([-+,])\s*")


@dataclass(frozen=True, slots=True)
class CpuRequest:
    """CPUs that the processes of a run may use; neither ``count`` nor ``cpus`` means all.

    ``count`` asks for that many logical CPUs of the run's own; ``cpus`` are logical CPU numbers as
    ``/proc/cpuinfo`` has them, which rows may share.
    """

    count: int | None = None
    cpus: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str, available: frozenset[int]) -> CpuRequest:
        """Understand a Cpus cell: ``8``, ``#5`` (CPU 5), ``0-3+6``, or nothing.

        Raises:
            UsageError: It is none of these, or a CPU is not there.
        """
        cleaned = _AROUND.sub(r"\1", text.strip()).replace(",", "+")  # taskset's lists have commas
        if cleaned in ("", "-"):
            return cls()
        if _is_number(cleaned):
            count = int(cleaned)
            if not 1 <= count <= len(available):
                raise UsageError(
                    f"{count} CPUs are asked for, {len(available)} may be used",
                    f"Write 1 to {len(available)}, a list such as 0-3+6, or nothing for all",
                )
            return cls(count=count)
        cpus = _listed(cleaned, text.strip())
        absent = sorted(set(cpus) - available)
        if absent:
            raise UsageError(
                f"CPU {shown(absent)} is not there or may not be used",
                f"Choose from {shown(sorted(available))}",
            )
        return cls(cpus=tuple(sorted(set(cpus))))

    def __str__(self) -> str:
        if self.count is not None:
            return str(self.count)
        return f"#{self.cpus[0]}" if len(self.cpus) == 1 else shown(self.cpus)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _listed(cleaned: str, given: str) -> list[int]:
    cpus: list[int] = []
    for part in cleaned.split("+"):
        first, dash, last = part.removeprefix("#").partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(map(_is_number, ends)) or int(ends[0]) > int(ends[1]):
            raise UsageError(
                f"{given!r} is neither a number of CPUs nor a list of them",
                "Write 8 for eight CPUs, 0-3+6 for these five, #5 for CPU 5",
            )
        if int(ends[1]) > MAX_CPU:
            raise UsageError(f"there is no CPU {ends[1]}", "Write a smaller number")
        cpus += range(int(ends[0]), int(ends[1]) + 1)
    return cpus


def shown(cpus: Iterable[int]) -> str:
    """Sorted CPU numbers in the notation of the cell.

    >>> shown([0, 1, 2, 3, 6])
    '0-3+6'
    """
    ranges: list[list[int]] = []
    for cpu in cpus:
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return "+".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
