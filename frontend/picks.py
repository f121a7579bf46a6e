"""What the user picked to look at: experiments, workloads, runs, in any mix.

Written as in addresses: ``EXPERIMENT`` for all of it, ``EXPERIMENT:wID,rID`` for workloads and
runs of it, ids by their first 12 characters, names percent-encoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self
from urllib.parse import quote, unquote

ID_DIGITS = 12
#: More picks than these are no selection but a mistake, or an attack.
MAX_PICKS = 500
_MAX_NAME = 500


class PickKind(StrEnum):
    """What a pick stands for."""

    EXPERIMENT = "e"
    WORKLOAD = "w"
    RUN = "r"


@dataclass(frozen=True, slots=True, order=True)
class Pick:
    """One thing that was picked. ``id`` is that of the workload or run, or the beginning of it."""

    experiment: str
    kind: PickKind = PickKind.EXPERIMENT
    id: str = ""

    @classmethod
    def workload(cls, experiment: str, workload_id: str) -> Self:
        """A whole workload, drawn as one where several are compared."""
        return cls(experiment, PickKind.WORKLOAD, workload_id[:ID_DIGITS])

    @classmethod
    def run(cls, experiment: str, run_id: str) -> Self:
        """A single run."""
        return cls(experiment, PickKind.RUN, run_id[:ID_DIGITS])

    @classmethod
    def parse(cls, text: str) -> Pick | None:
        """From ``str()`` of one; None for anything else."""
        return next(iter(parse_picks([text])), None)

    def __str__(self) -> str:
        name = quote(self.experiment, safe="")
        return name if self.kind is PickKind.EXPERIMENT else f"{name}:{self.kind}{self.id}"


def parse_picks(texts: Iterable[str]) -> tuple[Pick, ...]:
    """Read picks, each once, in order; what makes no sense is left out."""
    found: dict[Pick, None] = {}
    for text in texts:
        name, colon, items = text.partition(":")
        experiment = unquote(name)
        if not experiment or len(experiment) > _MAX_NAME:
            continue
        if not colon:
            found[Pick(experiment)] = None
        for item in items.split(",") if colon else ():
            if item[1:] and item[0] in (PickKind.WORKLOAD, PickKind.RUN):
                found[Pick(experiment, PickKind(item[0]), item[1 : 1 + ID_DIGITS])] = None
        if len(found) >= MAX_PICKS:
            break
    return tuple(found)[:MAX_PICKS]


def format_picks(picks: Iterable[Pick]) -> list[str]:
    """As few texts as keep the order: neighbours of one experiment share its name."""
    texts: list[str] = []
    last: str | None = None
    for pick in picks:
        if pick.kind is PickKind.EXPERIMENT:
            texts.append(str(pick))
            last = None
        elif pick.experiment == last:
            texts[-1] += f",{pick.kind}{pick.id}"
        else:
            texts.append(str(pick))
            last = pick.experiment
    return texts
