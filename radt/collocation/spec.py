"""Parses Collocation cells: naive, MPS, a MIG instance, or MPS inside one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from radt.errors import UsageError

#: The cell of rows without set-up: the runs share an undivided device.
NAIVE_TEXT = "-"

# pandas, and thus the original radT, writes an empty cell back as `nan`.
_NAIVE = ("", NAIVE_TEXT, "nan", "naive", "none")
_MPS = re.compile(r"mps(?::\s*(\d+(?:\.\d+)?)\s*%?)?", re.IGNORECASE)
_MIG = re.compile(
    r"(?:(?P<compute>\d+)c\.)?(?P<slices>\d+)g\.(?P<memory>\d+)gb(?P<attributes>(?:[+-]\w[\w.]*)*)"
    r"(?:#(?P<instance>\w+))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG profile in NVIDIA's notation: ``[Nc.]Ng.Mgb[+me]``.

    ``compute_slices`` is None if the compute instance has all slices of its GPU instance;
    ``attributes`` is the suffix after the memory (``+me``, ``+gfx``), in lower case.
    """

    gpu_slices: int
    memory_gb: int
    compute_slices: int | None = None
    attributes: str = ""

    @property
    def gpu_instance(self) -> str:
        """Return the name of the GPU instance's profile: ``7g.40gb`` for ``3c.7g.40gb``."""
        return f"{self.gpu_slices}g.{self.memory_gb}gb{self.attributes}"

    def __str__(self) -> str:
        compute = f"{self.compute_slices}c." if self.compute_slices is not None else ""
        return f"{compute}{self.gpu_instance}"


@dataclass(frozen=True, slots=True)
class Mps:
    """A client of NVIDIA's Multi-Process Service.

    ``thread_percentage`` limits its share of the SMs (``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``), None
    for no limit.
    """

    thread_percentage: float | None = None

    def __str__(self) -> str:
        cap = self.thread_percentage
        return "MPS" if cap is None else f"MPS:{cap:g}"


@dataclass(frozen=True, slots=True)
class Collocation:
    """How a run shares its devices.

    Rows of a workload with the same device, profile and ``instance`` share one MIG instance; an
    empty ``instance`` means a separate one, except under MPS, whose clients share one.
    """

    mig: MigProfile | None = None
    mps: Mps | None = None
    instance: str = ""

    @property
    def is_naive(self) -> bool:
        return self.mig is None and self.mps is None

    @classmethod
    def parse(cls, text: str) -> Collocation:
        """Parse a Collocation cell.

        ``-`` or nothing, ``MPS``, ``MPS:40``, ``3g.20gb``, ``3c.7g.40gb``, ``3g.20gb#1`` (the
        instance called 1, shared by the rows that name it), ``3g.20gb+MPS``, ``3g.20gb#1+MPS:40``.

        Raises:
            UsageError: The text is none of these.
        """
        cleaned = "".join(text.split())
        if cleaned.lower() in _NAIVE:
            return cls()
        mps = None
        head, plus, tail = cleaned.rpartition("+")
        if not plus and _MPS.fullmatch(cleaned):
            return cls(mps=_mps(cleaned))
        if plus and _MPS.fullmatch(tail):
            mps, cleaned = _mps(tail), head
        match = _MIG.fullmatch(cleaned)
        if match is None:
            raise UsageError(
                f"unknown collocation {text.strip()!r}",
                "Write -, MPS, MPS:40, a MIG profile such as 3g.20gb, or 3g.20gb+MPS",
            )
        compute = int(match["compute"]) if match["compute"] else None
        slices = int(match["slices"])
        if compute is not None and not 1 <= compute <= slices:
            raise UsageError(
                f"{cleaned}: a compute instance of {compute} slices does not fit into "
                f"{slices} of its GPU instance",
                f"Write 1c to {slices}c",
            )
        profile = MigProfile(
            slices,
            int(match["memory"]),
            None if compute == slices else compute,
            match["attributes"].lower(),
        )
        return cls(profile, mps, match["instance"] or "")

    def __str__(self) -> str:
        if self.mig is None:
            return str(self.mps) if self.mps is not None else NAIVE_TEXT
        name = f"{self.mig}#{self.instance}" if self.instance else str(self.mig)
        return f"{name}+{self.mps}" if self.mps is not None else name


def _mps(text: str) -> Mps:
    match = _MPS.fullmatch(text)
    assert match is not None
    if match[1] is None:
        return Mps()
    percentage = float(match[1])
    if not 0 < percentage <= 100:
        raise UsageError(
            f"{text}: expected a thread percentage above 0, at most 100",
            "Write MPS:40 for 40 % of the GPU's threads",
        )
    return Mps(percentage)
