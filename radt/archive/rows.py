"""Rows of a store as the objects of ``run.json``, and back, where they are checked.

An archive may come from anybody. What is read from it becomes names of folders and rows of a
store, so that nothing but what `radt` itself would write is let through.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from radt.masking import masked
from radt.store.tables import Table

RecordT = TypeVar("RecordT")

#: Runs have folders of their name.
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_IDS = ("run_id", "workload_id")
_LARGEST = 2**63


def without_passwords(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "tracking_uri": masked(str(row["tracking_uri"]))}


def without_run(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without the run's id, which would be in each of thousands of lines."""
    return {name: value for name, value in row.items() if name != "run_id"}


def record_of(table: Table[RecordT], data: Mapping[str, Any]) -> RecordT:
    """A record of what is known of it: older archives have fewer fields, newer ones more.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: It is none.
    """
    decoders: Mapping[str, Callable[[Any], Any]] = table.decoders
    return table.record(
        **{
            name: decoders[name](data[name])
            if name in decoders
            else _checked(name, data[name], hint)
            for name, hint in _hints(table.record).items()
            if name in data
        }
    )


def texts_of(data: Mapping[str, Any]) -> dict[str, str]:
    """Parameters or tags."""
    return {_text(str(key)): _text(str(value)) for key, value in data.items()}


@cache
def _hints(record: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(record)


def _checked(name: str, value: Any, hint: Any) -> Any:
    kinds = typing.get_args(hint) or (hint,)
    if isinstance(value, bool) or not (
        isinstance(value, kinds) or (float in kinds and isinstance(value, int))
    ):
        raise TypeError(f"{name} cannot be {value!r:.100}")
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise ValueError(f"{name} cannot be {value!r:.100}")
    if isinstance(value, str):
        _text(value)
        if name in _IDS and not _ID.fullmatch(value):
            raise ValueError(f"{name} cannot be {value!r:.100}")
    return value


def _text(value: str) -> str:
    value.encode()  # half of a pair of surrogates is no text: UnicodeEncodeError is a ValueError
    return value
