"""Techniques that may help: bounds of overlapping, one process, leases and offloading."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.analysis.advice_choice import Rule
from radt.analysis.advice_techniques import Technique, overlap_bound
from radt.model import RunStatus
from radt.render.advice import advice_document
from radt.render.terminal import document_lines
from tests.advice.planting import GB, Lab, Run
from tests.support.bench import Bench, bench_in

DURATIONS_S = st.lists(st.floats(0.001, 10), min_size=1, max_size=6)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "home")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_in(tmp_path, columns=80, with_mlflow=False) as made:
        yield made


def techniques(lab: Lab, rule: Rule) -> list[Technique]:
    return [one for one in lab.advice().techniques if one.reason.rule is rule]


@given(st.floats(0.001, 10), st.floats(0.001, 10), st.integers(1, 20))
def test_no_overlapped_validation_is_faster_than_its_bound(
    train_s: float, validate_s: float, epochs: int
) -> None:
    """As a schedule has it: each validation begins after its epoch, and after the one before."""
    trained_s = validated_s = 0.0
    for _ in range(epochs):
        trained_s += train_s
        validated_s = max(trained_s, validated_s) + validate_s
    gain = epochs * (train_s + validate_s) / validated_s
    bound = overlap_bound(epochs * train_s, epochs * validate_s, epochs)
    assert gain == pytest.approx(bound)
    assert bound <= (train_s + validate_s) / max(train_s, validate_s) * (1 + 1e-9)


def test_small_models_of_one_gpu_may_train_in_one_process(lab: Lab) -> None:
    for rate in ("0.1", "0.2", "0.4"):
        lab.alone(Run("tiny", sm=0.1, memory=2 * GB, params={"lr": rate}), f"rate {rate}")
    lab.alone(Run("busy", sm=0.8, memory=2 * GB))
    lab.alone(Run("large", sm=0.1, memory=20 * GB))
    lab.alone(Run("unmeasured", sm=None, kernel=None, memory=2 * GB))
    (small,) = techniques(lab, Rule.ONE_PROCESS)
    assert small.subject == "3 small models on GPU 0"
    assert "SM activity 10 %, 2.00 GB" in small.observation
    # Each starts with its first epoch, so there is no start-up to save.
    assert small.reason.numbers == (
        "one after the other, at most 3.00× for 3 runs of one script if fused"
    )
    assert small.at_most == 3.0


def test_small_runs_measured_together_need_the_memory_of_the_largest(lab: Lab) -> None:
    small, larger = Run("small", memory=2 * GB), Run("larger", memory=5 * GB)
    lab.alone(small)
    lab.alone(larger)
    lab.together("mix", [small, replace(larger, epoch_s=5.0)])
    lab.together("more", [Run("busy", sm=0.9), small])
    together = [one for one in techniques(lab, Rule.ONE_PROCESS) if "together" in one.subject]
    (mix,) = together
    assert mix.reason.numbers == "memory at least 5.00 GB instead of 7.00 GB"


def test_one_small_model_or_cpu_runs_with_little_start_up_are_not_mentioned(lab: Lab) -> None:
    lab.alone(Run("tiny", sm=0.1, memory=2 * GB))
    cpu = Run("on cpus", devices="cpu", cores=2.0, memory=1 * GB, start_up_s=1.0)
    lab.alone(cpu)
    lab.alone(replace(cpu, name="more"))
    assert not techniques(lab, Rule.ONE_PROCESS)
    # Each of them runs for 23 s after its start-up, and one start-up is left.
    lab.alone(replace(cpu, start_up_s=20.0))
    lab.alone(replace(cpu, name="more", start_up_s=10.0))
    (small,) = techniques(lab, Rule.ONE_PROCESS)
    assert f"at most {(76 / 66):.2f}× by starting once, 2.00× for 2 runs" in small.reason.numbers


def test_requests_beside_training_on_their_device_may_get_a_lease(lab: Lab) -> None:
    serving = Run("serving", epoch_s=None, latency=0.01)
    training, elsewhere = Run("training"), Run("elsewhere", devices="1")
    slow = replace(serving, latency=0.05)
    lab.together("beside", [training, slow])
    (lease,) = techniques(lab, Rule.LEASE)
    assert (lease.subject, lease.at_most) == ("serving in beside", None)
    lab.alone(serving)
    (lease,) = techniques(lab, Rule.LEASE)
    assert lease.at_most == pytest.approx(5.0)
    lab.together("apart", [elsewhere, slow])
    lab.together("as quick as alone", [training, serving])
    lab.together("two services", [slow, slow])
    assert len(techniques(lab, Rule.LEASE)) == 1


def test_a_model_that_nearly_fills_its_gpu_or_ran_out_alone_may_be_offloaded(lab: Lab) -> None:
    lab.alone(Run("fits", memory=30 * GB))
    lab.alone(Run("nearly", memory=40 * GB))
    lab.alone(Run("too large", memory=42 * GB, status=RunStatus.OOM))
    lab.together("pair", [Run("fits", status=RunStatus.OOM)] * 2)
    found = {one.subject: one for one in techniques(lab, Rule.OFFLOAD)}
    assert found.keys() == {"nearly", "too large"}
    assert "40.0 GB of 42.5 GB" in found["nearly"].reason.numbers
    assert "in use on gpu0" in found["too large"].reason.numbers
    assert found["nearly"].at_most is None


def test_an_experiment_that_only_ran_out_of_memory_still_gets_advice(lab: Lab) -> None:
    lab.alone(Run("too large", memory=42 * GB, status=RunStatus.OOM))
    advice = lab.advice()
    assert not advice.is_refused
    assert [one.subject for one in advice.techniques] == ["too large"]


COMMON = """
import sys, time
import radt

