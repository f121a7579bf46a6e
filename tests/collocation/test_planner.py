"""The planner's rules: who shares an instance, where it lies, what is refused with what advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from radt.collocation import permissions
from radt.collocation.packing import PlacementError
from radt.collocation.planner import DevicePlan, DeviceRequest, plan_devices
from radt.collocation.spec import Collocation
from radt.collocation.topology import (
    ComputeInstance,
    GpuInstance,
    GpuInventory,
    InstanceProfile,
    Inventory,
    Placement,
)
from radt.devices.gpus import ComputeMode, Gpu
from tests.support.cards import divided, existing, machine, plain

Row = tuple[str, tuple[int, ...], str]


AS_ROOT = "; or start radt as root"


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not root, whoever runs the tests."""
    monkeypatch.setattr(permissions, "_has_sys_admin", lambda of: of == "CapBnd")


def plan(*rows: Row, on: Inventory | GpuInventory) -> DevicePlan:
    inventory = on if isinstance(on, Inventory) else machine(on)
    return plan_devices(
        [DeviceRequest(key, gpus, Collocation.parse(text)) for key, gpus, text in rows], inventory
    )


def refused(*rows: Row, on: Inventory | GpuInventory) -> PlacementError:
    with pytest.raises(PlacementError) as caught:
        plan(*rows, on=on)
    return caught.value


def lying(of: DevicePlan) -> dict[str, tuple[str, str]]:
    """Profile and place of each row's MIG device."""
    found = {}
    for key, share in of.shares.items():
        instance, compute = share.instance, share.compute
        if instance is not None and compute is not None:
            found[key] = (compute.profile, str(instance.placement))
    return found


# Rows without MIG ----------------------------------------------------------------------------


def test_naive_rows_need_no_set_up() -> None:
    made = plan(
        ("a", (0,), "-"), ("b", (1, 0), "-"), ("c", (), "-"), on=machine(plain(0), plain(1))
    )
    assert made.is_naive
    assert made.shares["b"].gpu_uuids == ("GPU-fake-1", "GPU-fake-0"), "in the row's order"
    assert made.shares["c"].gpus == ()


def test_no_rows_no_plan() -> None:
    assert plan(on=machine()).is_naive


def test_mps_rows_of_a_gpu_share_a_daemon() -> None:
    made = plan(
        ("a", (0,), "MPS:40"),
        ("b", (0,), "MPS"),
        ("c", (1,), "MPS"),
        on=machine(plain(0), plain(1)),
    )
    assert [(server.gpus, server.keys) for server in made.mps_servers] == [
        ((0,), ("a", "b")),
        ((1,), ("c",)),
    ]
    assert made.shares["a"].thread_percentage == 40
    assert made.shares["a"].mps == made.shares["b"].mps != made.shares["c"].mps


def test_mps_rows_on_the_same_gpus_share_a_daemon_in_any_order() -> None:
    made = plan(("a", (1, 2), "MPS"), ("b", (2, 1), "MPS"), on=machine(plain(1), plain(2)))
    (server,) = made.mps_servers
    assert server.gpus == (1, 2)
    assert server.keys == ("a", "b")


def test_mps_sets_that_overlap_are_refused() -> None:
    error = refused(
        ("a", (1,), "MPS"), ("b", (1, 2), "MPS"), ("c", (3,), "MPS"),
        on=machine(plain(1), plain(2), plain(3)),
    )  # fmt: skip
    assert error.keys == ("a", "b")
    assert "GPU 1" in error.message


def test_naive_rows_beside_mps_rows_stay_outside_the_daemon() -> None:
    made = plan(("a", (0,), "MPS"), ("b", (0,), "-"), on=plain(0))
    assert made.shares["b"].mps is None


@pytest.mark.parametrize("text", ["MPS", "3g.20gb", "3g.20gb+MPS"])
def test_a_cpu_row_shares_no_gpu(text: str) -> None:
    error = refused(("a", (), "-"), ("b", (), text), on=divided())
    assert error.keys == ("b",)
    assert "CPU" in error.message


def test_a_gpu_that_is_not_there() -> None:
    error = refused(("a", (3,), "-"), on=machine(plain(0), plain(1)))
    assert (error.message, error.remedy) == ("GPU 3 not found", "This machine has GPU 0 and 1")


