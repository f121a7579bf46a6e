"""Runs that wait for data: what sharing and reusing loaded data can bring at most."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from radt.analysis.advice_choice import Rule
from radt.analysis.advice_waiting import Waiting, echo_bounds, sharing_bound
from radt.analysis.quantities import Quantity
from radt.analysis.report import read_report
from radt.cli.advise import command
from radt.render.advice import advice_document
from radt.render.terminal import document_lines
from tests.advice.planting import GB, Lab, Run
from tests.support.bench import Bench, bench_in

#: Seconds of one batch, and of loading with all CPUs.
DURATIONS_S = st.floats(0.001, 10)
#: Numbers of runs, of uses of a sample, and of CPUs.
COUNTS = st.integers(1, 8)
#: Bounds are compared as floating-point numbers.
ROUNDING = 1 + 1e-9


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "home")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_in(tmp_path, columns=80, with_mlflow=False) as made:
        yield made


def waiting(lab: Lab, subject: str) -> list[Waiting]:
    return [one for one in lab.advice().waiting if one.subject == subject]


@given(DURATIONS_S, DURATIONS_S, COUNTS)
def test_no_echoing_run_is_faster_than_its_bounds(load_s: float, train_s: float, uses: int) -> None:
    in_turn_s, beside_s = load_s + train_s, max(load_s, train_s)
    gain = in_turn_s / (load_s / uses + train_s)
    assert gain <= echo_bounds(load_s / in_turn_s, uses).low * ROUNDING
    gain = beside_s / max(load_s / uses, train_s)
    assert gain <= echo_bounds(1 - train_s / beside_s, uses).high * ROUNDING


@given(DURATIONS_S, DURATIONS_S, COUNTS, COUNTS)
def test_no_run_with_a_shared_loader_is_faster_than_its_bound(
    load_s: float, train_s: float, runs: int, cpus: int
) -> None:
    """Loaders compete for CPUs, GPUs train; one loader does the same work once for all."""
    own_s, shared_s = load_s * max(1.0, runs / cpus), load_s * max(1 / runs, 1 / cpus)
    before_s = own_s + train_s
    assert before_s / (shared_s + train_s) <= sharing_bound(own_s / before_s, runs) * ROUNDING
    before_s = max(own_s, train_s)
    gain = before_s / max(shared_s, train_s)
    assert gain <= sharing_bound(1 - train_s / before_s, runs) * ROUNDING


def test_waits_measured_together_bound_what_one_loader_brings(lab: Lab) -> None:
    run = Run("net", data_wait=0.3, epoch_s=4.0)
    lab.alone(run)
    lab.copies(3, replace(run, epoch_s=5.0, data_wait=0.44), "three")
    (echo,) = waiting(lab, "net")
    assert (echo.share, echo.is_alone) == (pytest.approx(0.3), True)
    assert echo.reason.rule is Rule.ECHO_DATA
    assert "1.18× to 1.43× with 2 uses" in echo.reason.numbers
    (three,) = waiting(lab, "3 × net")
    assert (three.share, three.is_alone) == (pytest.approx(0.44), False)
    assert three.reason.rule is Rule.SHARE_LOADER
    assert three.at_most == pytest.approx(1 / 0.56)
    lab.copies(3, replace(run, epoch_s=12.0, data_wait=0.9), "later")
    (three,) = waiting(lab, "3 × net")
    assert three.at_most == 3.0


def test_waits_that_only_loaders_side_by_side_cause_count(lab: Lab) -> None:
    run = Run("net", data_wait=0.05)
    lab.alone(run)
    lab.copies(2, replace(run, epoch_s=6.0, data_wait=0.4), "two")
    assert not waiting(lab, "net")
    (two,) = waiting(lab, "2 × net")
    assert two.at_most == pytest.approx(1 / 0.6)


def test_of_a_recommendation_that_did_not_run_the_slowdown_may_all_be_loading(lab: Lab) -> None:
    lab.alone(Run("net", sm=0.4, kernel=0.6, data_wait=0.2))
    best = next(one.best for one in lab.advice().recommendations)
    assert best is not None
    assert best.slowdown is not None
    (found,) = waiting(lab, best.candidate.models_text)
    assert (found.share, found.is_alone) == (pytest.approx(0.2), True)
    assert found.at_most == pytest.approx(min(best.candidate.degree, best.slowdown / 0.8))


def test_on_cpus_loading_also_slows_down_training(lab: Lab) -> None:
    run = Run("net", devices="cpu", cores=8.0, memory=1 * GB, data_wait=0.5)
    lab.alone(run)
    lab.copies(4, replace(run, epoch_s=6.0, data_wait=0.5), "four")
    (four,) = waiting(lab, "4 × net")
    # It takes 1.5 times as long as alone, and half of that time was training.
    assert four.at_most == pytest.approx(1.5 / 0.5)


def test_runs_that_hardly_wait_or_mark_no_batches_are_not_mentioned(lab: Lab) -> None:
    lab.alone(Run("quick", data_wait=0.09))
    lab.alone(Run("unmarked"))
    lab.alone(Run("in seconds", data_wait=3.0))
    lab.copies(2, Run("unmarked", epoch_s=5.0))
    lab.copies(2, Run("in seconds", epoch_s=5.0, data_wait=4.0))
    assert lab.advice().waiting == ()
    lab.alone(Run("slow", data_wait=0.5))
    assert waiting(lab, "slow")
    # Only one of the two reads batches: there is nobody to share its loader with.
    lab.together("both", [Run("slow", data_wait=0.5), Run("unmarked")])
    assert not waiting(lab, "slow + unmarked") + waiting(lab, "unmarked + slow")


def test_in_a_mix_the_one_that_waits_is_named(lab: Lab) -> None:
    slow, quick = Run("slow", data_wait=0.5), Run("quick", data_wait=0.0)
    lab.alone(slow)
    lab.alone(quick)
    lab.together("both", [slow, quick])
    (both,) = waiting(lab, "slow + quick") + waiting(lab, "quick + slow")
    assert (both.model, both.at_most) == ("slow", pytest.approx(2.0))


def test_the_section_fits_into_80_columns_and_names_the_pages(lab: Lab) -> None:
    for number in range(14):
        run = Run(f"efficientnet-v2-s-{number}", data_wait=0.3 + number / 50)
        lab.alone(run)
        lab.copies(2, run)
    advice = lab.advice()
    document = advice_document(advice)
    lines = [line.plain for line in document_lines(document, 80, wrap=True)]
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert text.count("“Shared loading” in the documentation") == 1
    assert text.count("“Data echoing” in the documentation") == 1
    assert len(advice.waiting) > 28
    assert f"{len(advice.waiting) - 12} more: --all" in text


LOADING = """
import sys, time
import radt

