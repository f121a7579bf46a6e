"""``radt compare`` as it is called: its output at 80 columns, Markdown, JSON, its exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from radt.analysis.fail_if import check, parse
from radt.analysis.findings import DEFAULT_QUANTITIES, compare
from radt.analysis.operands import OperandFinder
from radt.analysis.window_spec import DEFAULT_WINDOW
from radt.cli.compare import command
from radt.errors import UsageError
from radt.render import comparison as rendering
from radt.render.comparison import comparison_document
from radt.render.markup import as_markdown
from radt.render.terminal import document_lines
from radt.store.locate import Places
from tests.comparison.planted import COMMIT_A, COMMIT_B, rounds, store_of
from tests.frontend.report_support import Planted, Study

CLOSE = (0.996, 1.004, 1.0, 1.002, 0.998)
WIDE = (1.0, 1.1, 0.9)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One is as it was, one faster, of one it cannot be told, one ran once; nobody writes."""
    store = store_of(tmp_path_factory.mktemp("compare"))
    tags = {"radt.gpus": "NVIDIA A100-SXM4-40GB"}
    for name, day, factor, commit in (("before", 0, 1.0, COMMIT_A), ("after", 1, 0.8, COMMIT_B)):
        study = Study(store, name)
        study.now_ns += day * 86_400 * 10**9
        rounds(
            study,
            {
                "solo": [2.0 * one for one in CLOSE],
                "three": [3.0 * one * factor for one in CLOSE],
                "wide": [4.0 * one for one in WIDE],
                "once": [5.0 * factor],
            },
            rows={"three": 3},
            tags=tags | {"radt.git.commit": commit},
            gpu={"gpu.memory.used": 6e9},
            watts=200.0,
        )
    return store


def call(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--home", str(store.parent)])


def said(store: Path, *arguments: str) -> str:
    done = call(store, *arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


def printed(store: Path, a: str, b: str, width: int = 80) -> str:
    """On a terminal of so many columns, without colour."""
    with OperandFinder(Places.of(store.parent), DEFAULT_WINDOW, store.parent) as finder:
        comparison = compare(finder.find(a), finder.find(b), DEFAULT_QUANTITIES)
    document = comparison_document(comparison, check(comparison, [parse("time_per_epoch > +5%")]))
    return "\n".join(line.plain for line in document_lines(document, width, wrap=True))


def test_a_terminal_of_80_columns(store: Path) -> None:
    text = printed(store, "before", "after")
    assert max(map(len, text.splitlines())) <= 80
    assert "  three: B is 1.25× faster (time per epoch 3.00 s → 2.40 s, 95 % CI 1.24–1.26×," in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "quantity A B B vs A 95 % CI n" in lines
    three = lines.index("three")
    assert lines[three + 1] == "time per epoch 3.00 s 2.40 s + 1.25× faster 1.24–1.26× 5"
    assert lines[three + 4] == "GPU memory peak 6.00 GB 6.00 GB = equal – 5"
    assert any(re.fullmatch(r"about [0-9]+ repeats would detect 5 %", line) for line in lines)
    assert "Window: all epochs after the first" in lines
    assert any(line.startswith("? time_per_epoch > +5%: inconclusive: once (") for line in lines)


def test_columns_are_straight(store: Path) -> None:
    """A sign stands below a sign, whatever the values' lengths."""
    signs = {
        match.start()
        for line in printed(store, "before", "after").splitlines()
        if (match := re.search(r"(?<=  )[-+=?≠] (?=\S)", line)) and not line.startswith("    ?")
    }
    assert len(signs) == 1


def test_kinds_of_runs_stand_one_below_the_other(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for name, factor in (("before", 1.0), ("after", 2.0)):
        Study(store, name).workload(
            "mix",
            [
                Planted("a", 2.0 * factor, name="small \x1b[1m", params={"size": "1"}),
                Planted("b", 6.0 * factor, name="large", params={"size": "9"}),
            ],
        )
    lines = [" ".join(one.split()) for one in printed(store, "before", "after").splitlines()]
    mix = lines.index("mix")
    assert [line[:12].rstrip() for line in lines[mix + 1 : mix + 8]] == [
        "makespan 23.",
        "mix, small \\",
        "time per epo",
        "samples/s 1,",
        "mix, large",
        "time per epo",
        "samples/s 1,",
    ]
    assert "\x1b" not in "".join(lines)


def test_a_pipe_gets_whole_lines(store: Path) -> None:
    text = said(store, "before/three", "after/three")
    assert "\x1b" not in text
    (line,) = [line for line in text.splitlines() if "B is 1.25× faster" in line]
    assert line.endswith("n = 5, unpaired)")


def test_many_workloads_are_cut_and_those_that_differ_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "MAX_WORKLOADS", 5)
    store = store_of(tmp_path)
    for name, day in (("before", 0), ("after", 1)):
        study = Study(store, name)
        study.now_ns += day * 86_400 * 10**9
        rounds(
            study,
            {
                f"w{number:02}": (1.0, 1.001) if (number, day) != (7, 1) else (2.0, 2.001)
                for number in range(9)
            },
        )
    text = printed(store, "before", "after")
    shown = re.findall(r"^  (w\d\d)$", text, re.MULTILINE)
    assert shown == ["w00", "w01", "w02", "w03", "w07"]
    assert "4 more workloads: --format json" in text


def test_json_is_exact_and_whole(store: Path) -> None:
    found: dict[str, Any] = json.loads(
        said(store, "before", "after", "--format", "json", "--fail-if", "time_per_epoch > +5%")
    )
    assert (found["format"], found["version"]) == ("radt-comparison", 1)
    assert (found["exit_code"], found["confidence"]) == (0, 0.95)
    assert [one["name"] for one in found["workloads"]] == ["once", "wide", "solo", "three"]
    three = {one["quantity"]: one for one in found["workloads"][3]["findings"]}
    assert list(three) == [one.value for one in DEFAULT_QUANTITIES]
    time = three["time_per_epoch"]
    assert time["a"]["repeats"] == pytest.approx([3.0 * one for one in CLOSE])
    assert time["effect"] == pytest.approx(0.8)
    assert time["interval"][0] < 0.8 < time["interval"][1]
    assert (time["unit"], time["scale"], time["method"]) == ("s", "ratio", "unpaired")
    assert (time["verdict"], time["holds"]) == ("better", True)
    once = found["workloads"][0]["findings"][0]
    assert (once["verdict"], once["interval"], once["p_value"]) == ("inconclusive", None, None)
    assert found["conditions"] == [
        {
            "condition": "time_per_epoch > +5%",
            "quantity": "time_per_epoch",
            "outcome": "inconclusive",
            "met_by": [],
            "inconclusive": ["once", "wide"],
        }
    ]
    assert found["workloads"][1]["differences"] == [
        {"what": "commit", "a": COMMIT_A[:7], "b": COMMIT_B[:7], "warning": False}
    ]


def test_markdown_is_a_table_with_names_that_are_no_markup(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    label = "a|b *c* <d>\x1b[31m\n`e`"
    for name in ("before", "after"):
        rounds(Study(store, name), {label: [2.0, 2.1]})
    with OperandFinder(Places.of(store.parent), DEFAULT_WINDOW, store.parent) as finder:
        text = as_markdown(
            comparison_document(compare(finder.find("before"), finder.find("after")))
        )
    rows = [line for line in text.splitlines() if line.startswith("| a")]
    assert len(rows) == 3  # of time, rate and makespan
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 8 for row in rows)
    assert r"a\|b \*c\* \<d\>" in rows[0]
    assert "\n" not in rows[0]
    assert "\x1b" not in printed(store, "before", "after")
    assert "\x1b" not in text


def test_quantities_that_are_asked_for(store: Path) -> None:
    found = json.loads(
        said(
            *(store, "before/solo", "after/solo", "--format", "json"),
            *("--quantity", "cpu", "--quantity", "sm_active"),
            *("--fail-if", "energy_per_epoch > +5%"),
        )
    )
    assert [one["quantity"] for one in found["workloads"][0]["findings"]] == [
        "cpu",
        "energy_per_epoch",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quantity", "cpus"], "Unknown quantity 'cpus'. Did you mean cpu"),
        (["--quantity", "xyz"], "Unknown quantity 'xyz'. Quantities: time_per_epoch"),
        (["--confidence", "95"], "between 0.5 and 0.9999, got 95"),
        (["--confidence", "nan"], "between 0.5 and 0.9999, got nan"),
        (["--window", "epoch:x"], "'epoch:x' names no epochs"),
        (["--fail-if", "time > 5"], "Unknown quantity 'time'"),
    ],
)
def test_what_cannot_be_asked_for(store: Path, arguments: list[str], message: str) -> None:
    done = call(store, "before", "after", *arguments)
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)


