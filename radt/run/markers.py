"""Epochs and spans of a script, as context managers."""

from __future__ import annotations

import os
from contextlib import ContextDecorator
from typing import Protocol, Self

from radt.journal.format import RecordKind


class Marking(Protocol):
    """The part of a journal that markers need."""

    def begin(self, kind: RecordKind, name: str, step: int | None = None) -> int: ...
    def end(self, kind: RecordKind, name: str, step: int | None, token: int) -> None: ...


class Marker:
    """Something that has begun, and ends once, in the process that began it."""

    def __init__(
        self, journal: Marking, begin: RecordKind, end: RecordKind, name: str, step: int | None
    ) -> None:
        self._journal = journal
        self._end_kind = end
        self._name = name
        self._step = step
        self._pid = os.getpid()
        self._token: int | None = journal.begin(begin, name, step)

    @classmethod
    def span(cls, journal: Marking, name: str) -> Marker:
        return cls(journal, RecordKind.SPAN_BEGIN, RecordKind.SPAN_END, name, None)

    def end(self) -> None:
        """Now; harmless if it has ended."""
        token, self._token = self._token, None
        if token is not None and os.getpid() == self._pid:
            self._before_end()
            self._journal.end(self._end_kind, self._name, self._step, token)
            self._after_end()

    def _before_end(self) -> None:
        """What is still a part of it."""

    def _after_end(self) -> None:
        """What is no part of it any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


class Span(ContextDecorator):
    """``with run.span("validate"):``, or ``@run.span("validate")`` before a function.

    Spans may overlap, and one function may run in several threads. After use as a decorator each
    call is a span of its own.
    """

    def __init__(self, journal: Marking, name: str) -> None:
        self._journal = journal
        self._name = name
        self._marker: Marker | None = None

    def _recreate_cm(self) -> Span:
        return Span(self._journal, self._name)

    def __enter__(self) -> Self:
        self._marker = Marker.span(self._journal, self._name)
        return self

    def __exit__(self, *error: object) -> None:
        if self._marker is not None:
            self._marker.end()
