"""Numbers that we measured say on which machine, when, and with which command.

Prose cannot be understood by a test. What this holds: outputs of radt that have results in them,
ratios and short times in README's sentences, and every section of docs/measurements.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASUREMENTS = "docs/measurements.md"
PAGES = [
    "README.md",
    "docs/tutorial.md",
    *(path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("experiments/*/README.md"))),
]

_DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
_MACHINE = re.compile(r"\b(CPU )?cores?\b|\b[AHBV]\d{2,3}\b|DGX")
_COMMAND = re.compile(
    r"(^|`)(\.venv/bin/)?(\$ )?(radt|make|python -m|python3? ) ?\S+", re.MULTILINE
)
_LINK = re.compile(r"\(([^)]*measurements\.md(#[^)]*)?)\)")
#: A result in a report that was pasted, or a time or ratio in a sentence.
_OUTPUT = re.compile(r"time/epoch|samples/s|finished in \d")
_NUMBER = re.compile(r"\b\d[\d,.]* ?(×|times\b|ms\b|µs\b)|microsecond|\b\d+\.\d+ s\b")
#: Numbers that are the literature's say whose they are.
_CITED = re.compile(r"[Tt]hesis|et al|paper|published|arXiv")


def sections(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a page below ``#`` or ``##``, with their titles."""
    for part in re.split(r"^(?=##? )", text, flags=re.MULTILINE):
        yield part.splitlines()[0] if part else "", part


def sentences(section: str) -> Iterator[str]:
    """Paragraphs and points of lists, without code, tables and what is quoted in backticks."""
    prose = re.sub(r"^```.*?^```", "", section, flags=re.MULTILINE | re.DOTALL)
    for part in re.split(r"\n\s*\n|^(?=[-*] )", prose, flags=re.MULTILINE):
        if not part.startswith("|"):
            yield re.sub(r"`[^`]*`", "", part)


def lacks(text: str) -> list[str]:
    """What a text with results does not say."""
    said = {"the date": _DATE, "the machine": _MACHINE, "the command": _COMMAND}
    return [what for what, pattern in said.items() if not pattern.search(text)]


@pytest.mark.parametrize("page", PAGES)
def test_results_say_machine_date_and_command(page: str) -> None:
    for title, text in sections((ROOT / page).read_text(encoding="utf-8")):
        blocks = re.findall(r"^```.*?^```", text, flags=re.MULTILINE | re.DOTALL)
        tables = re.findall(r"^\|.*\|$", text, flags=re.MULTILINE)
        if any(_OUTPUT.search(block) for block in blocks) or any(
            _OUTPUT.search(row) and _NUMBER.search(text) for row in tables
        ):
            assert lacks(text) == [], f"{page}, {title}"


def test_numbers_of_the_readme_have_an_origin() -> None:
    found = 0
    for title, text in sections((ROOT / "README.md").read_text(encoding="utf-8")):
        for sentence in sentences(text):
            if _NUMBER.search(sentence) and not _CITED.search(sentence):
                found += 1
                stated = _LINK.search(sentence) or (_DATE.search(sentence) and not lacks(text))
                assert stated, f"{title}: {sentence}"
    assert found


def test_each_section_of_measurements_has_an_origin() -> None:
    text = (ROOT / MEASUREMENTS).read_text(encoding="utf-8")
    measured = [part for title, part in sections(text) if title.startswith("## ") and "|" in part]
    assert measured
    for part in measured:
        assert lacks(part) == [], part.splitlines()[0]


def test_what_readme_refers_to_is_in_measurements() -> None:
    titles = re.findall(
        r"^## (.*)$", (ROOT / MEASUREMENTS).read_text(encoding="utf-8"), re.MULTILINE
    )
    anchors = {re.sub(r"[^a-z0-9 .-]", "", title.lower()).replace(" ", "-") for title in titles}
    for _, anchor in _LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        assert not anchor or anchor.removeprefix("#").replace(".", "") in {
            one.replace(".", "") for one in anchors
        }
