"""The policy of the workload ``auto``, simulated on random machines whose interference is known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from random import Random
from statistics import mean

import pytest

from radt.analysis.advice_choice import MIN_GAIN
from radt.analysis.advice_model import (
    Candidate,
    CandidateRow,
    DevicePlace,
    MeasuredWorkload,
    Resource,
    Solo,
)
from radt.analysis.advice_prediction import DEFAULT_MARGIN
from radt.analysis.baselines import BaselineKey
from radt.analysis.kinds import MAX_LOAD, Kind, KindMeasurements, Member, sharing_of
from radt.collocation.spec import Collocation, Mps
from radt.collocation.topology import published_mig
from radt.runner import placement
from radt.runner.placement import Group, PlacedRow, Reason, WaitingRow, next_group

GB = 1e9
HOST_BYTES = 64 * GB
GPU_BYTES = 40 * GB
CPU_ONLY = ("cpu",)
TWO_GPUS = ("0+1",)
NAIVE = Collocation()
MPS = Collocation(mps=Mps())


@dataclass(frozen=True)
class Lab:
    """A machine with its kinds, and what sharing a device really does to them.

    Attributes:
        solos: Needs and loads of each kind alone.
        durations_s: What each takes alone.
        spread: Standard deviation of the logarithm of a set's interference, which multiplies what
            follows from the loads.
        ran_out_share: Share of the sets in which one row runs out of memory.
        is_calibrating: Sets that ran calibrate predictions.
        seed: Of the interference.
    """

    solos: Mapping[Kind, Solo]
    durations_s: Mapping[Kind, float]
    spread: float = 0.0
    ran_out_share: float = 0.0
    is_calibrating: bool = False
    seed: int = 0

    def slowdowns(self, members: Sequence[Member]) -> list[float]:
        """The true slowdowns of rows that share a device."""
        if len(members) == 1:
            return [1.0]
        drawn = Random(f"{self.seed} {sharing_of(members)}").lognormvariate(0, self.spread)
        return [max(1.0, low * drawn) for low in self.slowdowns_of_loads(members)]

    def slowdowns_of_loads(self, members: Sequence[Member]) -> Iterator[float]:
        """The slowdowns without interference: each resource is divided among the rows."""
        for member in members:
            resources = [Resource.CORES, Resource.SM, Resource.DRAM]
            if member.collocation.mps is None:
                resources.append(Resource.KERNEL)
            yield max(1.0, *(self.load(members, each) for each in resources))

    def load(self, members: Sequence[Member], resource: Resource) -> float:
        return sum(self.solos[member.kind].shares.get(resource, 0.0) for member in members)

    def together_s(self, members: Sequence[Member]) -> float:
        slowdowns = self.slowdowns(members)
        return max(
            self.durations_s[member.kind] * slowdown
            for member, slowdown in zip(members, slowdowns, strict=True)
        )

    def serial_s(self, members: Sequence[Member]) -> float:
        return sum(self.durations_s[member.kind] for member in members)

    def runs_out(self, members: Sequence[Member]) -> Member | None:
        """The row of a set that runs out of memory, although the measured memory fits."""
        drawn = Random(f"memory {self.seed} {sharing_of(members)}").random()
        return members[-1] if len(members) > 1 and drawn < self.ran_out_share else None

    def fits(self, members: Sequence[Member]) -> bool:
        """Whether the measured memory fits with the margin."""
        solos = [self.solos[member.kind] for member in members]
        needs: Counter[str] = Counter()
        for member, solo in zip(members, solos, strict=True):
            needs[member.device] += solo.memory_bytes or 0
        on_gpus = [need for device, need in needs.items() if device != "cpu"]
        host = sum(solo.host_bytes or 0 for solo in solos)
        free = 1 - DEFAULT_MARGIN
        return host <= free * HOST_BYTES and all(need <= free * GPU_BYTES for need in on_gpus)


def make_kind(
    name: str,
    duration_s: float,
    *,
    cores: float = 0.1,
    sm: float | None = None,
    kernel: float | None = None,
    dram: float = 0.1,
    gpu_bytes: float | None = GB,
    host_bytes: float | None = GB,
) -> tuple[Kind, Solo, float]:
    """A kind on GPUs if it has a share of the SMs, else on the CPU."""
    shares = {Resource.CORES: cores}
    device = "cpu" if sm is None else "0"
    place = DevicePlace("node", device, 8, HOST_BYTES)
    if sm is not None:
        shares |= {Resource.SM: sm, Resource.KERNEL: kernel or sm, Resource.DRAM: dram}
        place = replace(place, gpu="A100", gpu_bytes=GPU_BYTES)
    key = BaselineKey(name, (), device, "node")
    memory = host_bytes if sm is None else gpu_bytes
    solo = Solo(key, name, place, shares, memory, host_bytes)
    return Kind(name, (), "local", "cpu" if sm is None else "A100"), solo, duration_s


def lab_of(*kinds: tuple[Kind, Solo, float]) -> Lab:
    return Lab(
        {kind: solo for kind, solo, _ in kinds},
        {kind: duration_s for kind, _, duration_s in kinds},
    )


def random_kind(random: Random, name: str, *, on_gpu: bool) -> tuple[Kind, Solo, float]:
    """A kind of which one, two or several fit beside each other."""
    most = random.choice([0.2, 0.5, 1.0])
    sm = random.uniform(0.06, most) if on_gpu else None
    return make_kind(
        name,
        10 ** random.uniform(1, 3),
        cores=random.uniform(0.06, 0.8 * most),
        sm=sm,
        kernel=None if sm is None else random.uniform(sm, 1.0),
        dram=random.uniform(0.06, most),
        gpu_bytes=random.uniform(0.5, 30 * most) * GB,
        host_bytes=random.uniform(0.5, 30 * most) * GB if random.random() < 0.9 else None,
    )


@dataclass(frozen=True)
class Step:
    """One group of a trace: what was known before, and what became of it."""

    waiting: Sequence[WaitingRow]
    known: KindMeasurements
    group: Group
    sets: Mapping[str, Sequence[Member]]
    taken_s: Mapping[str, float]
    ran_out: Sequence[int]

    @property
    def seconds(self) -> float:
        return max(self.taken_s.values())

    @property
    def members(self) -> list[Member]:
        return [member for members in self.sets.values() for member in members]


@dataclass
class Trace:
    """Rows that are run to their end.

    Attributes:
        lab: What is true.
        rows: All rows.
        has_mps: Given to the policy.
        failing: Lines of rows that fail whenever they run, which measures nothing.
        known: What is known by now.
    """

    lab: Lab
    rows: Sequence[WaitingRow]
    has_mps: bool = False
    failing: frozenset[int] = frozenset()
    known: KindMeasurements = field(default_factory=KindMeasurements)
    steps: list[Step] = field(default_factory=list)

    @property
    def makespan_s(self) -> float:
        return sum(step.seconds for step in self.steps)

    @property
    def serial_s(self) -> float:
        return sum(self.lab.durations_s[row.kind] for row in self.rows)

    def again(self) -> Trace:
        """The same rows, with what is known by now."""
        return replace(self, steps=[])

    def run(self) -> Trace:
        waiting = list(self.rows)
        while waiting:
            group = next_group(waiting, self.known, has_mps=self.has_mps)
            step = self._step(tuple(waiting), group)
            self.steps.append(step)
            started = {placed.line for placed in group.rows}
            alone = [replace(row, is_alone=True) for row in waiting if row.line in step.ran_out]
            waiting = [row for row in waiting if row.line not in started] + alone
            assert len(self.steps) <= 2 * len(self.rows)
        return self

    def _step(self, waiting: Sequence[WaitingRow], group: Group) -> Step:
        kinds = {row.line: row.kind for row in waiting}
        by_device: dict[str, list[tuple[Member, PlacedRow]]] = {}
        for placed in group.rows:
            member = Member(kinds[placed.line], placed.collocation, placed.device)
            by_device.setdefault(placed.device, []).append((member, placed))
        sets = {device: [each for each, _ in on] for device, on in by_device.items()}
        ran_out = [
            placed.line
            for on in by_device.values()
            for member, placed in on
            if member is self.lab.runs_out([each for each, _ in on])
        ]
        taken_s = {device: self.lab.together_s(members) for device, members in sets.items()}
        step = Step(waiting, self.known, group, sets, taken_s, ran_out)
        if not self.failing & {placed.line for placed in group.rows}:
            self.known = self._learned(step)
        return step

    def _learned(self, step: Step) -> KindMeasurements:
        """What is known afterwards, as `KindReader` reads it from a store."""
        known = self.known
        shared_s = dict(known.shared_s)
        for device, members in step.sets.items():
            if len(members) > 1:
                has_run_out = self.lab.runs_out(members) is not None
                taken_s = math.inf if has_run_out else step.taken_s[device]
                shared_s[sharing_of(members)] = taken_s
        if "0+1" in step.sets:
            return known
        if len(step.members) == 1:
            alone = known_alone(self.lab, [step.members[0].kind])
            return replace(
                known,
                solos={**known.solos, **alone.solos},
                durations_s={**known.durations_s, **alone.durations_s},
            )
        calibration = list(known.calibration)
        if self.lab.is_calibrating and len(step.sets) == 1:
            rows = [
                CandidateRow(self.lab.solos[each.kind], each.collocation) for each in step.members
            ]
            slowdowns = () if step.ran_out else tuple(self.lab.slowdowns(step.members))
            calibration.append(
                MeasuredWorkload(Candidate(tuple(rows), ("auto",)), slowdowns, bool(step.ran_out))
            )
        return replace(known, shared_s=shared_s, calibration=calibration)


def random_trace(seed: int) -> Trace:
    """A few rows of a few kinds, of which some are known from earlier."""
    random = Random(seed)
    devices = random.choice([CPU_ONLY, ("0",), ("0", "1"), ("0", "1", "2", "3")])
    on_gpu = devices != CPU_ONLY
    kinds = [random_kind(random, str(number), on_gpu=on_gpu) for number in range(4)]
    options = [(kind, devices) for kind, _, _ in kinds[: random.randint(1, 4)]]
    if on_gpu and random.random() < 0.3:
        kinds.append(random_kind(random, "on the CPU", on_gpu=False))
        options.append((kinds[-1][0], CPU_ONLY))
    if len(devices) > 1 and random.random() < 0.3:
        options.append((kinds[0][0], TWO_GPUS))
    lab = replace(
        lab_of(*kinds),
        spread=random.choice([0.0, 0.3, 0.6]),
        ran_out_share=random.choice([0.0, 0.2]),
        is_calibrating=random.random() < 0.5,
        seed=seed,
    )
    rows = []
    for line in range(2, 2 + random.randint(1, 8)):
        kind, own = random.choice(options)
        cell = random.choice([NAIVE, MPS]) if own == devices and random.random() < 0.2 else None
        chosen = own if random.random() < 0.8 else (random.choice(own),)
        rows.append(WaitingRow(line, kind, chosen, cell if on_gpu else None))
    known = known_alone(lab, [kind for kind in lab.solos if random.random() < 0.4])
    failing = frozenset(row.line for row in rows if random.random() < 0.05)
    return Trace(lab, rows, on_gpu and random.random() < 0.5, failing, known)


def known_alone(lab: Lab, kinds: Iterable[Kind] | None = None) -> KindMeasurements:
    """What is known if kinds, or all, ran alone."""
    chosen = list(lab.solos if kinds is None else kinds)
    return KindMeasurements(
        {kind: lab.solos[kind] for kind in chosen},
        {kind: lab.durations_s[kind] for kind in chosen},
    )


@pytest.fixture(scope="module")
def traces() -> Sequence[Trace]:
    """Thousands of small traces, each run twice, and a large one."""
    random = Random(43)
    lab = replace(
        lab_of(*(random_kind(random, str(number), on_gpu=False) for number in range(10))),
        spread=0.3,
        is_calibrating=True,
    )
    rows = [WaitingRow(line, random.choice(list(lab.solos)), CPU_ONLY) for line in range(2, 45)]
    ran = [Trace(lab, rows).run()]
    for seed in range(1200):
        with pytest.MonkeyPatch.context() as patch:
            if seed % 2:
                patch.setattr(placement, "_MAX_SUBSETS", 0)
            ran.append(random_trace(seed).run())
            ran.append(ran[-1].again().run())
    return ran


def steps_of(traces: Sequence[Trace]) -> Iterator[tuple[Trace, Step]]:
    for trace in traces:
        for step in trace.steps:
            yield trace, step


def shared_of(traces: Sequence[Trace]) -> Iterator[tuple[Trace, Step, Sequence[Member]]]:
    """Each set of rows that shared a device."""
    for trace, step in steps_of(traces):
        for members in step.sets.values():
            if len(members) > 1:
                yield trace, step, members


def test_traces_have_what_they_are_about(traces: Sequence[Trace]) -> None:
    shared = list(shared_of(traces))
    assert sum(len(members) > 2 for _, _, members in shared) > 300
    assert sum(step.known.has_measured(members) for _, step, members in shared) > 100
    assert sum(bool(step.ran_out) for _, step in steps_of(traces)) > 100
    assert sum(len(step.sets) > 2 for _, step in steps_of(traces)) > 100
    slower = [
        trace.lab.together_s(members) > trace.lab.serial_s(members) for trace, _, members in shared
    ]
    assert sum(slower) > 100
    assert {step.group.reason for _, step in steps_of(traces)} == set(Reason)


def test_each_row_runs_once_unless_it_ran_out_of_memory(traces: Sequence[Trace]) -> None:
    for trace in traces:
        begun = Counter(placed.line for step in trace.steps for placed in step.group.rows)
        ran_out = Counter(line for step in trace.steps for line in step.ran_out)
        assert begun == Counter(row.line for row in trace.rows) + ran_out
        for step in trace.steps:
            alone = {row.line for row in step.waiting if row.is_alone}
            is_alone = any(placed.line in alone for placed in step.group.rows)
            assert not is_alone or len(step.group.rows) == 1
            assert not is_alone or step.group.reason in (Reason.FAILED_BESIDE, Reason.NEVER_ALONE)


def test_measured_memory_of_rows_fits(traces: Sequence[Trace]) -> None:
    for trace, step in steps_of(traces):
        if len(step.members) > 1:
            solos = [step.known.solos[member.kind] for member in step.members]
            assert all(solo.memory_bytes is not None for solo in solos)
            assert trace.lab.fits(step.members)


def test_loads_have_a_limit(traces: Sequence[Trace]) -> None:
    for trace, _, members in shared_of(traces):
        for resource in (Resource.CORES, Resource.SM, Resource.DRAM):
            assert trace.lab.load(members, resource) <= MAX_LOAD
    for trace, step in steps_of(traces):
        if len(step.sets) > 1:
            assert trace.lab.load(step.members, Resource.CORES) <= 1


def is_known(row: Member, known: KindMeasurements) -> bool:
    """Whether a kind was measured on what a row runs on."""
    return known.alone_s(row.kind) is not None and row.device != "0+1"


def test_unknown_kinds_run_alone_until_one_row_succeeds(traces: Sequence[Trace]) -> None:
    for trace in traces:
        measured: Counter[Kind] = Counter()
        for step in trace.steps:
            unknown = [each.kind for each in step.members if not is_known(each, step.known)]
            assert bool(unknown) is (step.group.reason is Reason.NEVER_ALONE)
            assert not unknown or len(step.members) == 1
            is_measured = step.group.rows[0].line not in trace.failing and "0+1" not in step.sets
            if unknown and is_measured:
                measured[unknown[0]] += 1
        assert set(measured.values()) <= {1}


def test_unknown_kinds_come_first(traces: Sequence[Trace]) -> None:
    for _, step in steps_of(traces):
        waiting = [Member(row.kind, NAIVE, row.devices[0]) for row in step.waiting]
        if not all(is_known(row, step.known) for row in waiting):
            assert step.group.reason is Reason.NEVER_ALONE


def test_sets_that_failed_are_not_formed_again(traces: Sequence[Trace]) -> None:
    for trace, step, members in shared_of(traces):
        taken_s = step.known.shared_s.get(sharing_of(members), 0.0)
        assert taken_s * MIN_GAIN <= trace.lab.serial_s(members)
        for known, known_s in step.known.shared_s.items():
            has_all = Counter(known) <= Counter(sharing_of(members))
            assert not (has_all and math.isinf(known_s))


def test_serial_time_is_exceeded_only_by_trying_sets(traces: Sequence[Trace]) -> None:
    """A set that is tried costs what it takes beyond those of its rows that it finishes."""
    for trace in traces:
        tried_s = 0.0
        for step in trace.steps:
            placed_on = {placed.line: placed.device for placed in step.group.rows}
            for device, members in step.sets.items():
                if len(members) > 1 and not step.known.has_measured(members):
                    lost = [row for row in trace.rows if row.line in step.ran_out]
                    lost_s = sum(
                        trace.lab.durations_s[row.kind]
                        for row in lost
                        if placed_on[row.line] == device
                    )
                    serial_s = trace.lab.serial_s(members) - lost_s
                    tried_s += max(0.0, step.taken_s[device] - serial_s)
        assert trace.makespan_s <= trace.serial_s + tried_s + 1e-6


def test_cells_are_kept_and_mps_is_for_sets_on_gpus(traces: Sequence[Trace]) -> None:
    for trace, step in steps_of(traces):
        rows = {row.line: row for row in step.waiting}
        for placed in step.group.rows:
            row, beside = rows[placed.line], step.sets[placed.device]
            assert placed.device in row.devices
            is_mps = trace.has_mps and len(beside) > 1 and placed.device != "cpu"
            usual = MPS if is_mps else NAIVE
            assert placed.collocation == (usual if row.collocation is None else row.collocation)


def test_no_device_idles_that_a_waiting_row_could_use(traces: Sequence[Trace]) -> None:
    for trace, step in steps_of(traces):
        if step.group.reason in (Reason.NEVER_ALONE, Reason.FAILED_BESIDE):
            continue
        started = {placed.line for placed in step.group.rows}
        left = [row for row in step.waiting if row.line not in started and not row.is_alone]
        for row in left:
            for device in set(row.devices) - set(step.sets):
                beside = [*step.members, Member(row.kind, NAIVE, device)]
                fits = trace.lab.fits(beside) and trace.lab.load(beside, Resource.CORES) <= 1
                solos = [step.known.solos.get(each.kind) for each in beside]
                has_needs = all(
                    solo is not None and None not in (solo.memory_bytes, solo.host_bytes)
                    for solo in solos
                )
                assert not (fits and has_needs)


def test_two_rows_share_a_gpu_only_if_none_idles(traces: Sequence[Trace]) -> None:
    for trace, step in steps_of(traces):
        rows = {row.line: row for row in step.waiting}
        for device, members in step.sets.items():
            lines = [placed.line for placed in step.group.rows if placed.device == device]
            idle = set.intersection(*(set(rows[line].devices) for line in lines)) - set(step.sets)
            if len(members) == 2 and idle:
                assert trace.lab.load(step.members, Resource.CORES) > 1


def test_what_is_expected_of_measured_sets_comes_true(traces: Sequence[Trace]) -> None:
    for trace, step in steps_of(traces):
        group = step.group
        if group.reason is Reason.NEVER_ALONE:
            assert group.serial_s is group.expected_s is None
            continue
        assert group.serial_s == pytest.approx(trace.lab.serial_s(step.members))
        assert group.expected_s is not None
        if group.reason is not Reason.PREDICTED:
            assert group.expected_s == pytest.approx(step.seconds)
        elif trace.lab.spread == 0:
            assert group.expected_s <= step.seconds + 1e-6


def rows_of(*kinds: Kind, devices: tuple[str, ...] = CPU_ONLY) -> list[WaitingRow]:
    return [WaitingRow(line, kind, devices) for line, kind in enumerate(kinds, start=2)]


def devices_of(group: Group) -> dict[int, str]:
    return {placed.line: placed.device for placed in group.rows}


def test_kinds_that_use_different_resources_share() -> None:
    lab = lab_of(
        make_kind("busy", 100, cores=0.9),
        make_kind("busy too", 90, cores=0.9),
        make_kind("waiting", 80, cores=0.06),
        make_kind("waiting too", 70, cores=0.06),
    )
    group = next_group(rows_of(*lab.solos), known_alone(lab))
    assert set(devices_of(group)) == {2, 4}
    assert group.reason is Reason.PREDICTED
    assert group.serial_s == 180
    assert group.expected_s == pytest.approx(100)


@pytest.mark.parametrize("most", [0, 600])
def test_a_long_row_takes_short_ones_beside_it_that_are_not_worth_it_one_by_one(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_MAX_SUBSETS", most)
    long, short = make_kind("long", 1000), make_kind("short", 45)
    lab = lab_of(long, short)
    rows = rows_of(long[0], *[short[0]] * 7)
    assert len(next_group(rows, known_alone(lab)).rows) == 8
    assert len(next_group(rows[:2], known_alone(lab)).rows) == 1


def test_mps_lets_kernels_of_several_rows_run_at_once() -> None:
    lab = lab_of(make_kind("net", 100, sm=0.3, kernel=1.0))
    rows = rows_of(*lab.solos, *lab.solos, devices=("0",))
    assert next_group(rows, known_alone(lab)).reason is Reason.NO_PARTNER
    both = next_group(rows, known_alone(lab), has_mps=True)
    assert [placed.collocation for placed in both.rows] == [MPS, MPS]


def test_measurements_replace_predictions() -> None:
    lab = lab_of(make_kind("net", 100, cores=0.3))
    (kind,) = lab.solos
    rows = rows_of(*[kind] * 3)
    known = known_alone(lab)
    two, three = (((kind, "-"),) * count for count in (2, 3))
    assert len(next_group(rows, known).rows) == 3
    # Three take at least what two took, which is as long as one after the other.
    slow = replace(known, shared_s={two: 300.0})
    assert next_group(rows, slow).reason is Reason.NO_PARTNER
    slower_three = replace(known, shared_s={three: 290.0})
    assert len(next_group(rows, slower_three).rows) == 2
    good = next_group(rows, replace(known, shared_s={three: 200.0, two: 190.0}))
    assert (len(good.rows), good.reason, good.expected_s) == (3, Reason.MEASURED, 200.0)


def test_measured_sets_calibrate_predictions_of_others() -> None:
    lab = lab_of(make_kind("measured", 50, cores=0.3), make_kind("net", 100, cores=0.3))
    measured, kind = lab.solos
    pair = Candidate((CandidateRow(lab.solos[measured]),) * 2, ("pair",))
    known = replace(known_alone(lab), calibration=[MeasuredWorkload(pair, (1.8, 1.8))])
    group = next_group(rows_of(kind, kind), known)
    assert (len(group.rows), group.reason) == (2, Reason.PREDICTED)
    assert group.expected_s == pytest.approx(180)


def test_rows_that_a_gpu_could_hold_are_spread_over_all() -> None:
    lab = lab_of(make_kind("net", 100, sm=0.1, cores=0.05))
    (kind,) = lab.solos
    gpus = ("0", "1", "2", "3")
    for count, expected in ((2, [1, 1]), (4, [1] * 4), (5, [1, 1, 1, 2]), (8, [2] * 4)):
        rows = rows_of(*[kind] * count, devices=gpus)
        on = Counter(devices_of(next_group(rows, known_alone(lab))).values())
        assert sorted(on.values()) == expected


@pytest.mark.parametrize("two_s", [140.0, 400.0])
def test_rows_stay_together_that_were_measured_to_be_faster_so(two_s: float) -> None:
    lab = lab_of(make_kind("net", 100, sm=0.1))
    (kind,) = lab.solos
    two, three = (((kind, "-"),) * count for count in (2, 3))
    known = replace(known_alone(lab), shared_s={two: two_s, three: 120.0})
    group = next_group(rows_of(*[kind] * 3, devices=("0", "1")), known)
    assert set(devices_of(group).values()) == {"0"}
    assert len(group.rows) == 3


def test_a_row_leaves_the_gpu_to_one_that_needs_it() -> None:
    lab = lab_of(make_kind("net", 100, sm=0.9), make_kind("bound", 90, sm=0.9))
    free, bound = lab.solos
    rows = [WaitingRow(2, free, ("0", "1")), WaitingRow(3, bound, ("0",))]
    assert devices_of(next_group(rows, known_alone(lab))) == {2: "1", 3: "0"}


def test_rows_on_instances_have_their_gpu_to_themselves() -> None:
    """What such a row takes is not known from the whole GPU, nor whether two instances fit."""
    kind, solo, duration_s = make_kind("net", 100, sm=0.1)
    card = published_mig("NVIDIA A100-SXM4-40GB", 40 * 2**30)
    assert card is not None
    place = replace(solo.place, card=card)
    lab = lab_of((kind, replace(solo, place=place), duration_s))
    instance = Collocation.parse("3g.20gb")
    rows = [
        replace(row, collocation=instance) for row in rows_of(*[*lab.solos] * 2, devices=("0",))
    ]
    assert next_group(rows, known_alone(lab)).reason is Reason.NO_PARTNER


def random_rows(
    seed: int, *, spread: float = 0.0, is_calibrating: bool = False
) -> tuple[Trace, float]:
    """At most eight rows of one device, and what the best division of them takes."""
    random = Random(f"rows {seed}")
    on_gpu = random.random() < 0.5
    device = ("0",) if on_gpu else CPU_ONLY
    number = random.randint(1, 4)
    lab = lab_of(*(random_kind(random, str(each), on_gpu=on_gpu) for each in range(number)))
    lab = replace(lab, seed=seed, spread=spread, is_calibrating=is_calibrating)
    kinds = random.choices(list(lab.solos), k=random.randint(2, 8))
    trace = Trace(lab, rows_of(*kinds, devices=device), on_gpu and random.random() < 0.5)
    return trace, best_s(lab, kinds, device[0], trace.has_mps)


def best_s(lab: Lab, rows: Sequence[Kind], device: str, has_mps: bool) -> float:
    """The least that rows take in total, by trying all divisions into sets that may run."""

    @cache
    def set_s(kinds: tuple[Kind, ...]) -> float:
        how = MPS if has_mps and len(kinds) > 1 else NAIVE
        members = [Member(kind, how, device) for kind in kinds]
        is_known = None not in (lab.solos[kind].memory_bytes for kind in kinds)
        loads = [lab.load(members, each) for each in (Resource.CORES, Resource.SM, Resource.DRAM)]
        may_share = is_known and lab.fits(members) and max(loads) <= MAX_LOAD
        return lab.together_s(members) if len(kinds) == 1 or may_share else math.inf

    @cache
    def least_s(kinds: tuple[Kind, ...]) -> float:
        if not kinds:
            return 0.0
        first, *others = kinds
        choices = {
            tuple(at for at, is_in in enumerate(chosen) if is_in)
            for chosen in product((False, True), repeat=len(others))
        }
        return min(
            set_s((first, *(others[at] for at in chosen)))
            + least_s(tuple(kind for at, kind in enumerate(others) if at not in chosen))
            for chosen in choices
        )

    return least_s(tuple(sorted(rows)))


def test_small_divisions_are_within_a_tenth_of_the_best() -> None:
    for seed in range(200):
        trace, best = random_rows(seed)
        assert replace(trace, known=known_alone(trace.lab)).run().makespan_s <= 1.1 * best


def test_several_gpus_do_not_wait_long_for_each_other() -> None:
    """Compared to groups that end together: the best division of one GPU, in equal parts."""
    ratios = []
    for seed in range(60):
        random = Random(f"gpus {seed}")
        lab = lab_of(*(random_kind(random, str(each), on_gpu=True) for each in range(3)))
        solos = {
            kind: replace(solo, shares={**solo.shares, Resource.CORES: 0.05}, host_bytes=GB)
            for kind, solo in lab.solos.items()
        }
        lab = replace(lab, solos=solos)
        rows = rows_of(*random.choices(list(solos), k=12), devices=("0", "1"))
        one = [replace(row, devices=("0",)) for row in rows]
        two_s, one_s = (
            Trace(lab, each, known=known_alone(lab)).run().makespan_s for each in (rows, one)
        )
        longest_s = max(lab.durations_s[row.kind] for row in rows)
        ratios.append(two_s / max(one_s / 2, longest_s))
    assert mean(ratios) < 1.15


def test_grown_divisions_are_close_to_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_MAX_SUBSETS", 0)
    ratios = []
    for seed in range(200):
        trace, best = random_rows(seed)
        ratios.append(replace(trace, known=known_alone(trace.lab)).run().makespan_s / best)
    assert mean(ratios) < 1.02
    assert sum(ratio <= 1.1 for ratio in ratios) >= 0.95 * len(ratios)
    assert max(ratios) < 1.4


@pytest.mark.parametrize("is_calibrating", [False, True])
def test_experience_brings_divisions_close_to_the_best(is_calibrating: bool) -> None:
    """Interference is not predictable here, so runs differ from their prediction by a third."""
    ratios = []
    for seed in range(120):
        trace, best = random_rows(seed, spread=0.3, is_calibrating=is_calibrating)
        rounds = [trace.run()]
        for _ in range(3):
            rounds.append(rounds[-1].again().run())
        ratios.append([each.makespan_s / best for each in rounds])
    first, second, _, fourth = (mean(each) for each in zip(*ratios, strict=True))
    assert second < min(1.1, first)
    assert fourth < 1.07