def radt(store: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The real command."""
    return subprocess.run(
        [sys.executable, "-m", "radt", "compare", *arguments, "--home", str(store.parent)],
        capture_output=True,
        encoding="utf-8",
        env=os.environ | variables,
        cwd=store.parent,
        check=False,
    )


def test_exit_codes(store: Path) -> None:
    conditions = "--fail-if", "samples_per_s < -5%", "--fail-if", "time_per_epoch < -10%"
    done = radt(store, "before/three", "after/three", *conditions)
    assert done.returncode == 4, done.stderr
    assert "✘ time_per_epoch < -10%: met by three (3.00 s → 2.40 s, 1.25× faster" in done.stdout
    assert "✔ samples_per_s < -5%: not met (1 comparison)" in done.stdout
    slower = "--fail-if", "time_per_epoch > +5%"
    assert call(store, "before/three", "after/three", *slower).exit_code == 0
    wrong = radt(store, "before", "afters")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.splitlines()[-1] == "  Did you mean 'after'?"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["before/once", "after/once", "--fail-if-unknown"], 5),
        (["before/once", "after/once", "--fail-if-unknown", "--strict"], 0),
        (["after/once", "before/once", "--strict"], 4),
        (["after/once", "before/once"], 0),
        (["after/three", "before/three", "--fail-if-unknown"], 4),
        (["before", "after", "--fail-if-unknown"], 5),
        (["before", "after"], 0),
    ],
)
def test_what_the_command_returns(store: Path, arguments: list[str], code: int) -> None:
    found = command.main(
        [*arguments, "--fail-if", "time_per_epoch > +5%", "--home", str(store.parent)],
        standalone_mode=False,
    )
    assert found == code


def test_a_terminal_without_unicode_or_colour(store: Path) -> None:
    done = radt(
        *(store, "before/three", "after/three"),
        LC_ALL="C",
        PYTHONIOENCODING="ascii",
        NO_COLOR="1",
        PYTHONUTF8="0",
    )
    assert done.returncode == 0, done.stderr
    assert "+ 1.25? faster" in done.stdout
    assert "\x1b" not in done.stdout
