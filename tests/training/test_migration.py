"""Steps that are left at every boundary and repeated elsewhere train as if they were not."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from radt.errors import UsageError
from radt.loaders.randomness import RandomState
from radt.training import Job, MultiTrainer, migration
from radt.training.feed import Feed
from radt.training.job import JobStatus
from radt.training.lease import DeviceLease
from radt.training.randomness import OwnRandomness
from tests.training.preempted import Recording, Thief, is_same, thief

_NONE_LONGER_MS = 1e-6  # each block is a segment of its own
_BOUNDARIES = 16  # of a step of the net (test_preemption)
_DEVICES = ["cpu:0", "cpu:1"]  # both the CPU; tensors are copied from one to the other


@pytest.fixture
def somebody() -> Iterator[Thief]:
    with thief(draws=False) as found:
        yield found


@pytest.fixture
def drawing() -> Iterator[Thief]:
    with thief() as found:
        yield found


def _alone(steps: int, *, seed: int = 1, priority: int = 0) -> tuple[Job, list[float]]:
    recording = Recording()
    job = recording.job("alone", steps, seed=seed, priority=priority)
    with MultiTrainer([job]) as trainer:
        assert [job.status for job in trainer.run()] == [JobStatus.FINISHED]
    return job, recording.losses


def _devices_of(trainer: MultiTrainer) -> migration.JobDevices:
    assert trainer._devices is not None
    return trainer._devices


def test_left_and_repeated_at_every_boundary_of_every_step(
    somebody: Thief, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, losses = _alone(2)
    recording = Recording()
    job = recording.job("net", 2, seed=1)
    activations: list[weakref.ref[Tensor]] = []
    for module in job.model.modules():
        module.register_forward_hook(lambda *it: activations.append(weakref.ref(it[2])))
    moves = 0
    move = migration.move

    def checked_move(job: Job, device: torch.device) -> None:
        nonlocal moves
        assert not [it for it in activations if it() is not None]
        before = _optimizer_tensors(job)  # kept, so that their memory is not used again
        move(job, device)
        places = {value.data_ptr() for value in before}
        assert not places & {value.data_ptr() for value in _optimizer_tensors(job)}
        moves += 1

    monkeypatch.setattr(migration, "move", checked_move)
    with MultiTrainer(
        [job], policy="preemptive", devices=_DEVICES, max_segment_ms=_NONE_LONGER_MS
    ) as trainer:
        devices = _devices_of(trainer)
        reached = devices._reached
        boundary = attempt = 0

        def left_later_with_each_attempt(name: str) -> None:
            nonlocal boundary, attempt
            step = devices._step
            if step is None:
                return
            if boundary == attempt:
                somebody.come(step.lease)
                boundary, attempt = 0, attempt + 1
            else:
                boundary += 1
            reached(name)
            if boundary == _BOUNDARIES:  # the last one was passed
                boundary = attempt = 0

        monkeypatch.setattr(devices, "_reached", left_later_with_each_attempt)
        list(trainer.run())
        assert job.failure is None
        steps = 2 * job.epochs
        assert devices.migrations == steps * _BOUNDARIES
        assert moves >= devices.migrations
    assert recording.losses == losses
    assert is_same(job, expected)


def test_the_tensors_of_a_loss_move_too() -> None:
    model, loss = nn.Linear(2, 3), nn.CrossEntropyLoss(weight=torch.ones(3))
    weight = loss.weight
    kept = [weight.data, model.weight.data]  # so that their memory is not used again
    migration.move(
        Job("a", model, torch.optim.SGD(model.parameters(), 0.1), loss), torch.device("cpu:1")
    )
    assert not {it.data_ptr() for it in kept} & {weight.data_ptr(), model.weight.data_ptr()}
    assert loss.weight is weight


def _optimizer_tensors(job: Job) -> list[Tensor]:
    states = job.optimizer.state.values()
    return [value for state in states for key, value in state.items() if key != "step"]


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("at", range(0, _BOUNDARIES, 3))
def test_a_job_that_joins_comes_first_inside_a_step(somebody: Thief, at: int) -> None:
    del somebody
    expected, losses = _alone(2)
    expected_first, losses_first = _alone(1, seed=2)
    recording, recording_first = Recording(), Recording()
    job = recording.job("net", 2, seed=1, priority=5)
    first = recording_first.job("first", 1, seed=2, priority=1)
    with MultiTrainer([job], policy="preemptive", max_segment_ms=_NONE_LONGER_MS) as trainer:
        devices = _devices_of(trainer)
        reached = devices._reached
        boundary = 0

        def joined(name: str) -> None:
            nonlocal boundary
            if devices._step is not None:
                boundary += 1
                if boundary == _BOUNDARIES + 1 + at:  # in the second step
                    trainer.add(first)
            reached(name)

        devices._reached = joined  # type: ignore[method-assign]
        order = [job.name for job in trainer.run()]
        assert len(recording.losses) == 4
    assert order == ["first", "net"]
    assert recording.losses == losses
    assert recording_first.losses == losses_first
    assert is_same(job, expected)
    assert is_same(first, expected_first)


def test_without_another_device_the_step_waits(drawing: Thief) -> None:
    expected, losses = _alone(2)
    recording = Recording()
    job = recording.job("net", 2, seed=1)
    with MultiTrainer(
        [job], policy="preemptive", devices=["cpu"], max_segment_ms=_NONE_LONGER_MS
    ) as trainer:
        devices = _devices_of(trainer)
        reached = devices._reached

        def taken(name: str) -> None:
            if devices._step is not None:
                drawing.come(devices._step.lease)
            reached(name)

        devices._reached = taken  # type: ignore[method-assign]
        list(trainer.run())
        assert devices.migrations == 0
    assert recording.losses == losses
    assert is_same(job, expected)


def test_gradients_that_a_step_of_the_script_adds_to_are_as_before(somebody: Thief) -> None:
    def accumulated(job: Job, seen: list[Tensor]) -> None:
        def step(batch: tuple[Tensor, Tensor]) -> Tensor:
            loss = job.loss(job.model(batch[0]), batch[1])
            loss.backward()  # type: ignore[no-untyped-call]
            seen.extend(p.grad.clone() for p in job.model.parameters() if p.grad is not None)
            return loss

        job._step = step

    expected: list[Tensor] = []
    found: list[Tensor] = []
    plain = Recording().job("net", 3, seed=1, epochs=1)
    accumulated(plain, expected)
    with MultiTrainer([plain]) as trainer:
        list(trainer.run())
    job = Recording().job("net", 3, seed=1, epochs=1)
    accumulated(job, found)
    with MultiTrainer(
        [job], policy="preemptive", devices=_DEVICES, max_segment_ms=_NONE_LONGER_MS
    ) as trainer:
        devices = _devices_of(trainer)
        reached = devices._reached
        boundary = 0

        def taken(name: str) -> None:
            nonlocal boundary
            boundary += devices._step is not None
            if devices._step is not None and boundary % 29 == 28:
                somebody.come(devices._step.lease)
            reached(name)

        devices._reached = taken  # type: ignore[method-assign]
        list(trainer.run())
        assert devices.migrations > 0
    assert len(found) == len(expected) > 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_step_is_not_left_once_an_optimizer_of_another_model_has_stepped() -> None:
    """As in adversarial trainings: what it changed would change twice."""

    def job(other: nn.Module, updates: list[float]) -> Job:
        recording = Recording().job("net", 3, seed=1, epochs=1)
        other_optimizer = torch.optim.Adam(other.parameters())
        other_optimizer.register_step_post_hook(lambda *_: updates.append(other_weight()))

        def other_weight() -> float:
            return next(other.parameters()).sum().item()

        def step(batch: tuple[Tensor, Tensor]) -> Tensor:
            other_optimizer.zero_grad()
            other(batch[0]).square().mean().backward()
            other_optimizer.step()
            recording.optimizer.zero_grad()
            loss = recording.loss(recording.model(batch[0] * other_weight()), batch[1])
            loss.backward()  # type: ignore[no-untyped-call]
            recording.optimizer.step()
            return loss

        recording._step = step
        return recording

    torch.manual_seed(3)
    net = nn.Conv2d(1, 1, 3)
    expected: list[float] = []
    alone = job(copy.deepcopy(net), expected)
    with MultiTrainer([alone]) as trainer:
        list(trainer.run())
    found: list[float] = []
    interrupted = job(net, found)
    with MultiTrainer(
        [interrupted], policy="preemptive", devices=["cpu"], max_segment_ms=_NONE_LONGER_MS
    ) as trainer:
        devices = _devices_of(trainer)
        reached = devices._reached

        once = [True]

        def joined(name: str) -> None:
            if devices._step is not None:
                devices._step.is_interrupted = lambda: bool(once) and once.pop()
            reached(name)

        devices._reached = joined  # type: ignore[method-assign]
        list(trainer.run())
    assert interrupted.failure is None
    assert found == expected
    assert is_same(interrupted, alone)


def test_a_trainer_leaves_no_hooks_and_no_leases() -> None:
    job = Recording().job("net", 1, seed=1)
    with MultiTrainer([job], policy="preemptive", devices=_DEVICES) as trainer:
        list(trainer.run())
        (job.model(torch.zeros(4, 1, 6, 6)).sum()).backward()
    for module in job.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    for device in _DEVICES:
        with DeviceLease(device):
            pass


def test_a_model_that_cannot_be_cut_fails_alone() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    batch = (torch.ones(2, 4), torch.ones(2, 4))
    job = Job("linear", model, optimizer, nn.functional.mse_loss, [batch])
    fine = Recording().job("net", 1, seed=1)
    with MultiTrainer([job, fine], policy="preemptive", max_segment_ms=1e-6) as trainer:
        ended = {job.name: job.status for job in trainer.run()}
    assert ended == {"linear": JobStatus.FAILED, "net": JobStatus.FINISHED}
    assert job.failure is not None
    assert "cannot be cut" in job.failure.message
    assert not optimizer.state


@pytest.mark.parametrize(
    ("policy", "devices", "message"),
    [
        ("preemptive", ["cpu", "cpu"], "devices are cpu, cpu"),
        ("preemptive", ["gpu0"], '"gpu0" is not a device'),
        ("fcfs", ["cpu"], "policy fcfs has no devices"),
    ],
)
def test_bad_arguments_of_devices(policy: str, devices: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MultiTrainer(policy=policy, devices=devices)


def test_a_batch_whose_step_was_left_comes_again_also_from_a_state() -> None:
    class Loader:
        def __iter__(self) -> Iterator[Tensor]:
            for _ in range(3):
                yield torch.rand(2)

    own = OwnRandomness(RandomState.seeded(1))
    feed = Feed(Loader(), own)
    feed.next()
    for _ in range(2):
        before = own.state
        batch = feed.next()
        feed.put_back(batch, before)
    again = Feed(Loader(), OwnRandomness())
    again.load_state_dict(feed.state_dict())
    assert feed.next() is batch
    assert torch.equal(again.next(), batch)
    assert torch.equal(again.next(), feed.next())


def test_jobs_do_not_train_in_lockstep() -> None:
    with pytest.raises(UsageError, match="do not train in lockstep"):
        MultiTrainer(policy="preemptive", share_input=True)
