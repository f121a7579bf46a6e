"""Tells somebody, by a command or a webhook, that a workload failed or an experiment ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class NoticeEvent(StrEnum):
    """What a notice is about."""

    FAILED = "failed"  # a workload, with runs that did not finish
    ENDED = "ended"  # the experiment, however it ended


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth telling. ``counts`` are numbers of runs by status; ``text`` is for people."""

    event: NoticeEvent
    experiment: str
    text: str
    counts: Mapping[str, int]
    elapsed_s: float
    host: str
    file: str


class Notifier:
    """Sends notices without ever delaying or failing the experiment.

    Args:
        target: A command line, or an http(s) address. Empty: nothing is sent.
        say: Told, once, why a notice could not be sent.

    Raises:
        UsageError: The target is neither.
    """

    def __init__(self, target: str, say: Callable[[str], None]) -> None:
        self._target = target
        self._say = say

    def send(self, notice: Notice) -> None:
        """Send it in the background."""

    def close(self) -> None:
        """Wait for what is being sent, at most `CLOSE_TIMEOUT_S`."""
