"""Read an operand such as ``study/three@gpu-01``: names may hold ``/`` and ``@`` themselves."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Before an option of what ran where or at which commit; ``HEAD@{1}`` is one name of git's.
_AT = re.compile(r"@(?!\{)")


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read an operand.

    Attributes:
        experiment: Its name.
        label: The workload's label; None for the whole experiment.
        narrowed: Names of machines or commits.
    """

    experiment: str
    label: str | None = None
    narrowed: tuple[str, ...] = ()


def experiments_in(text: str, names: Iterable[str]) -> list[str]:
    """Return the experiments that a text may begin with, the longest name first."""
    return sorted((name for name in names if _begins(text, name, "/@")), key=len, reverse=True)


def readings(text: str, experiment: str, labels: Iterable[str]) -> Iterator[Reading]:
    """Yield the ways to read a text that begins with an experiment's name, the likeliest first.

    Args:
        text: The text.
        experiment: The experiment's name.
        labels: The labels of its workloads.
    """
    rest = text[len(experiment) :]
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


_TIMEOUT_S = 10.0
#: Characters of a commit in messages.
SHORT_COMMIT = 7


def resolve_commit(name: str, folder: Path) -> str | None:
    """Return the full id of a commit (``HEAD~1``, a branch, a tag) in the repository of a folder.

    None without a repository, such a commit, or git.
    """
    if name.startswith("-"):  # git would read an option
        return None
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    commit = answer.stdout.decode(errors="replace").strip()
    return commit if answer.returncode == 0 and commit else None