def test_a_gpu_that_does_not_answer_disturbs_its_own_rows_only() -> None:
    inventory = machine(plain(0), GpuInventory(1, "", "", problem="GPU is lost"))
    assert plan(("a", (0,), "MPS"), on=inventory).mps_servers
    assert "GPU is lost" in refused(("a", (0,), "-"), ("b", (1,), "-"), on=inventory).message


# Who shares an instance ----------------------------------------------------------------------


def test_rows_with_the_same_profile_get_an_instance_each() -> None:
    made = plan(("a", (0,), "3g.20gb"), ("b", (0,), "3g.20gb"), on=divided())
    assert lying(made) == {"a": ("3g.20gb", "0-3"), "b": ("3g.20gb", "4-7")}


def test_rows_that_name_an_instance_share_it() -> None:
    made = plan(
        ("a", (0,), "3g.20gb#x"), ("b", (0,), "3g.20gb#x"), ("c", (0,), "3g.20gb#y"), on=divided()
    )
    assert made.shares["a"].compute == made.shares["b"].compute != made.shares["c"].compute
    assert len(made.instances) == 2


def test_mps_rows_share_an_instance_and_its_daemon() -> None:
    made = plan(
        ("a", (0,), "3g.20gb+MPS:30"),
        ("b", (0,), "3g.20gb+MPS"),
        ("c", (0,), "3g.20gb"),
        on=divided(),
    )
    assert made.shares["a"].compute == made.shares["b"].compute != made.shares["c"].compute
    (server,) = made.mps_servers
    assert server.compute == made.shares["a"].compute
    assert server.keys == ("a", "b")
    assert made.shares["c"].mps is None


def test_mps_rows_with_names_get_an_instance_and_a_daemon_a_name() -> None:
    made = plan(
        ("a", (0,), "3g.20gb#1+MPS"), ("b", (0,), "3g.20gb#1+MPS"), ("c", (0,), "3g.20gb#2+MPS"),
        on=divided(),
    )  # fmt: skip
    assert [server.keys for server in made.mps_servers] == [("a", "b"), ("c",)]


def test_compute_instances_share_a_gpu_instance_while_its_slices_suffice() -> None:
    made = plan(
        ("a", (0,), "3c.7g.40gb"),
        ("b", (0,), "3c.7g.40gb"),
        ("c", (0,), "1c.7g.40gb"),
        on=divided(),
    )
    (instance,) = made.instances
    assert [(one.profile, one.placement) for one in instance.computes] == [
        ("3c.7g.40gb", Placement(0, 3)),
        ("1c.7g.40gb", Placement(3, 1)),
        ("3c.7g.40gb", Placement(4, 3)),
    ]
    assert len({share.compute for share in made.shares.values()}) == 3


def test_the_next_gpu_instance_takes_the_compute_instances_that_do_not_fit() -> None:
    made = plan(
        *((key, (0,), "2c.3g.20gb") for key in "ab"), ("c", (0,), "1c.3g.20gb"), on=divided()
    )
    assert [len(instance.computes) for instance in made.instances] == [2, 1]


def test_gpus_are_planned_each_by_itself() -> None:
    made = plan(
        ("a", (0,), "7g.40gb"), ("b", (2,), "7g.141gb"), on=machine(divided(0), divided(2, "H200"))
    )
    assert [(one.gpu, one.gpu_uuid) for one in made.instances] == [
        (0, "GPU-fake-0"),
        (2, "GPU-fake-2"),
    ]


@pytest.mark.parametrize("text", ["3G.20GB", " 3g.20gb "])
def test_profiles_are_found_in_any_case(text: str) -> None:
    assert lying(plan(("a", (0,), text), on=divided())) == {"a": ("3g.20gb", "0-3")}


def test_media_extensions_are_a_profile_of_their_own() -> None:
    made = plan(("a", (0,), "1g.5gb+ME"), ("b", (0,), "1g.5gb"), on=divided())
    assert {profile for profile, _ in lying(made).values()} == {"1g.5gb+me", "1g.5gb"}
    error = refused(("a", (0,), "1g.5gb+me"), ("b", (0,), "1g.5gb+me"), on=divided())
    assert error.remedy == "1g.5gb+me fits"


