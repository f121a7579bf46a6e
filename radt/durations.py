"""Lengths of time as people write them: ``90``, ``90s``, ``10min``, ``1h30min``."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from radt.errors import UsageError

_UNITS_S = {
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
_PLAIN = re.compile(_NUMBER)
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*")


def parse_duration_s(text: str) -> float:
    """Seconds; a number without a unit is seconds, units may follow each other.

    >>> parse_duration_s("90"), parse_duration_s("1.5 h"), parse_duration_s("1h30min")
    (90.0, 5400.0, 5400.0)

    Raises:
        UsageError: It is no length of time.
    """
    given = text.strip().lower()
    if _PLAIN.fullmatch(given):
        seconds = float(given)
    else:
        seconds, position = 0.0, 0
        while position < len(given):
            part = _PART.match(given, position)
            if part is None or part[2] not in _UNITS_S:
                raise _unknown(text)
            seconds += float(part[1]) * _UNITS_S[part[2]]
            position = part.end()
        if not given:
            raise _unknown(text)
    if not math.isfinite(seconds):
        raise _unknown(text)
    return seconds


def seconds_text(seconds: float) -> str:
    """Write seconds as a decimal number, exactly as `parse_duration_s` reads it back.

    >>> seconds_text(1209600), seconds_text(0.5), seconds_text(1e-7)
    ('1209600', '0.5', '0.0000001')
    """
    return f"{Decimal(repr(float(seconds))):f}".removesuffix(".0")


def duration_text(seconds: float) -> str:
    """The length of time as `parse_duration_s` reads it, in the largest units that fit.

    >>> duration_text(90), duration_text(5400), duration_text(0.5), duration_text(0)
    ('1 min 30 s', '1 h 30 min', '0.5 s', '0 s')
    """
    parts = []
    for unit in ("d", "h", "min"):
        count, seconds = divmod(seconds, _UNITS_S[unit])
        if count:
            parts.append(f"{count:.0f} {unit}")
    seconds = round(seconds, 6)
    if seconds or not parts:
        parts.append(f"{seconds_text(seconds)} s")
    return " ".join(parts)


def _unknown(text: str) -> UsageError:
    return UsageError(
        f"{text.strip()!r} is no length of time", "Write seconds, or such as 90s, 10min, 1h30min"
    )
