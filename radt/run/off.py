"""Stand-ins for the journal and for mlflow's results where nothing is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

from radt.journal.format import EventKind, RecordKind
from radt.journal.writer import Number


class NullJournal:
    """The interface of `radt.journal.writer.JournalWriter` without a journal.

    Args:
        complain: Called with each value that is dropped.
    """

    def __init__(self, complain: Callable[[], None] | None = None) -> None:
        self._complain = complain

    def scalar(self, name: str, value: Number, step: object = None) -> None:  # noqa: ARG002
        self._lose()

    def sample(self, name: str, value: float, step: int | None = None) -> None:  # noqa: ARG002
        self._lose()

    def begin(self, kind: RecordKind, name: str, step: int | None = None) -> int:  # noqa: ARG002
        self._lose()
        return 0

    def end(self, kind: RecordKind, name: str, step: int | None, token: int) -> None:
        pass

    def say(self, kind: EventKind, **fields: Any) -> None:  # noqa: ARG002
        self._lose()

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _lose(self) -> None:
        if self._complain is not None:
            self._complain()


class Nothing:
    """An object on which every call, attribute, ``with`` and loop works and has no effect.

    As a decorator without arguments, it returns the function unchanged.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return self

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<nothing: radt is not recording>"


NOTHING = Nothing()
