"""Jobs of one process train as if each were alone, whatever the policy and whoever stops."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict, UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader

from radt.errors import TrainingError, UsageError
from radt.loaders.batches import tensors_of
from radt.training import Job, MultiTrainer
from radt.training.job import JobStatus
from radt.training.policies import POLICIES, Candidate, Policy
from tests.support.waiting import TIMEOUT_S
from tests.training.trainings import (
    BATCHES,
    Counted,
    Kept,
    network,
    own_order,
    plain_losses,
    shuffled,
)


def _ran_to_its_end(trainer: MultiTrainer, jobs: list[Job]) -> list[str]:
    """Run, and resume whatever has been paused, until all jobs have ended."""
    order = []
    while not all(job.status.has_ended for job in jobs):
        order += [job.name for job in trainer.run() if job.status.has_ended]
        for job in jobs:
            trainer.resume(job.name)
    return order


# Each as if it were alone ----------------------------------------------------------------------


@given(
    policy=st.sampled_from(list(POLICIES)),
    priorities=st.lists(st.integers(0, 1), min_size=3, max_size=3),
    epochs=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    # At a step of all jobs together: pause or resume one of them.
    events=st.dictionaries(
        st.integers(1, 30), st.tuples(st.integers(0, 2), st.booleans()), max_size=6
    ),
    share=st.booleans(),
)
def test_losses_are_those_of_the_plain_loop(
    policy: str,
    priorities: list[int],
    epochs: list[int],
    events: dict[int, tuple[int, bool]],
    share: bool,
) -> None:
    kept, steps = Kept(), 0

    def at_step(name: str, loss: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        if steps in events:
            number, is_pause = events[steps]
            (trainer.pause if is_pause else trainer.resume)(f"job {number}")
        torch.rand(1)  # a neighbour's draws are nobody else's
        return loss

    share &= policy != "preemptive"  # whose jobs do not train in lockstep
    loader = own_order() if share else None
    jobs = [
        kept.job(f"job {number}", number, epochs[number], loader, priority=priorities[number])
        for number in range(3)
    ]
    kept.hook = at_step
    with MultiTrainer(jobs, policy=policy, share_input=share) as trainer:
        _ran_to_its_end(trainer, jobs)
    assert {job.status for job in jobs} == {JobStatus.FINISHED}
    for number, job in enumerate(jobs):
        expected = _drawing(number, epochs[number], share)
        assert kept.losses[job.name] == expected


def _drawing(seed: int, epochs: int, share: bool) -> list[float]:
    """Return the losses of a job alone that draws a number more in each step."""
    kept = Kept(hook=lambda name, loss: (torch.rand(1), loss)[1])
    job = kept.job("alone", seed, epochs, own_order() if share else None)
    assert job.loader is not None
    for _ in range(epochs):
        with job.randomness.in_use():
            for batch in job.loader:
                job.step(batch)
        job.end_epoch()
    return kept.losses["alone"]


@pytest.mark.parametrize("policy", POLICIES)
def test_losses_are_those_of_a_loop_without_radt(policy: str) -> None:
    kept = Kept()
    jobs = [kept.job(f"job {seed}", seed) for seed in range(3)]
    with MultiTrainer(jobs, policy=policy) as trainer:
        assert [job.status for job in trainer.run()] == [JobStatus.FINISHED] * 3
    assert kept.losses == {f"job {seed}": plain_losses(seed, 3) for seed in range(3)}


def test_a_state_loads_strictly_into_the_original_class() -> None:
    kept = Kept()
    with MultiTrainer([kept.job("one", 1), kept.job("two", 2)], policy="round_robin") as trainer:
        for job in trainer.run():
            fresh = network(seed=5)
            fresh.load_state_dict(job.model.state_dict(), strict=True)


def test_other_threads_pause_and_resume() -> None:
    kept = Kept()
    jobs = [kept.job(f"job {seed}", seed, epochs=12) for seed in range(3)]
    is_over = threading.Event()
    with MultiTrainer(jobs, policy="round_robin") as trainer:

        def disturb(name: str) -> None:
            while not is_over.is_set():
                trainer.pause(name)
                trainer.resume(name)

        threads = [threading.Thread(target=disturb, args=(job.name,)) for job in jobs[:2]]
        for thread in threads:
            thread.start()
        paused = 0
        try:
            while not all(job.status.has_ended for job in jobs):
                paused += sum(1 for _ in trainer.run())
        finally:
            is_over.set()
            for thread in threads:
                thread.join(TIMEOUT_S)
    assert paused >= 3
    assert kept.losses == {f"job {seed}": plain_losses(seed, 12) for seed in range(3)}


# The order -------------------------------------------------------------------------------------


def _order(kept: Kept) -> list[str]:
    """Have the names of the jobs in the order of their epochs."""
    names: list[str] = []

    def note(name: str, loss: Tensor) -> Tensor:
        if len(kept.losses[name]) % BATCHES == 0:
            names.append(name)
        return loss

    kept.hook = note
    return names


def test_first_come_first_served() -> None:
    kept = Kept()
    order = _order(kept)
    jobs = [kept.job("large", 0, 2, width=20), kept.job("small", 1, 1)]
    with MultiTrainer(jobs, policy="fcfs") as trainer:
        assert [job.name for job in trainer.run()] == ["large", "small"]
    assert order == ["large", "large", "small"]


def test_shortest_job_first_counts_parameters_and_epochs() -> None:
    kept = Kept()
    jobs = [
        kept.job("large", 0, 2, width=20),
        kept.job("long", 1, 3),
        kept.job("short", 2, 2),
    ]
    with MultiTrainer(jobs, policy="sjf") as trainer:
        assert [job.name for job in trainer.run()] == ["short", "long", "large"]


def test_round_robin_gives_each_an_epoch_in_turn() -> None:
    kept = Kept()
    order = _order(kept)
    jobs = [kept.job("a", 0, 3), kept.job("b", 1, 1), kept.job("c", 2, 2)]
    with MultiTrainer(jobs, policy="round_robin") as trainer:
        assert [job.name for job in trainer.run()] == ["b", "c", "a"]
    assert order == ["a", "b", "c", "a", "c", "a"]


def test_equal_priorities_take_turns() -> None:
    kept = Kept()
    order = _order(kept)
    jobs = [
        kept.job("low", 0, 1, priority=2),
        kept.job("a", 1, 2, priority=1),
        kept.job("b", 2, 2, priority=1),
    ]
    with MultiTrainer(jobs, policy="priority") as trainer:
        assert [job.name for job in trainer.run()] == ["a", "b", "low"]
    assert order == ["a", "b", "a", "b", "low"]


def test_a_job_with_precedence_takes_over_after_the_step_under_way() -> None:
    kept = Kept()
    urgent = kept.job("urgent", 1, 1, priority=0)
    at: list[int] = []

    def join(name: str, loss: Tensor) -> Tensor:
        if name == "first" and len(kept.losses[name]) == 2:
            trainer.add(urgent)
        if name == "urgent" and not at:
            at.append(len(kept.losses["first"]))
        return loss

    kept.hook = join
    with MultiTrainer([kept.job("first", 0, 2, priority=1)], policy="priority") as trainer:
        assert [job.name for job in trainer.run()] == ["urgent", "first"]
    assert at == [3]
    assert kept.losses == {"first": plain_losses(0, 2), "urgent": plain_losses(1, 1)}


def test_a_policy_of_ones_own() -> None:
    class LastCome(Policy):
        def rank(self, candidate: Candidate) -> tuple[float, ...]:
            return (-candidate.joined,)

    kept = Kept()
    with MultiTrainer([kept.job("a", 0), kept.job("b", 1)], policy=LastCome()) as trainer:
        assert [job.name for job in trainer.run()] == ["b", "a"]


def test_a_cancelled_job_ends_and_the_others_go_on() -> None:
    kept = Kept()

    def cancel(name: str, loss: Tensor) -> Tensor:
        if name == "a" and len(kept.losses["a"]) == 6:
            trainer.cancel("a")
        return loss

    kept.hook = cancel
    jobs = [kept.job("a", 0), kept.job("b", 1)]
    with MultiTrainer(jobs) as trainer:
        ended = [(job.name, job.status) for job in trainer.run()]
        trainer.pause("a")  # has ended: nothing happens
    assert ended == [("a", JobStatus.CANCELLED), ("b", JobStatus.FINISHED)]
    assert kept.losses["a"] == plain_losses(0, 3)[:7]
    assert kept.losses["b"] == plain_losses(1, 3)


def test_a_job_that_is_cancelled_at_its_end_has_finished() -> None:
    class Loader(DataLoader[Any]):
        def __iter__(self) -> Any:
            yield from super().__iter__()
            trainer.cancel("a")

    job = Kept().job("a", 0, 1, Loader(Counted(), 10))
    with MultiTrainer([job]) as trainer:
        assert [(job.name, job.status) for job in trainer.run()] == [("a", JobStatus.FINISHED)]


# Shared input ----------------------------------------------------------------------------------


def test_a_data_set_of_several_jobs_is_read_once() -> None:
    kept, dataset = Kept(), Counted()
    loader = own_order(dataset)
    jobs = [kept.job(f"job {seed}", seed, 2, loader) for seed in range(3)]
    with MultiTrainer(jobs, share_input=True) as trainer:
        list(trainer.run())
    assert dataset.reads == 2 * len(dataset)
    for seed in range(3):
        assert kept.losses[f"job {seed}"] == plain_losses(seed, 2, own_order)


def test_a_loader_in_the_place_of_one_that_is_gone_is_not_shared() -> None:
    class Batches:
        """Draws from the random states of its job."""

        def __iter__(self) -> Iterator[object]:
            return iter(shuffled())

    def add(loader: Batches, *names: str) -> None:
        for name in names:
            job = kept.job(name, 0, 1)
            job.loader = loader
            jobs.append(job)

    kept, jobs = Kept(), list[Job]()
    add(Batches(), "a", "b")
    place = id(jobs[0].loader)
    with MultiTrainer(jobs, share_input=True) as trainer:
        jobs.clear()
        list(trainer.run())
        gc.collect()
        fresh = [Batches() for _ in range(1000)]
        add(next((each for each in fresh if id(each) == place), fresh[0]), "c")
        trainer.add(jobs[0])
        list(trainer.run())
    assert kept.losses["c"] == plain_losses(0, 1)


def test_a_job_that_joins_while_the_first_batch_is_loaded_misses_none() -> None:
    class Loader(DataLoader[Any]):
        def __iter__(self) -> Any:
            if late.loader is None:
                late.loader = self
                trainer.add(late)
            return super().__iter__()

    kept = Kept()
    late = kept.job("late", 1, 2)
    late.loader = None
    loader = Loader(Counted(), 10, shuffle=True, generator=torch.Generator().manual_seed(9))
    with MultiTrainer([kept.job("first", 0, 2, loader)], share_input=True) as trainer:
        assert {job.status for job in trainer.run()} == {JobStatus.FINISHED}
    assert kept.losses == {
        "first": plain_losses(0, 2, own_order),
        "late": plain_losses(1, 2, own_order),
    }


def test_jobs_that_do_not_share_read_their_own_order_of_one_loader() -> None:
    kept, loader = Kept(), own_order()
    jobs = [kept.job(f"job {seed}", seed, 2, loader) for seed in range(2)]
    with MultiTrainer(jobs, policy="round_robin") as trainer:
        list(trainer.run())
    for seed in range(2):
        assert kept.losses[f"job {seed}"] == plain_losses(seed, 2, own_order)


def test_a_job_that_changes_a_shared_batch_fails_and_changes_nothing_for_the_others() -> None:
    kept, loader = Kept(), own_order()
    vandal = kept.job("vandal", 1, 2, loader)
    vandal.model.register_forward_pre_hook(
        lambda module, inputs: inputs[0].zero_() if len(kept.losses["vandal"]) == 7 else None
    )
    jobs = [kept.job("before", 0, 2, loader), vandal, kept.job("behind", 2, 2, loader)]
    with MultiTrainer(jobs, share_input=True) as trainer:
        ended = [job.name for job in trainer.run()]
    assert ended == ["vandal", "before", "behind"]
    assert vandal.failure is not None
    assert "has changed a batch" in vandal.failure.message
    assert kept.losses["before"] == plain_losses(0, 2, own_order)
    assert kept.losses["behind"] == plain_losses(2, 2, own_order)


def test_a_shared_loader_that_raises_fails_all_that_wait_for_it() -> None:
    def loader() -> Iterator[object]:
        yield from list(own_order())[:2]
        raise OSError("the disk is gone")

    class Breaking:
        def __iter__(self) -> Iterator[object]:
            return loader()

    kept, breaking = Kept(), Breaking()
    jobs = [kept.job(f"job {seed}", seed, 2) for seed in range(3)]
    for job in jobs[:2]:
        job.loader = breaking
    with MultiTrainer(jobs, share_input=True) as trainer:
        ended = {job.name: job.status for job in trainer.run()}
    assert ended == {
        "job 0": JobStatus.FAILED,
        "job 1": JobStatus.FAILED,
        "job 2": JobStatus.FINISHED,
    }
    assert [len(kept.losses[job.name]) for job in jobs[:2]] == [2, 2]
    assert kept.losses["job 2"] == plain_losses(2, 2)


def test_a_change_of_the_data_themselves_fails_all_that_share_them() -> None:
    kept, batches = Kept(), [tuple(batch) for batch in own_order()]
    jobs = [kept.job(f"job {seed}", seed, 2) for seed in range(3)]
    for job in jobs[:2]:
        job.loader = batches
    jobs[0].model.register_forward_pre_hook(lambda module, inputs: inputs[0].zero_())
    with MultiTrainer(jobs, share_input=True) as trainer:
        list(trainer.run())
    assert [job.status for job in jobs] == [
        JobStatus.FAILED,
        JobStatus.FAILED,
        JobStatus.FINISHED,
    ]
    assert jobs[1].failure is not None
    assert "in the memory of the data" in jobs[1].failure.message


# Bad input -------------------------------------------------------------------------------------


def test_an_unknown_policy_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="fcfs, priority, sjf, round_robin"):
        MultiTrainer(policy="fastest")


def test_what_cannot_train_is_refused_before_anything_does() -> None:
    kept = Kept()
    job = kept.job("one", 0)
    with pytest.raises(UsageError, match="two jobs are named one"):
        MultiTrainer([job, kept.job("one", 1)])
    job.loader = None
    with pytest.raises(UsageError, match="no loader"):
        MultiTrainer([job])
    with pytest.raises(UsageError, match='fuse is "always"'):
        MultiTrainer(fuse="always")
    with pytest.raises(UsageError, match="'much' is not an amount of memory"):
        MultiTrainer(memory="much")
    loader = kept.job("other", 2).loader
    with pytest.raises(UsageError, match="generator"):
        MultiTrainer([kept.job(name, 1, loader=loader) for name in "ab"], share_input=True)
    assert not any(kept.losses.values())


def test_a_job_goes_on_in_another_trainer_at_its_epoch_only() -> None:
    begun: list[int] = []

    class Loader(DataLoader[Any]):
        def set_epoch(self, epoch: int) -> None:
            begun.append(epoch)

    kept = Kept()
    job = kept.job("a", 0, 3, Loader(Counted(), 10))
    with MultiTrainer([job]) as trainer:

        def pause(name: str, loss: Tensor) -> Tensor:
            if job.epoch == 1:
                trainer.pause(name)
            return loss

        kept.hook = pause
        assert [job.status for job in trainer.run()] == [JobStatus.PAUSED]
    with pytest.raises(UsageError, match="has done 1 batches of an epoch"):
        MultiTrainer([job])
    job.batches = 0
    job.status = JobStatus.READY
    with MultiTrainer([job]) as trainer:
        kept.hook = lambda _, loss: loss
        assert [job.epoch for job in trainer.run()] == [3]
    job.status = JobStatus.READY
    with MultiTrainer([job]) as trainer:
        assert [job.status for job in trainer.run()] == [JobStatus.FINISHED]
    assert begun == [0, 1, 1, 2]


def test_a_closed_trainer_and_an_unknown_job_are_refused() -> None:
    kept = Kept()
    with MultiTrainer([kept.job("one", 0)]) as trainer, pytest.raises(UsageError, match="one"):
        trainer.pause("two")
    with pytest.raises(TrainingError, match="closed"):
        list(trainer.run())
    with pytest.raises(UsageError, match="closed"):
        trainer.add(kept.job("two", 1))


# Batches ---------------------------------------------------------------------------------------


class _Pair(NamedTuple):
    inputs: Tensor
    target: Tensor


@dataclass(frozen=True)
class _Record:
    inputs: Tensor
    note: str = "kept as it is"


class _Far(nn.Module):
    """A model on a device, which says where its arguments are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3, device="meta")
        self.seen: set[str] = set()

    def forward(self, inputs: Any, scale: Tensor | None = None) -> Any:
        self.seen |= {str(tensor.device) for tensor in tensors_of([inputs, scale])}
        return inputs