# Where instances lie -------------------------------------------------------------------------


def test_a_large_instance_moves_up_for_small_ones() -> None:
    made = plan(("a", (0,), "3g.20gb"), *((key, (0,), "1g.5gb") for key in "bcde"), on=divided())
    assert lying(made) == {
        "a": ("3g.20gb", "4-7"),
        "b": ("1g.5gb", "0"),
        "c": ("1g.5gb", "1"),
        "d": ("1g.5gb", "2"),
        "e": ("1g.5gb", "3"),
    }
    assert [one.profile.name for one in made.instances] == ["3g.20gb"] + ["1g.5gb"] * 4


def test_seven_and_four() -> None:
    assert len(plan(*((key, (0,), "1g.5gb") for key in "abcdefg"), on=divided()).instances) == 7
    assert (
        len(plan(*((key, (0,), "1g.6gb") for key in "abcd"), on=divided(0, "A30")).instances) == 4
    )
    assert lying(plan(("a", (0,), "4g.71gb"), ("b", (0,), "3g.71gb"), on=divided(0, "H200"))) == {
        "a": ("4g.71gb", "0-3"),
        "b": ("3g.71gb", "4-7"),
    }


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    error = refused(
        ("a", (0,), "3g.20gb"), ("b", (0,), "3g.20gb"), ("c", (0,), "1g.5gb"), on=divided()
    )
    assert error.keys == ("a", "b", "c")
    assert error.message == "GPU 0 (NVIDIA A100-SXM4-40GB) cannot hold 2 × 3g.20gb + 1g.5gb"
    assert error.remedy == "2 × 3g.20gb fit"


def test_too_many_rows_for_any_plan() -> None:
    error = refused(*((f"r{number}", (0,), "1g.5gb") for number in range(12)), on=divided())
    assert error.remedy == "7 × 1g.5gb fit"


def test_compute_instances_that_do_not_fit_are_named_as_the_user_did() -> None:
    error = refused(*((key, (0,), "3c.7g.40gb") for key in "abc"), on=divided())
    assert "3 × 3c.7g.40gb" in error.message
    assert error.remedy == "2 × 3c.7g.40gb fit"


def test_an_unknown_profile_is_answered_with_those_there_are() -> None:
    error = refused(("a", (0,), "3g.20gb"), on=divided(0, "H200"))
    assert error.message == "GPU 0 (NVIDIA H200) has no profile 3g.20gb"
    assert error.remedy == (
        "It offers 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb"
    )


def test_a_compute_instance_that_the_profile_does_not_offer() -> None:
    error = refused(("a", (0,), "3c.4g.20gb"), on=divided())
    assert error.remedy == "It offers 1c, 2c, or the whole: 4g.20gb"


def test_several_gpus_with_mig_are_refused() -> None:
    error = refused(("a", (0, 1), "3g.20gb"), on=machine(divided(0), divided(1)))
    assert "one MIG device" in error.message


# What is there already -----------------------------------------------------------------------


def test_an_idle_instance_is_used_before_a_new_one_is_made() -> None:
    made = plan(
        ("a", (0,), "3g.20gb"),
        ("b", (0,), "3g.20gb"),
        on=divided(0, "A100-40", existing(1, "3g.20gb", 4, 3)),
    )
    used, new = made.instances
    assert (used.existing_id, used.computes[0].uuid, used.computes[0].keys) == (
        1,
        "MIG-1-0",
        ("a",),
    )
    assert (new.existing_id, str(new.placement)) == (None, "0-3")


@pytest.mark.parametrize(
    "other",
    [
        existing(1, "3g.20gb", 4, 3, pids=[77]),
        existing(1, "3g.20gb", 4, 3, claimed=True),
        existing(1, "3g.20gb", 4),
        existing(1, "3g.20gb", 4, 2, 1),
        existing(1, "2g.10gb", 4, 2),
    ],
    ids=["busy", "another radt's", "without compute instance", "divided", "another profile"],
)
def test_an_instance_that_cannot_be_used_blocks_its_slices(other: GpuInstance) -> None:
    card = divided(0, "A100-40", other)
    made = plan(("a", (0,), "3g.20gb"), on=card)
    assert [(one.existing_id, str(one.placement)) for one in made.instances] == [(None, "0-3")]
    refused(("a", (0,), "3g.20gb"), ("b", (0,), "3g.20gb"), on=card)


