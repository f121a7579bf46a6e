"""What the dcgm listener is made of: finding the fields that can be watched, and reading dcgmi."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.listeners import dcgm_dmon
from radt.listeners.dcgm import CardPlan, CardState, Judge, occurrences
from radt.listeners.dcgm_dmon import DmonWatch, FieldValue, WatchedValues
from radt.listeners.dcgm_fields import (
    ALL,
    BY_NUMBER,
    METRICS,
    PROFILING,
    XID,
    Refusal,
    Status,
    accept,
)
from radt.listeners.nvidia import GpuHandle
from radt.model import MissingReason

SECOND = 10**9


class Hostengine:
    """Refuses some fields, and some together; counts attempts."""

    def __init__(self, bad: dict[int, int], exclusive: frozenset[int] = frozenset()) -> None:
        self.bad = bad
        self.exclusive = exclusive
        self.watched: list[int] = []
        self.attempts = 0

    def __call__(self, fields: Sequence[int]) -> Refusal | None:
        self.attempts += 1
        for number in fields:
            if number in self.bad:
                return Refusal(self.bad[number])
        if len(self.exclusive & {*self.watched, *fields}) > 1:
            return Refusal(Status.PROFILING_MULTI_PASS)
        self.watched.extend(fields)
        return None


NUMBERS = st.sampled_from(ALL)
OF_ONE_FIELD = st.sampled_from(
    (Status.NOT_SUPPORTED, Status.PROFILING_LIBRARY_ERROR, Status.UNKNOWN_FIELD)
)


@given(st.dictionaries(NUMBERS, OF_ONE_FIELD, max_size=5), st.frozensets(NUMBERS, max_size=4))
def test_all_that_can_be_watched_together_is_watched(
    bad: dict[int, int], exclusive: frozenset[int]
) -> None:
    # A field that another tool's hold is tried with must not be bad, or all are taken to be.
    bad.pop(1001, None)
    engine = Hostengine(bad, exclusive)
    refused = accept(ALL, engine)
    assert sorted([*engine.watched, *refused]) == sorted(ALL), "each once"
    assert bad.keys() <= refused.keys()
    free = exclusive - bad.keys()
    assert len(refused.keys() - bad.keys()) == max(0, len(free) - 1), "one of those stays"


def test_one_bad_field_costs_few_attempts() -> None:
    engine = Hostengine({1006: Status.NOT_SUPPORTED})
    accept(ALL, engine)
    assert engine.attempts <= 12


@pytest.mark.parametrize(
    "status", [Status.MODULE_NOT_LOADED, Status.REQUIRES_ROOT, Status.PROFILING_LIBRARY_ERROR]
)
def test_a_module_that_does_not_work_costs_few_attempts(status: int) -> None:
    engine = Hostengine(dict.fromkeys(PROFILING, status))
    assert accept(ALL, engine).keys() == PROFILING
    assert engine.attempts <= 3


def test_what_may_pass_is_worth_another_try() -> None:
    held = accept(ALL, Hostengine(dict.fromkeys(PROFILING, Status.PROFILING_LIBRARY_ERROR)))
    assert not any(why.lasting for why in held.values())
    absent = accept(ALL, Hostengine({1006: Status.NOT_SUPPORTED}))
    assert absent[1006].lasting


def test_metrics_have_names_of_their_own() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)


# What dcgmi says ----------------------------------------------------------------------------

#: From an issue of NVIDIA/dcgm-exporter (328).
DISCOVERY = """\
2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA A100 80GB PCIe                                          |
|        | PCI Bus ID: 00000000:21:00.0                                         |
|        | Device UUID: GPU-e665046a-bc33-f1cf-45d8-3bb2ebe43516                |
+--------+----------------------------------------------------------------------+
| 11     | Name: NVIDIA A100 80GB PCIe                                          |
|        | PCI Bus ID: 00000000:81:00.0                                         |
|        | Device UUID: GPU-9165ca67-552f-a457-77ad-2f0b8eadede0                |
+--------+----------------------------------------------------------------------+
1 NvSwitches found.
+-----------+
| Switch ID |
+-----------+
| 8         |
+-----------+
0 CPUs found.
+--------+----------------------------------------------------------------------+
| CPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
+--------+----------------------------------------------------------------------+
"""

#: As dcgmi 3.1 prints them.
HIERARCHY = """\
+-------------------+--------------------------------------------------------------------+
| Instance Hierarchy                                                                     |
+===================+====================================================================+
| GPU 0             | GPU GPU-73fa6136-5962-8760-3543-871462d498eb (EntityID: 0)         |
| -> I 0/1          | GPU Instance (EntityID: 3)                                         |
|    -> CI 0/1/0    | Compute Instance (EntityID: 3)                                     |
| -> I 0/13         | GPU Instance (EntityID: 0)                                         |
|    -> CI 0/13/0   | Compute Instance (EntityID: 0)                                     |
+-------------------+--------------------------------------------------------------------+
| GPU 1             | GPU GPU-f04cff15-f427-9612-3f5e-60a6e0cd2018 (EntityID: 1)         |
| -> I 1/1          | GPU Instance (EntityID: 100)                                       |
|    -> CI 1/1/0    | Compute Instance (EntityID: 100)                                   |
+-------------------+--------------------------------------------------------------------+
"""


def test_gpus_of_discovery() -> None:
    assert dcgm_dmon.parse_cards(DISCOVERY) == {
        "GPU-e665046a-bc33-f1cf-45d8-3bb2ebe43516": 0,
        "GPU-9165ca67-552f-a457-77ad-2f0b8eadede0": 11,
    }


def test_gpu_instances_of_discovery() -> None:
    first, second = (
        f"GPU-{tail}"
        for tail in (
            "73fa6136-5962-8760-3543-871462d498eb",
            "f04cff15-f427-9612-3f5e-60a6e0cd2018",
        )
    )
    assert dcgm_dmon.parse_instances(HIERARCHY) == {
        (first, 1): 3,
        (first, 13): 0,
        (second, 1): 100,
    }


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (
            "Error setting watches. Result: -33: This request is serviced by a module of DCGM "
            "that is not currently loaded",
            Status.MODULE_NOT_LOADED,
        ),
        (  # DCGM 2
            "Error setting watches. Result: The third-party Profiling module returned an "
            "unrecoverable error",
            Status.PROFILING_LIBRARY_ERROR,
        ),
        (
            "Error setting watches. Result: Unable to watch one or more of the requested fields "
            "because doing so requires the host engine to be running as root.",
            Status.REQUIRES_ROOT,
        ),
        (
            "Error getting values information. Return -21: The connection to the host engine is "
            "not valid any longer",
            Status.CONNECTION_NOT_VALID,
        ),
        (
            "Error: unable to establish a connection to the specified host: localhost\n"
            "Error: Unable to connect to host engine. Host engine connection "
            "invalid/disconnected.",
            Status.CONNECTION_NOT_VALID,
        ),
        ("Error: Got invalid field ID. '157'. See dcgm_fields.h", Status.UNKNOWN_FIELD),
        ("Segmentation fault", Status.GENERIC_ERROR),
        ("", Status.GENERIC_ERROR),
    ],
)
def test_what_dcgmi_complains_of(text: str, status: int) -> None:
    assert dcgm_dmon.status_of(text) == status


def test_a_field_that_dcgmi_names_is_the_one_refused() -> None:
    refusal = dcgm_dmon.refusal_of("Error: Got invalid field ID. '157'. See dcgm_fields.h")
    assert refusal.culprits == {157}


# What values are worth ----------------------------------------------------------------------


def _judge(
    state: CardState, taken: FieldValue | None, now_s: float, number: int = 1002, begun_s: int = 0
) -> FieldValue | MissingReason | None:
    values = {} if taken is None else {(None, number): taken}
    snapshot = WatchedValues(values, begun_ns=begun_s * SECOND)
    judge = Judge(state, snapshot, round(now_s * SECOND), interval_s=1.0)
    return judge.of(None, BY_NUMBER[number])


def test_an_error_of_before_is_none_though_other_values_came_first(state: CardState) -> None:
    """Nor is one that could not be read for a while."""
    plan = CardPlan(GpuHandle(0, "GPU-x", None), {"0": None})

    def told(**values: FieldValue) -> list[str]:
        numbers = {"xid": XID, "power": 155}
        snapshot = WatchedValues({(None, numbers[name]): one for name, one in values.items()})
        return [one.name for one in occurrences(plan, state, snapshot)]

    old = FieldValue(31.0, SECOND)
    assert told(power=FieldValue(250.0, SECOND)) == []
    assert told(power=FieldValue(250.0, SECOND), xid=old) == []
    assert told(power=FieldValue(250.0, SECOND), xid=FieldValue(MissingReason.LOST, SECOND)) == []
    assert told(xid=old) == []
    assert told(xid=FieldValue(79.0, 2 * SECOND)) == ["XID 79"]


def test_none_so_far_and_then_one_is_an_error(state: CardState) -> None:
    plan = CardPlan(GpuHandle(0, "GPU-x", None), {"0": None})
    assert not list(
        occurrences(plan, state, WatchedValues({(None, XID): FieldValue(None, SECOND)}))
    )
    found = list(occurrences(plan, state, WatchedValues({(None, XID): FieldValue(31.0, SECOND)})))
    assert [one.name for one in found] == ["XID 31"]


@pytest.fixture
def state() -> CardState:
    return CardState(object.__new__(DmonWatch), frozenset(), paused=False, begun_ns=0)


def test_a_value_is_given_once_and_lost_when_three_intervals_late(state: CardState) -> None:
    first, second = FieldValue(0.5, 2 * SECOND), FieldValue(0.25, 9 * SECOND)
    assert _judge(state, first, 2.1) == first
    assert _judge(state, first, 3.1) is None
    assert _judge(state, first, 4.9) is None
    assert _judge(state, first, 5.1) is MissingReason.LOST
    assert _judge(state, first, 6.1) is MissingReason.LOST
    assert _judge(state, second, 9.1) == second


def test_the_first_value_is_waited_for(state: CardState) -> None:
    assert _judge(state, None, 7.9) is None
    assert _judge(state, None, 8.1) is MissingReason.LOST


def test_a_value_from_before_the_watch_is_not_given(state: CardState) -> None:
    kept = FieldValue(0.5, -30 * SECOND)
    assert _judge(state, kept, 0.1) is None
    assert _judge(state, kept, 8.1) is MissingReason.LOST


def test_blank_at_first_is_nothing_and_then_unsupported(state: CardState) -> None:
    assert _judge(state, FieldValue(None, SECOND), 1.1) is None
    assert _judge(state, FieldValue(None, 8 * SECOND), 8.1) is MissingReason.UNSUPPORTED


@pytest.mark.parametrize(
    ("number", "reason"), [(1002, MissingReason.PAUSED), (155, MissingReason.LOST)]
)
def test_blank_after_values(state: CardState, number: int, reason: MissingReason) -> None:
    _judge(state, FieldValue(0.5, SECOND), 1.1, number)
    assert _judge(state, FieldValue(None, 2 * SECOND), 2.1, number) is reason
    # dmon was started again, and its first values are blank.
    assert _judge(state, FieldValue(None, 4 * SECOND), 4.1, number, begun_s=3) is None
    assert _judge(state, FieldValue(0.25, 5 * SECOND), 5.1, number, begun_s=3) is not None
    assert _judge(state, FieldValue(None, 6 * SECOND), 6.1, number, begun_s=3) is reason
    assert _judge(state, FieldValue(None, 16 * SECOND), 16.1, number, begun_s=7) is reason