_X = torch.zeros(2, 4)


@pytest.mark.parametrize("policy", ["fcfs", "round_robin", "shared"])
@pytest.mark.parametrize(
    "batch",
    [
        (_X, _X),
        _Pair(_X, _X),
        ({"a": [_X, (_X,)]}, _X),
        {"inputs": _X, "scale": _X},
        OrderedDict(inputs={"deep": _X}),
        UserDict(inputs=_X, scale=_X),
        _Record(_X),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_batches_of_any_structure_come_to_the_device_of_the_job(policy: str, batch: Any) -> None:
    """PyTorch's device without memory stands for a GPU."""
    targets: set[str] = set()

    def loss(_output: Any, target: Any) -> Tensor:
        targets.update(str(tensor.device) for tensor in tensors_of(target))
        return torch.zeros((), requires_grad=True)

    loader = [batch, batch]
    models = [_Far(), _Far()]
    jobs = [
        Job(str(at), net, torch.optim.SGD(net.parameters(), 0.1), loss, loader)
        for at, net in enumerate(models)
    ]
    shared = {"share_input": True} if policy == "shared" else {"policy": policy}
    with MultiTrainer(jobs, **shared) as trainer:
        assert [job.failure for job in trainer.run()] == [None, None]
    assert [net.seen for net in models] == [{"meta"}, {"meta"}]
    assert targets == {"meta"}
    assert {str(tensor.device) for tensor in tensors_of(batch)} == {"cpu"}