def test_idle_compute_instances_are_used_for_rows_that_ask_for_such() -> None:
    card = divided(0, "A100-40", existing(1, "7g.40gb", 0, 3, 4))
    made = plan(("a", (0,), "3c.7g.40gb"), ("b", (0,), "4c.7g.40gb"), on=card)
    (instance,) = made.instances
    assert {one.keys: one.uuid for one in instance.computes} == {
        ("a",): "MIG-1-0",
        ("b",): "MIG-1-1",
    }
    refused(("a", (0,), "7g.40gb"), on=card)


def test_idle_instances_in_the_way_are_named_with_what_takes_them_away() -> None:
    card = divided(0, "A100-40", existing(1, "1g.5gb", 0, 1), existing(2, "1g.5gb", 6))
    error = refused(("a", (0,), "7g.40gb"), on=card)
    assert error.message.endswith("beside 1g.5gb (idle), 1g.5gb (without compute instance)")
    assert error.remedy is not None
    assert error.remedy.startswith(
        "It fits without the idle instances: sudo nvidia-smi mig -i 0 -gi 1 -dci && "
        "sudo nvidia-smi mig -i 0 -gi 1,2 -dgi"
    )


def test_busy_instances_are_never_offered_for_destruction() -> None:
    card = divided(0, "A100-40", existing(1, "1g.5gb", 0, 1, pids=[5]))
    error = refused(("a", (0,), "7g.40gb"), on=card)
    assert "-dgi" not in str(error)
    assert "1g.5gb (in use)" in error.message


@pytest.mark.parametrize(
    ("there", "may_create", "text", "may_pass"),
    [
        (existing(1, "3g.20gb", 4, 3, pids=[5]), True, "7g.40gb", True),
        (existing(1, "3g.20gb", 4, 3, claimed=True), True, "7g.40gb", True),
        (existing(1, "3g.20gb", 4, 3), True, "7g.40gb", False),
        (existing(1, "3g.20gb", None, 3, pids=[5]), False, "3g.20gb", True),
        (existing(1, "3g.20gb", None, 3, claimed=True), False, "3g.20gb", False),
        (existing(1, "3g.20gb", None, 3, pids=[5]), False, "2g.10gb", False),
    ],
    ids=["busy", "another radt's", "idle", "usable later", "gone later", "of no use"],
)
def test_waiting_helps_where_only_instances_in_use_are_in_the_way(
    there: GpuInstance, may_create: bool, text: str, may_pass: bool
) -> None:
    card = divided(0, "A100-40", there, may_create=may_create)
    assert refused(("a", (0,), text), on=card).may_pass is may_pass


def test_without_room_another_gpu_is_the_advice() -> None:
    card = divided(0, "A100-40", existing(1, "7g.40gb", 0, 7, pids=[5]))
    error = refused(("a", (0,), "1g.5gb"), on=card)
    assert error.remedy == "Choose another GPU; this one is full"


# Who may create ------------------------------------------------------------------------------


def test_a_user_without_privileges_is_told_what_to_ask_for() -> None:
    error = refused(("a", (2,), "3g.20gb"), on=divided(2, may_create=False))
    assert error.keys == ("a",)
    assert "creating 3g.20gb needs an administrator" in error.message
    assert error.remedy == "Run sudo nvidia-smi mig -i 2 -cgi 3g.20gb -C" + AS_ROOT


def test_several_instances_are_asked_for_with_their_places() -> None:
    error = refused(
        ("a", (0,), "3g.20gb"), *((key, (0,), "1g.5gb") for key in "bcde"),
        on=divided(0, may_create=False),
    )  # fmt: skip
    assert error.remedy == (
        "Run sudo nvidia-smi mig -i 0 -cgi 3g.20gb:4,1g.5gb:0,1g.5gb:1,1g.5gb:2,1g.5gb:3 -C"
        + AS_ROOT
    )


def test_compute_instances_are_asked_for_in_two_steps() -> None:
    error = refused(
        ("a", (0,), "3c.7g.40gb"), ("b", (0,), "3c.7g.40gb"), on=divided(0, may_create=False)
    )
    assert error.remedy == (
        "Run sudo nvidia-smi mig -i 0 -cgi 7g.40gb, then sudo nvidia-smi mig -i 0 -gi ID "
        "-cci 3c.7g.40gb,3c.7g.40gb with the ID it prints" + AS_ROOT
    )