def batches():
    for _ in range(20):
        time.sleep(0.02)
        yield [0] * 8

with radt.Run() as run:
    for epoch in run.epochs(3):
        for batch in run.batches(batches()):
            end = time.process_time() + 0.005
            while time.process_time() < end:
                pass
"""


def test_of_real_runs(bench: Bench) -> None:
    bench.script("loading.py", LOADING)
    bench.script("plain.py", LOADING.replace("run.batches(batches())", "batches()"))
    bench.experiment(
        "Experiment, Workload, Devices, Listeners, File\n"
        "study, alone, cpu, top@100ms, loading.py\n"
        "study, pair , cpu, top@100ms, loading.py\n"
        "study, pair , cpu, top@100ms, loading.py\n"
        "study, plain, cpu, top@100ms, plain.py\n"
    )
    bench.radt("experiment.csv", "--quiet")
    called = CliRunner().invoke(command, ["study", "--home", str(bench.home), "--format", "json"])
    found: dict[str, Any] = json.loads(called.output)
    waits = {one["name"]: one["data_wait"] for one in found["alone"]}
    with bench.reader as reader:
        reported = read_report(reader, "study").workloads
    assert waits == {
        one.groups[0].name: one.groups[0].mean(Quantity.DATA_WAIT)
        for one in reported
        if one.run_count == 1
    }
    assert waits["plain"] is None
    assert 0.1 < waits["loading"] < 1
    by_subject = {one["for"]: one for one in found["waiting"]}
    assert "plain" not in by_subject
    alone = by_subject["loading"]
    assert alone["data_wait"] == waits["loading"]
    assert alone["at_most"] == pytest.approx(echo_bounds(waits["loading"], 4).high)
    pair = by_subject["2 × loading"]
    assert not pair["measured_alone"]
    assert 0.1 < pair["data_wait"] < 1
    assert 1 < pair["at_most"] <= 2
    assert pair["reasons"][0]["page"] == "Shared loading"
