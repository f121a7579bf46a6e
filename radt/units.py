"""Format values with units (three significant digits), and parse and format durations.

A duration is ``90``, ``90s``, ``10min`` or ``1h30min``. A missing value is ``–``. A value that is
not finite, such as the loss of a run that diverged, is not missing: ``NaN``, ``inf`` or ``-inf``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeGuard

from radt.errors import UsageError

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
#: UCUM units that take a prefix, and their usual spelling.
_SCALED = {"By": "B", "By/s": "B/s"} | {
    unit: unit for unit in ("W", "J", "Hz", "V", "A", "g", "g/h")
}
_AS_IS = {"Cel": "°C", "1/s": "/s", "x": "×"}
NO_VALUE = "–"


def not_finite(value: float) -> str:
    """Format a value that is not finite: ``NaN``, ``inf`` or ``-inf``."""
    return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _no_number(value: float | None) -> str:
    """Format a value that is missing or not finite."""
    return NO_VALUE if value is None else not_finite(value)


def in_json(value: Any) -> Any:
    """Return a value, or all values of a document, ready for JSON: null for missing values.

    JSON has no numbers for NaN and infinity, so they become the texts ``NaN``, ``Infinity`` and
    ``-Infinity``, as in the JSON of protocol buffers.

    >>> in_json({"loss": math.inf, "lr": 0.5, "accuracy": None})
    {'loss': 'Infinity', 'lr': 0.5, 'accuracy': None}
    """
    match value:
        case float() if not math.isfinite(value):
            return not_finite(value).replace("inf", "Infinity")
        case Mapping():
            return {key: in_json(item) for key, item in value.items()}
        case list() | tuple():
            return [in_json(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class Scale:
    """Display scale: a stored value times ``factor`` is shown in the unit ``label``."""

    factor: float
    label: str


def scale_of(unit: str, largest: float) -> Scale:
    """Return the prefix that suits a magnitude; ratios become per cent.

    Args:
        unit: UCUM; ``x`` for a factor.
        largest: The largest magnitude among the values.

    >>> scale_of("By", 2.1e9), scale_of("1", 0.5)
    (Scale(factor=1e-09, label='GB'), Scale(factor=100.0, label='%'))
    """
    if unit == "1":
        return Scale(100.0, "%")
    if unit == "s":
        size, prefix = next((p for p in _SMALL_PREFIXES if largest >= p[0]), _SMALL_PREFIXES[0])
        return Scale(1 / size, f"{prefix}s")
    symbol = _SCALED.get(unit)
    if symbol is None:
        return Scale(1.0, _AS_IS.get(unit, unit.replace("{", "").replace("}", "")))
    for size, prefix in _PREFIXES:
        if math.inf > largest >= size:
            # Memory is sold in powers of 1000 with a capital K; the SI prefix is k.
            is_bytes = symbol.startswith("B") and prefix == "k"
            return Scale(1 / size, ("K" if is_bytes else prefix) + symbol)
    return Scale(1.0, symbol)


def in_unit(value: float | None, unit: str) -> str:
    """Format a value with its unit (UCUM; ``x`` for a factor) and three digits, as `significant`.

    >>> in_unit(0.412, "s"), in_unit(2.1e9, "By/s"), in_unit(1200, "J"), in_unit(None, "W")
    ('412 ms', '2.10 GB/s', '1,200 J', '–')
    """
    if not _is_number(value):
        return _no_number(value)
    if unit == "s":
        return duration(value)
    if unit == "1":
        return percent(value)
    if unit == "x":
        return factor(value)
    if unit.startswith("By"):
        return size(value) + unit.removeprefix("By")
    return f"{significant(value)} {scale_of(unit, 0.0).label}".rstrip()


def significant(value: float, digits: int = 3) -> str:
    """Format a value with ``digits`` significant digits, without an exponent in the usual range.

    >>> significant(0.41234), significant(12.345), significant(1234.5), significant(0.9997)
    ('0.412', '12.3', '1,234', '1.00')
    """
    if not math.isfinite(value):
        return not_finite(value)
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    magnitude = math.floor(math.log10(abs(rounded)))
    if magnitude >= 9 or magnitude < -4:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def duration(seconds: float | None) -> str:
    """Format a duration: ``2.4 µs``, ``412 ms``, ``21.4 s``, ``1:38``, ``2:05:09``.

    >>> duration(0.412), duration(21.44), duration(98), duration(7509), duration(2.35e-7)
    ('412 ms', '21.4 s', '1:38', '2:05:09', '0.235 µs')
    """
    if not _is_number(seconds):
        return _no_number(seconds)
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
    """Format an elapsed time with a fixed width: ``00:18``, ``1:02:07``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def size(count_bytes: float | None) -> str:
    """Format a number of bytes in powers of 1000, as makers of memory and disks count.

    >>> size(212_300_000), size(512)
    ('212 MB', '512 B')
    """
    if not _is_number(count_bytes):
        return _no_number(count_bytes)
    if abs(count_bytes) < 999.5:
        return f"{round(count_bytes)} B"
    # A value that rounds up to 1000 takes the next prefix.
    scale = scale_of("By", abs(count_bytes) * 1000 / 999.5)
    return f"{significant(count_bytes * scale.factor)} {scale.label}"