def test_a_user_without_privileges_uses_what_is_there() -> None:
    card = divided(
        0,
        "A100-40",
        existing(1, "3g.20gb", None, 3),
        existing(2, "3g.20gb", None, 3),
        may_create=False,
    )
    made = plan(("a", (0,), "3g.20gb"), on=card)
    assert [one.existing_id for one in made.instances] == [1]
    error = refused(*((key, (0,), "3g.20gb") for key in "abc"), on=card)
    assert error.keys == ("c",)
    assert error.remedy == "Run sudo nvidia-smi mig -i 0 -cgi 3g.20gb -C" + AS_ROOT


def test_hidden_places_are_not_promised() -> None:
    card = divided(0, "A100-40", existing(1, "1g.5gb", None, 1, pids=[5]), may_create=False)
    error = refused(("a", (0,), "3g.20gb"), ("b", (0,), "1g.5gb"), on=card)
    assert error.remedy == "Run sudo nvidia-smi mig -i 0 -cgi 3g.20gb,1g.5gb -C" + AS_ROOT


def test_only_the_rows_without_an_instance_are_refused() -> None:
    card = divided(0, "A100-40", existing(1, "3g.20gb", None, 3), may_create=False)
    error = refused(("a", (0,), "3g.20gb"), ("b", (0,), "1g.5gb"), on=card)
    assert error.keys == ("b",)
    assert error.remedy == "Run sudo nvidia-smi mig -i 0 -cgi 1g.5gb -C" + AS_ROOT


def test_the_impossible_is_not_asked_of_the_administrator() -> None:
    error = refused(*((key, (0,), "4g.20gb") for key in "ab"), on=divided(0, may_create=False))
    assert "cannot hold 2 × 4g.20gb" in error.message


# The mode of a GPU ---------------------------------------------------------------------------


def test_mig_where_it_is_off() -> None:
    error = refused(("a", (2,), "3g.20gb"), on=divided(2, enabled=False))
    assert error.message == "MIG is off on GPU 2"
    assert "sudo nvidia-smi -i 2 -mig 1" in str(error.remedy)


def test_mig_that_waits_for_a_reset() -> None:
    error = refused(("a", (2,), "3g.20gb"), on=divided(2, enabled=False, pending=True))
    assert "sudo nvidia-smi -i 2 --gpu-reset" in str(error.remedy)


def test_mig_on_a_gpu_that_has_none() -> None:
    assert "does not support MIG" in refused(("a", (0,), "3g.20gb"), on=plain()).message


@pytest.mark.parametrize("text", ["-", "MPS"])
def test_the_whole_of_a_divided_gpu(text: str) -> None:
    error = refused(("a", (0,), text), on=divided(0))
    assert "MIG mode" in error.message
    assert "1g.5gb, 1g.5gb+me" in str(error.remedy)
    assert "sudo nvidia-smi -i 0 -mig 0" in str(error.remedy)


def test_mig_mode_is_known_without_asking_the_driver_again() -> None:
    inventory = Inventory.of([Gpu(0, "A100", "GPU-x", mig_enabled=True), Gpu(1, "A100", "GPU-y")])
    assert "MIG mode" in refused(("a", (0,), "-"), on=inventory).message
    assert plan(("a", (1,), "MPS"), on=inventory).shares["a"].gpu_uuids == ("GPU-y",)


def test_instances_and_the_whole_of_one_gpu_in_one_workload() -> None:
    error = refused(("a", (0, 1), "-"), ("b", (1,), "3g.20gb"), on=machine(plain(0), divided(1)))
    assert error.keys == ("a",)
    assert error.message.startswith("GPU 1 is in MIG mode")


