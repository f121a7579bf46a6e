"""What the two ways to DCGM's host engine have in common: watches of one card each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from radt.errors import ListenerError
from radt.listeners.dcgm_fields import Refused
from radt.model import MissingReason

#: DCGM takes no value of the performance counters more often.
MIN_INTERVAL_S = 0.1

#: A value's place: GPU instance (None for the card itself) and field.
Key = tuple[int | None, int]


class HostengineError(ListenerError):
    """The host engine does not do what it is asked for; ``status`` is DCGM's code."""

    def __init__(self, message: str, status: int, remedy: str | None = None) -> None:
        super().__init__(message, remedy)
        self.status = status


@dataclass(frozen=True, slots=True)
class Taken:
    """A value and when it was taken (monotonic); None where it is blank and DCGM says no reason."""

    value: float | MissingReason | None
    at_ns: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a watch has now.

    ``trouble`` says why there is nothing new at the moment; it is empty while all is well.
    ``unknown`` are GPU instances that DCGM did not know when the watch began: it notices new ones
    after some seconds.
    """

    values: Mapping[Key, Taken] = field(default_factory=dict)
    refused: Mapping[int, Refused] = field(default_factory=dict)
    trouble: str = ""
    unknown: frozenset[int] = frozenset()


class Watch(ABC):
    """Fields of one card and of GPU instances on it, read by the host engine at an interval."""

    @abstractmethod
    def read(self) -> Snapshot:
        """The newest values. Does not wait for new ones."""

    @abstractmethod
    def close(self) -> None:
        """Watch no longer."""


class Engine(ABC):
    """A running host engine."""

    @abstractmethod
    def watch(self, uuid: str, instances: frozenset[int], fields: Sequence[int]) -> Watch:
        """Start to watch a card (by UUID) and its GPU instances (by NVML's ids)."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything, watches included."""
