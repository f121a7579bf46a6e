"""Verdicts are given only where the numbers allow one, and lines fit their terminal."""

from __future__ import annotations

import pytest

from radt.cli.selftest_lines import closing_lines, finding_lines
from radt.selftest.results import Finding, Selftest, Unit, Verdict


def finding(**fields: object) -> Finding:
    return Finding(**({"key": "k", "subject": "s", "unit": Unit.FACTOR} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"value": 1.0, "bar": 1.02}, Verdict.HELD),
        ({"value": 1.02, "bar": 1.02}, Verdict.HELD),
        ({"value": 1.03, "bar": 1.02}, Verdict.MISSED),
        ({"value": 1.0}, Verdict.NOTED),
        ({"failure": "no such thing", "bar": 1.02}, Verdict.FAILED),
        ({"bar": 1.02}, Verdict.FAILED),
        # The interval decides, not the value.
        ({"value": 1.0, "bar": 1.02, "low": 0.98, "high": 1.015}, Verdict.HELD),
        ({"value": 1.0, "bar": 1.02, "low": 0.98, "high": 1.03}, Verdict.UNCLEAR),
        ({"value": 1.05, "bar": 1.02, "low": 1.01, "high": 1.09}, Verdict.UNCLEAR),
        ({"value": 1.05, "bar": 1.02, "low": 1.03, "high": 1.07}, Verdict.MISSED),
        # One pair has no interval, so that it proves nothing.
        ({"value": 1.0, "bar": 1.02, "is_compared": True}, Verdict.UNCLEAR),
        # While others keep the machine busy, what is missed may be theirs; what is held is held.
        ({"value": 1.03, "bar": 1.02, "is_upper_bound": True}, Verdict.UNCLEAR),
        ({"value": 1.01, "bar": 1.02, "is_upper_bound": True}, Verdict.HELD),
    ],
)
def test_verdict(fields: dict[str, object], verdict: Verdict) -> None:
    assert finding(**fields).verdict is verdict


@pytest.mark.parametrize(
    ("verdicts", "passed"),
    [
        ([{"value": 1.0, "bar": 1.02}, {"value": 1.0}], True),
        ([{"value": 1.0, "bar": 1.02, "is_compared": True}], True),
        ([{"value": 1.0, "bar": 1.02}, {"value": 2.0, "bar": 1.02}], False),
        ([{"value": 1.0, "bar": 1.02}, {"failure": "gone"}], False),
    ],
)
def test_only_what_is_certain_fails(verdicts: list[dict[str, object]], passed: bool) -> None:
    assert Selftest({}, {}, [finding(**fields) for fields in verdicts]).passed is passed


@pytest.mark.parametrize(
    ("fields", "value", "bar"),
    [
        ({"value": 4.2e-7, "unit": Unit.SECONDS, "bar": 1e-6}, "0.420 µs", "at most 1 µs"),
        ({"value": 0.3, "unit": Unit.SECONDS, "bar": 1.0}, "300 ms", "at most 1 s"),
        ({"value": 0.3, "unit": Unit.SECONDS, "bar": 0.02}, "300 ms", "at most 20 ms"),
        (
            {"value": 0.0146, "unit": Unit.RATIO, "bar": 0.02, "bar_of": "of one core"},
            "1.5 %",
            "at most 2 % of one core",
        ),
        ({"value": 0.0, "unit": Unit.RATIO, "bar": 0.1}, "0 %", "at most 10 %"),
        ({"value": 77e6, "unit": Unit.BYTES, "bar": 150e6}, "77.0 MB", "at most 150 MB"),
        ({"value": 1.004, "bar": 1.02}, "1.004×", "at most 1.02×"),
        ({"value": 1.004}, "1.004×", ""),
    ],
)
def test_texts(fields: dict[str, object], value: str, bar: str) -> None:
    assert (finding(**fields).value_text, finding(**fields).bar_text) == (value, bar)


def test_lines_fit_eighty_columns_and_lose_nothing() -> None:
    shown = [
        finding(
            subject="time of a run, CPU", value=1.0, bar=1.02, low=0.9, high=1.1, detail="x " * 60
        ),
        finding(subject="short", value=1.0, detail="beside it"),
        finding(subject="broken", failure="it does not work " * 9, remedy="do something " * 9),
        finding(subject="escape", failure="\x1b[31mred"),
    ]
    lines = [line.plain for one in shown for line in finding_lines(one, 80)]
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert ("x " * 60).strip() in text
    assert ("do something " * 9).strip() in text
    assert "cannot tell" in text
    assert "\x1b" not in text
    assert any("short" in line and "beside it" in line for line in lines)


def test_closing_counts_verdicts() -> None:
    found = Selftest(
        {},
        {},
        [
            finding(value=1.0, bar=1.02),
            finding(value=2.0, bar=1.02),
            finding(value=2.0, bar=1.02, is_compared=True),
        ],
        took_s=61.0,
    )
    text = "\n".join(line.plain for line in closing_lines(found, 80))
    assert "1 held, 1 missed, 1 cannot tell · 1:01" in text
    assert "would tell" in text
