"""A missing value says why it is missing: in reports, on the table of runs, in JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest

from radt.analysis.missing import why_missing
from radt.analysis.quantities import Quantity
from radt.analysis.series_quantities import AnyQuantity, parse_series_quantity
from radt.model import RunStatus
from radt.store.records import RunRecord
from tests.support.stores import START_NS

LONG = RunRecord(
    *("r", "w", "study", "1", "a", "net", START_NS),
    status=RunStatus.FINISHED,
    devices="0",
    listeners="smi+top",
    started_ns=START_NS,
    ended_ns=START_NS + 60_000_000_000,
)
SHORT = replace(LONG, ended_ns=START_NS + 1_000_000_000)
ON_CPU = replace(LONG, devices="cpu")


@pytest.mark.parametrize(
    ("quantity", "run", "metrics", "why"),
    [
        (Quantity.CPU, replace(LONG, status=RunStatus.OOM), (), "did not finish (OOM)"),
        (Quantity.CPU, replace(LONG, status=RunStatus.RUNNING), (), "has not ended yet"),
        (Quantity.TIME_PER_EPOCH, LONG, (), "no epochs"),
        (Quantity.CPU, SHORT, (), "too short for a value of process.cpu.utilization"),
        (Quantity.CPU, LONG, (), "no listener recorded process.cpu.utilization"),
        (Quantity.CPU, LONG, ("process.cpu.utilization",), "too few readings"),
        (Quantity.ENERGY, ON_CPU, (), "the run used no GPU"),
        (Quantity.ENERGY_PER_SAMPLE, ON_CPU, (), "the run used no GPU"),
        (Quantity.ENERGY, replace(LONG, devices="unknown"), (), "which GPUs the run used is unk"),
        (Quantity.ENERGY, LONG, (), "no listener recorded gpu.energy (listeners: smi, top)"),
        (Quantity.SAMPLES_PER_S, LONG, (), "the script did not log samples_per_s"),
        (parse_series_quantity("last(loss)"), LONG, (), "no value of loss"),
        (parse_series_quantity("time_to(loss<0.1)"), LONG, (), "loss<0.1 was never met"),
    ],
)
def test_reasons_of_missing_values(
    quantity: AnyQuantity, run: RunRecord, metrics: tuple[str, ...], why: str
) -> None:
    assert why in why_missing(quantity, run, metrics, is_alone=True, has_epochs=False)


@pytest.mark.parametrize(
    ("is_alone", "why"), [(True, "it ran alone"), (False, "no run alone did the same")]
)
def test_what_ran_alone_has_no_slowdown(is_alone: bool, why: str) -> None:
    for quantity in (Quantity.SLOWDOWN, Quantity.SPEED_UP, Quantity.SERIAL):
        assert why_missing(quantity, LONG, (), is_alone=is_alone, has_epochs=True) == why


def test_every_quantity_has_a_reason() -> None:
    for quantity in Quantity:
        for run in (LONG, SHORT, ON_CPU):
            assert why_missing(quantity, run, (), is_alone=False, has_epochs=True)
