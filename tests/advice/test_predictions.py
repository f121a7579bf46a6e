"""What is predicted of planted experiments, against what follows from their numbers by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from radt.analysis.advice_model import Fit, SharingMethod
from radt.analysis.advice_prediction import equal_instances, median_error, shared_profiles
from radt.cli.advise import command
from radt.collocation.topology import published_mig
from radt.model import RunStatus
from tests.advice.planting import A100_BYTES, GB, IDLE_BYTES, Lab, Run, find

OOM = RunStatus.OOM


def test_footprints_add_up_and_have_to_fit(lab: Lab) -> None:
    lab.alone(Run("small", memory=5 * GB))
    lab.alone(Run("large", memory=13.9 * GB))
    lab.alone(Run("huge", memory=25 * GB))
    advice = lab.advice()
    seven = find(advice, ["small"] * 7, "MPS")
    (card, _host) = seven.pools
    # Seven runs and the context of MPS's server.
    assert card.need_bytes == pytest.approx(7 * 5 * GB + 0.5 * GB)
    assert card.capacity_bytes == pytest.approx(A100_BYTES - IDLE_BYTES)
    assert seven.fit is Fit.YES
    assert find(advice, ["large"] * 3, "naive").fit is Fit.TIGHT
    assert find(advice, ["huge"] * 2, "naive").fit is Fit.NO
    assert find(advice, ["large", "huge"], "naive").fit is Fit.YES


def test_the_margin_is_the_users(lab: Lab) -> None:
    lab.alone(Run("large", memory=13.9 * GB))
    assert find(lab.advice(margin=0.0), ["large"] * 3, "naive").fit is Fit.YES
    assert find(lab.advice(margin=0.5), ["large"] * 2, "naive").fit is Fit.TIGHT


def test_without_its_processes_memory_a_run_has_what_the_card_has_above_idle(lab: Lab) -> None:
    lab.alone(Run("small", memory=5 * GB, process_memory=False))
    (solo,) = lab.advice().measurements.solos.values()
    assert solo.memory_bytes == pytest.approx(5 * GB)


def test_the_machines_memory_counts_too(lab: Lab) -> None:
    lab.alone(Run("net", devices="cpu", memory=40 * GB, cores=2.0))
    advice = lab.advice()
    assert find(advice, ["net"] * 2, "together").fit is Fit.YES
    assert find(advice, ["net"] * 3, "together").fit is Fit.NO


def test_under_mps_the_activity_of_the_sms_adds_up(lab: Lab) -> None:
    lab.alone(Run("net", sm=0.3, kernel=0.6, dram=0.1))
    advice = lab.advice()
    two, seven = (find(advice, ["net"] * count, "MPS").rows[0] for count in (2, 7))
    assert (two.range.low, two.limit) == (1.0, "nothing measured")
    assert two.range.high == pytest.approx(2.0)
    assert seven.range.low == pytest.approx(2.1)
    assert seven.range.high == pytest.approx(7.0)
    assert seven.limit == "SM activity"


def test_naively_the_time_of_kernels_adds_up(lab: Lab) -> None:
    lab.alone(Run("net", sm=0.3, kernel=0.6))
    row = find(lab.advice(), ["net"] * 3, "naive").rows[0]
    assert row.range.low == pytest.approx(1.8)
    assert row.range.high == pytest.approx(3.0)
    assert row.limit == "kernel time"


def test_memory_bandwidth_may_be_what_is_short(lab: Lab) -> None:
    lab.alone(Run("net", sm=0.2, kernel=0.9, dram=0.7))
    row = find(lab.advice(), ["net"] * 2, "MPS").rows[0]
    assert row.range.low == pytest.approx(1.4)
    assert row.limit == "memory bandwidth"


def test_who_hardly_uses_a_resource_does_not_wait_for_it(lab: Lab) -> None:
    lab.alone(Run("recommender", sm=0.04, kernel=0.04, memory=25 * GB))
    lab.alone(Run("vision", sm=0.99, kernel=0.99, memory=8 * GB))
    found = find(lab.advice(), ["recommender", "vision"], "MPS")
    by_name = {row.row.solo.name: row.range.low for row in found.rows}
    assert by_name["recommender"] == 1.0
    assert by_name["vision"] == pytest.approx(1.03)


def test_cpus_of_the_machine_may_be_what_is_short(lab: Lab) -> None:
    lab.alone(Run("loader", sm=0.1, kernel=0.2, cores=6.0))
    row = find(lab.advice(), ["loader"] * 4, "MPS").rows[0]
    assert row.range.low == pytest.approx(24 / 16)
    assert row.limit == "CPU"


def test_an_instance_has_its_share_of_the_sms(lab: Lab) -> None:
    lab.alone(Run("net", sm=0.3, kernel=0.6, memory=5 * GB))
    lab.alone(Run("large", sm=0.3, kernel=0.6, memory=6 * GB))
    advice = lab.advice()
    found = find(advice, ["net"] * 7, "1g.5gb")
    assert found.fit is Fit.YES
    assert found.rows[0].range.low == pytest.approx(0.3 * 7)
    assert found.rows[0].range.high == pytest.approx(0.4 + 0.6 * 7)
    # Of 6 GB there are no seven, whatever the instances.
    assert not [
        one
        for one in advice.predictions
        if one.candidate.method is SharingMethod.MIG
        and one.candidate.degree == 7
        and one.candidate.rows[0].solo.name == "large"
    ]


def test_what_was_measured_alone_on_an_instance_is_believed(lab: Lab) -> None:
    lab.alone(Run("net", epoch_s=4.0))
    lab.alone(Run("net", epoch_s=6.0, collocation="1g.5gb"))
    advice = lab.advice()
    row = find(advice, ["net"] * 7, "1g.5gb").rows[0]
    assert (row.range.low, row.range.high) == pytest.approx((1.5, 1.5))
    assert len(advice.measurements.solos) == 1


def test_instances_are_those_of_the_card() -> None:
    a100 = published_mig("NVIDIA A100-SXM4-40GB", A100_BYTES)
    assert a100 is not None
    assert [one.name for one in shared_profiles(a100)] == [
        *("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb")
    ]
    names = [
        None if (largest := equal_instances(a100, count, 4 * GB)) is None else largest.name
        for count in (2, 3, 4, 7, 8)
    ]
    assert names == ["3g.20gb", "2g.10gb", "1g.10gb", "1g.5gb", None]
    assert equal_instances(a100, 7, 6 * GB) is None
    h100 = published_mig("NVIDIA H100 80GB HBM3", 81559 * 2**20)
    assert h100 is not None
    assert h100.profile("1g.10gb") is not None
    assert published_mig("NVIDIA GeForce RTX 4090", 24e9) is None


def test_runs_with_cpus_of_their_own_need_so_many(lab: Lab) -> None:
    lab.alone(Run("net", devices="cpu", params={"Cpus": "8"}))
    advice = lab.advice()
    assert find(advice, ["net"] * 2, "together").fit is Fit.YES
    three = find(advice, ["net"] * 3, "together")
    assert three.fit is Fit.NO
    assert three.unknown == "24 CPUs of their own on a machine with 16"


def test_measured_workloads_say_where_in_the_range_others_lie(lab: Lab) -> None:
    small = Run("small", sm=0.4, kernel=0.8)
    lab.alone(small)
    lab.alone(Run("other", sm=0.4, kernel=0.8))
    # Of the range from 1 to 2 by ratios the middle.
    lab.copies(2, replace(small, collocation="MPS", epoch_s=4.0 * 2.0**0.5))
    advice = lab.advice()
    other = find(advice, ["other"] * 2, "MPS")
    assert other.rows[0].expected == pytest.approx(2.0**0.5, rel=0.01)
    own = find(advice, ["small"] * 2, "MPS")
    assert own.measured_slowdowns[0] == pytest.approx(2.0**0.5, rel=0.01)
    # It does not count for another way to share, nor where it checks the prediction itself.
    (checked,) = advice.checks
    assert checked.expected == 1.0
    naive = find(advice, ["other"] * 2, "naive").rows[0]
    assert naive.expected == naive.range.low


@pytest.mark.parametrize("measured", [1.05, 1.9, 2.6, 5.0])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_more_copies_are_never_expected_to_be_faster(lab: Lab, count: int, measured: float) -> None:
    """Whichever of them was measured, and also where that lies outside of the range."""
    net = Run("net", devices="cpu", cores=7.0)
    lab.alone(net)
    lab.copies(count, replace(net, epoch_s=4.0 * measured))
    advice = lab.advice()
    found = [find(advice, ["net"] * copies, "together") for copies in (2, 3, 4)]
    expected = [one.rows[0].expected for one in found]
    assert expected == sorted(expected)
    assert expected[0] < expected[-1]


def test_predictions_are_compared_with_what_was_measured(lab: Lab) -> None:
    small = Run("small", sm=0.6, kernel=0.9)
    large = Run("large", sm=0.9, kernel=0.9, epoch_s=10.0)
    lab.alone(small)
    lab.alone(large)
    lab.copies(2, replace(small, collocation="MPS", epoch_s=4.0 * 1.2))  # as predicted
    lab.copies(2, replace(large, epoch_s=10.0 * 3.6), "bad")  # expected 1.8, twice that measured
    found = lab.advice().checks
    errors = {one.workload: one.error for one in found}
    assert errors == {"2 small MPS": pytest.approx(0), "bad": pytest.approx(-0.5)}
    assert median_error(found) == pytest.approx(0.25)


def test_a_workload_that_ran_out_of_memory_is_not_recommended_though_it_fits(lab: Lab) -> None:
    small = Run("small", memory=5 * GB)
    lab.alone(small)
    lab.together("two", [small, replace(small, status=OOM)])
    advice = lab.advice()
    found = find(advice, ["small"] * 2, "naive")
    assert found.fit is Fit.YES
    assert found.ran_out
    # Who is left alone when the other has died says nothing of sharing.
    assert found.measured_slowdowns == ()
    assert all(one.best is not found for one in advice.recommendations)


def test_the_study_of_two_cores_is_predicted_as_well_as_before(lab: Lab) -> None:
    """Times and loads of the table in experiments/collocation/README.md."""
    lab.cores = 2
    alone = {
        "S": Run("resnet26", 2.35, cores=1.0, memory=0.609 * GB, devices="cpu"),
        "M": Run("resnet50", 1.77, cores=1.0, memory=0.754 * GB, devices="cpu"),
        "R": Run("recommender", 1.52, cores=1.0, memory=0.456 * GB, devices="cpu"),
    }
    for run in alone.values():
        lab.alone(run)
    for label, times_s in (
        *(("S+S", (2.31, 2.31)), ("S+S+S", (3.61, 3.61, 3.61))),
        *(("S+M", (2.17, 1.87)), ("S+R", (2.25, 1.55))),
    ):
        names = label.split("+")
        runs = [replace(alone[name], epoch_s=s) for name, s in zip(names, times_s, strict=True)]
        lab.together(label, runs)
    found = lab.advice().checks
    assert len(found) == 6
    error = median_error(found)
    assert error is not None
    assert error < 0.0445
    assert max(abs(one.error) for one in found) < 0.0845


def test_a_workload_that_failed_says_nothing(lab: Lab) -> None:
    small = Run("small")
    lab.alone(small)
    lab.together("two", [small, replace(small, status=RunStatus.FAILED)])
    assert lab.advice().measurements.measured == []


def test_runs_of_several_machines_and_devices_do_not_share(lab: Lab) -> None:
    for host, devices in (("gpu-01", "0"), ("gpu-02", "0"), ("gpu-01", "1")):
        lab.alone(Run("net", host=host, devices=devices), f"{host} {devices}")
    advice = lab.advice()
    assert len(advice.measurements.solos) == 3
    assert len({solo.name for solo in advice.measurements.solos.values()}) == 3
    for one in advice.predictions:
        assert len({row.solo.place for row in one.candidate.rows}) == 1


def test_workloads_with_runs_on_several_gpus_are_left_out(lab: Lab) -> None:
    lab.alone(Run("wide", devices="0+1"))
    lab.together("pair", [Run("wide", devices="0+1"), Run("net")])
    advice = lab.advice()
    assert not advice.measurements.solos
    assert not advice.measurements.missing
    assert any("2 workloads with runs on several GPUs" in note for note in advice.notes)


def test_without_epochs_samples_are_compared(lab: Lab) -> None:
    fast = Run("fast", epoch_s=None, samples_per_s=100.0)
    lab.alone(fast)
    lab.copies(2, replace(fast, samples_per_s=80.0))
    measured = find(lab.advice(), ["fast"] * 2, "naive").measured_slowdowns
    assert measured[0] == pytest.approx(1.25, rel=0.05)


def test_a_sweep_of_many_models_is_not_mixed(lab: Lab) -> None:
    for number in range(70):
        lab.alone(Run(f"net{number}", params={"lr": str(number)}, epoch_s=2.0), str(number))
    advice = lab.advice()
    assert len(advice.measurements.solos) == 64
    assert all(one.candidate.is_uniform for one in advice.predictions)
    assert any("6 older of 70 models" in note for note in advice.notes)
    assert any("too many to try every mix" in note for note in advice.notes)
    said = CliRunner().invoke(command, [lab.experiment, "--home", str(lab.home)])
    assert len(said.output.splitlines()) < 200
    assert "738 more: --all" in said.output


def test_utilisation_stands_for_the_activity_of_sms_and_is_called_so(lab: Lab) -> None:
    lab.alone(Run("net", sm=None, kernel=0.8))
    advice = lab.advice()
    (solo,) = advice.measurements.solos.values()
    assert solo.sm_is_utilization
    row = find(advice, ["net"] * 2, "MPS").rows[0]
    assert (row.range.low, row.range.high) == pytest.approx((1.6, 2.0))
    assert any("GPU utilisation is used instead" in note for note in advice.notes)


def test_others_on_the_machine_are_noticed(lab: Lab) -> None:
    lab.host_load = 0.75
    lab.alone(Run("net", devices="cpu", cores=8.0))
    assert any("other processes used the CPUs" in note for note in lab.advice().notes)


def test_runs_that_wait_for_data_are_noted(lab: Lab) -> None:
    lab.alone(Run("quick", data_wait=0.09))
    lab.alone(Run("in seconds", data_wait=3.0))
    lab.alone(Run("net", data_wait=0.05))
    assert not any("wait for data" in note for note in lab.advice().notes)
    lab.copies(2, Run("net", epoch_s=6.0, data_wait=0.44), "two")
    (note,) = (note for note in lab.advice().notes if "wait for data" in note)
    assert "time: net 44 % in two;" in note


def test_the_recommender_of_the_thesis(lab: Lab) -> None:
    """Table 4.4 of the thesis: what both take alone, and what was measured of them together."""
    lab.alone(Run("recommender", sm=0.05, kernel=0.2, dram=None, memory=29.14 * GB))
    lab.alone(Run("vision", sm=0.82, kernel=0.95, dram=None, memory=8.47 * GB))
    advice = lab.advice()
    mps = find(advice, ["recommender", "vision"], "MPS")
    assert mps.fit is Fit.YES
    for row, slowdown in zip(mps.rows, (1.04, 1.04), strict=True):
        assert row.range.low <= slowdown <= row.range.high
    # Measured were 37.62 GB, without the allowance.
    assert mps.pools[0].need_bytes == pytest.approx(37.61 * GB + 0.5 * GB)
    (recommended,) = advice.recommendations
    assert recommended.best is mps