def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
"""
VALIDATING = """
with radt.Run() as run:
    for epoch in run.epochs(4):
        work(0.06)
        with run.span("validate"):
            work(0.03)
        if "overlapped" in sys.argv:
            run.log_metrics({"validation.wait": 0.0})
"""
SMALL = """
time.sleep(0.5)
with radt.Run() as run:
    for epoch in run.epochs(2):
        time.sleep(0.3)  # so long that a busy machine samples it, too
"""
SERVING = """
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with radt.Run() as run:
    for _ in range(int(sys.argv[1])):
        run.log_metrics({"latency": float(sys.argv[2])})
        time.sleep(0.01)
"""
RAN_OUT = """
with radt.Run():
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
"""


def test_of_real_runs(bench: Bench) -> None:
    for name, script in (
        ("validating", VALIDATING),
        ("small", SMALL),
        ("serving", SERVING),
        ("out", RAN_OUT),
    ):
        bench.script(f"{name}.py", COMMON + script)
    bench.experiment(
        "Experiment, Workload, Role, Devices, Listeners, File, Params\n"
        "study, serial    ,        , cpu, top@100ms, validating.py,\n"
        "study, overlapped,        , cpu, top@100ms, validating.py, overlapped\n"
        "study, small     ,        , cpu, top@50ms, small.py, 1\n"
        "study, another   ,        , cpu, top@50ms, small.py, 2\n"
        "study, quick     ,        , cpu, top@100ms, serving.py, 20 0.002\n"
        "study, beside    ,        , cpu, top@100ms, validating.py, beside\n"
        "study, beside    , service, cpu, top@100ms, serving.py, 100000 0.5\n"
        "study, pair      ,        , cpu, top@100ms, validating.py, pair\n"
        "study, pair      ,        , cpu, top@100ms, serving.py, 20 0.002\n"
        "study, out       ,        , cpu, top@100ms, out.py,\n"
    )
    bench.radt("experiment.csv", "--quiet", code=None)
    advised = bench.radt("advise", "study", "--format", "json").stdout
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(advised)["techniques"]:
        found.setdefault(one["reasons"][0]["rule"], []).append(one)

    overlap = {one["for"]: one for one in found["overlap_validation"]}
    assert "validating, Params overlapped" not in overlap and "overlapped" not in overlap
    assert len(overlap) == 1
    (serial,) = overlap.values()
    assert 1.1 < serial["at_most"] <= 1.6  # a third of the time, four epochs: 1.33
    assert serial["reasons"][0]["page"] == "Overlapped validation"

    (several,) = found["one_process"]
    assert "small models on the CPU" in several["for"]
    assert "by starting once, 2.00× for 2 runs of one script" in several["reasons"][0]["numbers"]

    leases = {one["for"].split(" in ")[1]: one for one in found["lease"]}
    assert leases.keys() == {"beside"}
    assert "p95(latency) 0.5" in leases["beside"]["observed"]

    (out,) = found["offload"]
    assert out["observed"] == "ran out of memory alone"
    text = bench.radt("advise", "study").stdout
    for page in ("Overlapped validation", "Preemption", "Offload"):
        assert f"“{page}” in the documentation" in " ".join(text.split())


def test_the_section_fits_into_80_columns_and_each_technique_says_its_limits(lab: Lab) -> None:
    for number in range(14):
        name = f"efficientnet-v2-s-{number}"
        lab.alone(Run(name, memory=40 * GB))
        lab.alone(Run(f"tiny-{number}", sm=0.1, memory=2 * GB))
    advice = lab.advice()
    lines = [line.plain for line in document_lines(advice_document(advice), 80, wrap=True)]
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert text.count("“Offload” in the documentation") == 1
    assert text.count("“Many models” in the documentation") == 1
    assert f"{len(advice.techniques) - 12} more: --all" in text
