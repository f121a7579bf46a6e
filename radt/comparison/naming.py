"""What may be meant by ``study/three@gpu-01``: names may hold ``/`` and ``@`` themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

#: Before an option of what ran where or at which commit; ``HEAD@{1}`` is one name of git's.
_AT = re.compile(r"@(?!\{)")


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read it.

    Attributes:
        experiment: Its name.
        label: The workload's; None for the whole experiment.
        narrowed: Machines or commits.
    """

    experiment: str
    label: str | None = None
    narrowed: tuple[str, ...] = ()


def experiments_in(given: str, names: Iterable[str]) -> list[str]:
    """The experiments that a text may begin with, the longest name first."""
    return sorted((name for name in names if _begins(given, name, "/@")), key=len, reverse=True)


def readings(given: str, experiment: str, labels: Iterable[str]) -> Iterator[Reading]:
    """The ways to read a text that begins with an experiment's name, the likeliest first.

    Args:
        given: The text.
        experiment: The experiment's name.
        labels: Those of its workloads.
    """
    rest = given[len(experiment) :]
    if not rest.startswith("/"):
        yield Reading(experiment, None, _narrowed(rest))
        return
    rest = rest[1:]
    for label in sorted((one for one in labels if _begins(rest, one, "@")), key=len, reverse=True):
        yield Reading(experiment, label, _narrowed(rest[len(label) :]))


def _begins(text: str, name: str, separators: str) -> bool:
    rest = text[len(name) :]
    return bool(name) and text.startswith(name) and (not rest or rest[0] in separators)


def _narrowed(rest: str) -> tuple[str, ...]:
    parts: Sequence[str] = _AT.split(rest)[1:]
    return tuple(part for part in parts if part)
