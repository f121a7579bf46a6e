"""Numbers for people: three significant digits with their unit; and durations as people write them.

A duration is ``90``, ``90s``, ``10min`` or ``1h30min``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal

from radt.errors import UsageError

_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
NO_VALUE = "–"


def significant(value: float, digits: int = 3) -> str:
    """The value with that many significant digits, without an exponent in the usual range.

    >>> significant(0.41234), significant(12.345), significant(1234.5), significant(0.9997)
    ('0.412', '12.3', '1,234', '1.00')
    """
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    magnitude = math.floor(math.log10(abs(rounded)))
    if magnitude >= 9 or magnitude < -4:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def duration(seconds: float | None) -> str:
    """A length of time: ``2.4 µs``, ``412 ms``, ``21.4 s``, ``1:38``, ``2:05:09``.

    >>> duration(0.412), duration(21.44), duration(98), duration(7509), duration(2.35e-7)
    ('412 ms', '21.4 s', '1:38', '2:05:09', '0.235 µs')
    """
    if seconds is None or not math.isfinite(seconds):
        return NO_VALUE
    if 0 < seconds < 1e-3:
        return f"{significant(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{significant(seconds * 1000)} ms"
    if seconds < 60:
        return f"{significant(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def stopwatch(seconds: float) -> str:
    """A running time with a fixed width: ``00:18``, ``1:02:07``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def size(count_bytes: float | None) -> str:
    """A number of bytes in powers of 1000, as the makers of memory and disks count.

    >>> size(212_300_000), size(512)
    ('212 MB', '512 B')
    """
    if count_bytes is None or not math.isfinite(count_bytes):
        return NO_VALUE
    value, unit = float(count_bytes), 0
    while abs(value) >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        value /= 1000
        unit += 1
    return f"{significant(value) if unit else round(value)} {_BYTE_UNITS[unit]}"


def memory_text(count_bytes: int) -> str:
    """Return an amount of memory as `parse_memory_bytes` reads it, in the largest unit that fits.

    >>> memory_text(68719476736), memory_text(1572864)
    ('64 GB', '1536 KB')
    """
    power = 4
    while power > 1 and count_bytes % 1024**power:
        power -= 1
    return f"{count_bytes / 1024**power:.12g} {'_KMGT'[power]}B"


def percent(ratio: float | None) -> str:
    """A ratio as a percentage: ``64 %``.

    >>> percent(0.6412), percent(1.99), percent(0.0062)
    ('64 %', '199 %', '0.6 %')
    """
    if ratio is None or not math.isfinite(ratio):
        return NO_VALUE
    value = ratio * 100
    return f"{value:.1f} %" if 0 < abs(value) < 9.95 else f"{value:,.0f} %"


def factor(value: float | None) -> str:
    """A ratio of two quantities: ``2.83×``."""
    return NO_VALUE if value is None or not math.isfinite(value) else f"{significant(value)}×"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """``1 run``, ``6 runs``, ``12,480 runs``; ``nouns`` where an s does not make the plural."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def listed(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """``1a, 1b and 4 more``: the first ``most`` texts, and how many follow."""
    rest = len(texts) - most
    return separator.join(texts[:most]) + (f" and {rest:,} more" if rest > 0 else "")


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


_MEMORY = re.compile(r"(\d+(?:\.\d*)?)\s*([kmgt])(?:i?b)?", re.IGNORECASE)


def parse_memory_bytes(text: str) -> int:
    """Return an amount of memory in bytes; units are powers of 1024, as for schedulers.

    >>> parse_memory_bytes("64G"), parse_memory_bytes("1.5 MB")
    (68719476736, 1572864)

    Raises:
        UsageError: The text is not an amount of memory above 0.
    """
    match = _MEMORY.fullmatch(text.strip())
    count_bytes = 0
    if match is not None:
        power = "kmgt".index(match[2].lower()) + 1
        count_bytes = round(float(match[1]) * 1024**power)
    if not count_bytes:
        raise UsageError(
            f"{text.strip()!r} is not an amount of memory", "Write it with its unit: 64GB, 512MB"
        )
    return count_bytes


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