def memory_text(count_bytes: int) -> str:
    """Format an amount of memory for `parse_memory_bytes`, in the largest unit that divides it.

    >>> memory_text(68719476736), memory_text(1572864)
    ('64 GB', '1536 KB')
    """
    power = 4
    while power > 1 and count_bytes % 1024**power:
        power -= 1
    return f"{count_bytes / 1024**power:.12g} {'_KMGT'[power]}B"


def percent(ratio: float | None) -> str:
    """Format a ratio as a percentage: ``64 %``.

    >>> percent(0.6412), percent(1.99), percent(0.0062)
    ('64 %', '199 %', '0.6 %')
    """
    if not _is_number(ratio):
        return _no_number(ratio)
    value = ratio * 100
    return f"{value:.1f} %" if 0 < abs(value) < 9.95 else f"{value:,.0f} %"


def factor(value: float | None) -> str:
    """Format the ratio of two quantities: ``2.83×``."""
    return f"{significant(value)}×" if _is_number(value) else _no_number(value)


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Format a count: ``1 run``, ``12,480 runs``. ``nouns`` is the plural if it is not noun + s."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def joined(texts: Iterable[str]) -> str:
    """Return ``a, b and c``."""
    words = list(texts)
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def ranges_text(numbers: Iterable[int], separator: str = "+") -> str:
    """Write sorted numbers, and ranges of them, in one text.

    >>> ranges_text([0, 1, 2, 3, 6]), ranges_text([0, 1, 6], separator=",")
    ('0-3+6', '0-1,6')
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return separator.join(
        str(first) if first == last else f"{first}-{last}" for first, last in ranges
    )


def listed(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first ``most`` texts and count the rest: ``1a, 1b and 4 more``."""
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
    """Parse a duration into seconds. No unit means seconds; parts add up.

    >>> parse_duration_s("90"), parse_duration_s("1.5 h"), parse_duration_s("1h30min")
    (90.0, 5400.0, 5400.0)

    Raises:
        UsageError: The text is not a duration.
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


_MEMORY = re.compile(r"(\d+(?:\.\d*)?(?:e\d{1,2})?)\s*(?:([kmgt])(?:(i?)b)?|b)", re.IGNORECASE)


def parse_memory_bytes(text: str, kilo: int = 1024) -> int:
    """Parse an amount of memory into bytes; units are powers of 1024, as schedulers use them.

    >>> parse_memory_bytes("64G"), parse_memory_bytes("1.5 MB"), parse_memory_bytes("512B")
    (68719476736, 1572864, 512)
    >>> parse_memory_bytes("2GB", kilo=1000), parse_memory_bytes("2GiB", kilo=1000)
    (2000000000, 2147483648)

    Args:
        text: A number with a unit.
        kilo: The size of a KB; a KiB always has 1024 bytes.

    Raises:
        UsageError: The text is not an amount of memory above 0.
    """
    match = _MEMORY.fullmatch(text.strip())
    count_bytes = 0
    if match is not None:
        prefix, binary = match[2] or "", match[3]
        power = "kmgt".index(prefix.lower()) + 1 if prefix else 0
        count_bytes = round(float(match[1]) * (1024 if binary else kilo) ** power)
    if not count_bytes:
        raise UsageError(
            f"{text.strip()!r} is not an amount of memory",
            "Write it with its unit: 64GB, 512MiB, or a number of bytes as 1000000B",
        )
    return count_bytes


def seconds_text(seconds: float) -> str:
    """Format seconds as a decimal number that `parse_duration_s` reads back exactly.

    >>> seconds_text(1209600), seconds_text(0.5), seconds_text(1e-7)
    ('1209600', '0.5', '0.0000001')
    """
    return f"{Decimal(repr(float(seconds))):f}".removesuffix(".0")


def duration_text(seconds: float) -> str:
    """Format a duration for `parse_duration_s`, in the largest units that fit.

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
        f"{text.strip()!r} is not a length of time", "Write seconds, or such as 90s, 10min, 1h30min"
    )