@pytest.mark.parametrize(
    ("mode", "texts", "problem"),
    [
        (ComputeMode.EXCLUSIVE_PROCESS, ("-", "-"), "only one process may use it, 2 were planned"),
        (ComputeMode.EXCLUSIVE_THREAD, ("MPS", "-", "MPS"), "2 were planned"),
        (ComputeMode.EXCLUSIVE_PROCESS, ("MPS", "MPS"), ""),
        (ComputeMode.EXCLUSIVE_PROCESS, ("-",), ""),
        (ComputeMode.PROHIBITED, ("MPS",), "no process may use it"),
        (ComputeMode.DEFAULT, ("-", "-"), ""),
        (None, ("-", "-"), ""),
    ],
)
def test_a_compute_mode_that_keeps_rows_off(
    mode: ComputeMode | None, texts: Sequence[str], problem: str
) -> None:
    """All clients of an MPS daemon count as one process."""
    rows = [(f"r{number}", (0,), text) for number, text in enumerate(texts)]
    gpu = replace(plain(0), compute_mode=mode)
    if not problem:
        assert len(plan(*rows, on=gpu).shares) == len(rows)
        return
    error = refused(*rows, on=gpu)
    assert error.message == f"GPU 0 is in compute mode {mode}: {error.message.partition(': ')[2]}"
    assert error.message.endswith(problem)
    assert "nvidia-smi -i 0 -c DEFAULT" in str(error.remedy)


@pytest.mark.parametrize(
    ("text", "most", "clients"),
    [("MPS", 48, 48), ("MPS", 60, 60), ("1g.5gb+MPS", 48, 6), ("3g.20gb+MPS", 60, 25)],
)
def test_more_mps_clients_than_a_device_can_hold(text: str, most: int, clients: int) -> None:
    card = divided() if "g." in text else plain()
    gpu = replace(card, most_mps_clients=most)
    rows = [(f"r{number}", (0,), text) for number in range(clients + 1)]
    assert len(plan(*rows[:-1], on=gpu).shares) == clients
    error = refused(*rows, on=gpu)
    assert error.message.startswith(f"{clients + 1} MPS clients on ")
    assert error.message.endswith(f"GPU 0, which can hold {clients}")
    assert len(error.keys) == clients + 1
    plan(*rows, on=replace(card, most_mps_clients=None))


@pytest.mark.parametrize(("name", "clients"), [("NVIDIA A100", 20), ("NVIDIA A30", 36)])
def test_the_most_mps_clients_of_an_instance_of_a_gpu_whose_profiles_are_not_readable(
    name: str, clients: int
) -> None:
    card = divided()
    assert card.mig is not None
    seen = InstanceProfile(-1, "3g.20gb", 3, 20 * 1024, 1, 0)
    compute = ComputeInstance(0, 3, "MIG-a")
    given = (GpuInstance(1, "3g.20gb", None, (compute,)),)
    mig = replace(card.mig, may_create=False, profiles=(seen,), instances=given)
    gpu = replace(card, name=name, mig=mig, most_mps_clients=48)
    rows = [(f"r{number}", (0,), "3g.20gb+MPS") for number in range(clients + 1)]
    assert f"which can hold {clients}" in refused(*rows, on=gpu).message


def test_rows_are_told_apart_by_their_keys() -> None:
    with pytest.raises(ValueError, match="keys"):
        plan(("a", (0,), "-"), ("a", (0,), "-"), on=plain())


def test_more_instances_than_a_profile_allows_do_not_fit() -> None:
    card = divided()
    assert card.mig is not None
    (small,) = (one for one in card.mig.profiles if one.name == "1g.5gb")
    rare = replace(small, name="1g.5gb+gfx", max_count=1)
    offers = replace(card, mig=replace(card.mig, profiles=(*card.mig.profiles, rare)))
    plan(("a", (0,), "1g.5gb+gfx"), on=offers)
    refused(("a", (0,), "1g.5gb+gfx"), ("b", (0,), "1g.5gb+gfx"), on=offers)


def test_compute_slices_run_out_before_memory() -> None:
    """On a GPU whose places alone would allow more."""
    card = divided(0, "A100-40")
    assert card.mig is not None
    (four,) = (one for one in card.mig.profiles if one.name == "4g.20gb")
    wide = replace(four, placements=(Placement(0, 4), Placement(4, 4)), max_count=1)
    broad = replace(wide, name="4g.20gb+gfx")
    offers = replace(card, mig=replace(card.mig, profiles=(*card.mig.profiles[:-1], wide, broad)))
    refused(("a", (0,), "4g.20gb"), ("b", (0,), "4g.20gb+gfx"), on=offers)
