"""Fused jobs train as each alone up to rounding; the faster way is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from radt.training import Job, MultiTrainer
from radt.training.chain import is_chain
from radt.training.fusion import Trial, Way
from radt.training.job import FailureKind, JobStatus
from radt.training.memory import resident_bytes
from radt.training.stack import Stack, structure_of
from tests.training.trainings import own_order

Optimizer = Callable[[nn.Module, int], optim.Optimizer]

OPTIMIZERS: dict[str, Optimizer] = {
    "one rate": lambda model, _: optim.Adam(model.parameters(), 0.01),
    "rates of their own": lambda model, seed: optim.SGD(
        model.parameters(), 0.1 / (1 + seed), momentum=0.9, weight_decay=1e-3
    ),
    "two groups": lambda model, seed: optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.ndim < 2], "lr": 0.01 * (1 + seed % 2)},
        ],
        lr=0.02,
    ),
}


def _fused(jobs: list[Job], **options: Any) -> MultiTrainer:
    """Return a trainer that does not try the other way."""
    trainer = MultiTrainer(jobs, fuse="auto", **options)
    trainer.ways[tuple(job.name for job in jobs)] = Trial(Way.FUSED)
    return trainer


def _job(seed: int, optimizer: Optimizer, loss: Any = functional.cross_entropy) -> Job:
    """Return a job without dropout, so that its losses can be compared.

    No layer is followed by batch norm: its bias would have a gradient of rounding errors alone.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    model[1].weight.requires_grad_(False)
    return Job(f"job {seed}", model, optimizer(model, seed), loss, own_order(), epochs=4)


def _state(job: Job) -> dict[str, Tensor]:
    return {
        **job.model.state_dict(),
        **{
            f"{number} {key}": value
            for number, state in job.optimizer.state_dict()["state"].items()
            for key, value in state.items()
        },
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_training_is_that_of_each_job_up_to_rounding(name: str) -> None:
    alone = [_job(seed, OPTIMIZERS[name]) for seed in range(4)]
    fused = [_job(seed, OPTIMIZERS[name]) for seed in range(4)]
    batches = list(own_order())
    for job in (*alone, fused[3]):
        job.step(batches[0])  # so that the optimiser has a state, and one has done a step more
    for _ in range(2):  # stacked, separated and stacked again
        stack = Stack(fused)
        for batch in batches[1:]:
            losses = stack.step([batch] * 4)
            expected = [job.step(batch) for job in alone[3:]]
            torch.testing.assert_close(losses[3:], torch.stack(expected), rtol=1e-4, atol=1e-5)
        stack.separate()
    torch.testing.assert_close(_state(fused[3]), _state(alone[3]), rtol=1e-3, atol=1e-4)
    others = [_job(seed, OPTIMIZERS[name]) for seed in range(3)]
    for ours, plain in zip(fused, others, strict=False):
        for batch in batches[1:] * 2:
            plain.step(batch)
        torch.testing.assert_close(_state(ours), _state(plain), rtol=1e-3, atol=1e-4)


class _Activated(nn.Module):
    """A model with settings that are not modules."""

    def __init__(self, activation: Callable[[Tensor], Tensor], sizes: list[int]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.activation = activation
        self.sizes = sizes

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer(self.activation(inputs))
        return output


def _structure(model: nn.Module, loss: Any = functional.cross_entropy, *more: Tensor) -> object:
    return structure_of(
        Job("a", model, optim.SGD([*model.parameters(), *more], 0.1), loss, own_order())
    )


def test_jobs_that_differ_in_what_is_not_stacked_are_not_fused() -> None:
    structure = _structure(_Activated(torch.tanh, [1]))
    assert structure is not None
    assert structure == _structure(_Activated(torch.tanh, [1]))
    assert structure != _structure(_Activated(torch.relu, [1]))
    assert structure != _structure(_Activated(torch.tanh, [2]))
    hooked = _Activated(torch.tanh, [1])
    hooked.register_forward_hook(lambda *_: None)
    assert structure != _structure(hooked)

    weighted = [nn.CrossEntropyLoss(weight=torch.rand(3)) for _ in range(2)]
    one, same, other = (
        _structure(_Activated(torch.tanh, [1]), loss)
        for loss in (weighted[0], weighted[0], weighted[1])
    )
    assert one == same != other


def test_a_job_that_trains_more_than_its_model_is_not_fused() -> None:
    assert (
        _structure(nn.Linear(4, 3), functional.cross_entropy, nn.Parameter(torch.ones(1))) is None
    )


def test_a_job_with_hooks_on_gradients_or_updates_is_not_fused() -> None:
    jobs = [_job(seed, OPTIMIZERS["one rate"]) for seed in range(3)]
    jobs[0].optimizer.register_step_pre_hook(lambda *_: None)
    jobs[1].model[3].weight.register_hook(lambda gradient: gradient)  # type: ignore[index, union-attr, operator]
    jobs[2].model[3].weight.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[index, union-attr, operator]
    assert [structure_of(job) for job in jobs] == [None] * 3


def _chain_job(seed: int, optimizer: Optimizer, dropout: float = 0.0) -> Job:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(4, 6),
        nn.Sequential(nn.Tanh(), nn.Linear(6, 5, bias=False), nn.ReLU(inplace=True)),
        nn.Linear(5, 3),
    )
    model[2].weight.requires_grad_(False)
    return Job(
        f"job {seed}",
        model,
        optimizer(model, seed),
        functional.cross_entropy,
        own_order(),
        epochs=4,
    )


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_chain_of_linear_layers_trains_as_each_model_up_to_rounding(
    name: str, shared: bool
) -> None:
    alone = [_chain_job(seed, OPTIMIZERS[name]) for seed in range(4)]
    fused = [_chain_job(seed, OPTIMIZERS[name]) for seed in range(4)]
    assert is_chain(fused[0].model)
    batches = list(own_order())[:4]
    for _ in range(2):  # stacked, separated and stacked again
        stack = Stack(fused)
        for at in range(4):
            given = [batches[at if shared else (at + number) % 4] for number in range(4)]
            losses = stack.step(given)
            expected = [job.step(batch) for job, batch in zip(alone, given, strict=True)]
            torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-4, atol=1e-5)
        stack.separate()
    for job, plain in zip(fused, alone, strict=True):
        torch.testing.assert_close(_state(job), _state(plain), rtol=1e-3, atol=1e-4)


def test_a_parameter_with_fewer_updates_than_others_keeps_its_own_count() -> None:
    groups = [[_chain_job(seed, OPTIMIZERS["one rate"]) for seed in range(3)] for _ in range(2)]
    batches = list(own_order())[:2]
    for job in [*groups[0], *groups[1]]:
        job.step(batches[0])
        if job.name == "job 1":
            job.optimizer.state[job.model[4].bias]["step"] += 7  # type: ignore[index, union-attr]
    fused, alone = groups
    stack = Stack(fused)
    stack.step([batches[1]] * 3)
    stack.separate()
    for job, plain in zip(fused, alone, strict=True):
        plain.step(batches[1])
        torch.testing.assert_close(_state(job), _state(plain), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "loss",
    [
        functional.cross_entropy,
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(ignore_index=1),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda output, labels: functional.nll_loss(output.log_softmax(1), labels),
    ],
)
def test_losses_of_a_chain_of_images_are_those_of_each_model(loss: Any, shared: bool) -> None:
    chance = torch.Generator().manual_seed(0)
    batches = [
        (
            torch.randn(6, 2, 8, 8, generator=chance),
            torch.tensor([0, 1, 2, -100, 1, -100 * min(number, 1)]),
        )
        for number in range(3)
    ]
    if isinstance(loss, nn.CrossEntropyLoss) and loss.ignore_index == 1:
        batches = [(inputs, labels.clamp(0)) for inputs, labels in batches]
    jobs = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.AvgPool2d(4), nn.GELU(), nn.Flatten(), nn.Linear(8, 3))
        optimizer = optim.SGD(model.parameters(), 0.1)
        jobs.append(Job(f"job {seed}", model, optimizer, loss, batches))
    given = [batches[0]] * 3 if shared else batches
    losses = Stack(jobs).step(given)
    expected = [job.step(batch) for job, batch in zip(jobs, given, strict=True)]
    torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_each_model_of_a_chain_drops_others() -> None:
    jobs = [_chain_job(0, OPTIMIZERS["one rate"], dropout=0.5) for _ in range(4)]
    losses = Stack(jobs).step([next(iter(own_order()))] * 4)
    assert len(set(losses.tolist())) == 4


def test_what_is_not_a_chain_of_such_layers_is_none() -> None:
    hooked = nn.Sequential(nn.Linear(4, 3))
    hooked[0].register_forward_hook(lambda *_: None)
    normed = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    flat = nn.Sequential(nn.Flatten(0), nn.Linear(4, 3))
    assert not any(map(is_chain, (hooked, normed, flat, nn.Softmax(0))))


def test_each_model_has_its_own_batch() -> None:
    jobs = [_job(seed, OPTIMIZERS["one rate"]) for seed in range(2)]
    plain = [_job(seed, OPTIMIZERS["one rate"]) for seed in range(2)]
    batches = list(own_order())[:2]
    losses = Stack(jobs).step(batches)
    expected = [job.step(batch) for job, batch in zip(plain, batches, strict=True)]
    torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_jobs_are_fused_only_if_that_trains_the_same() -> None:
    adam = OPTIMIZERS["one rate"]
    first, same = _job(0, adam), _job(1, adam)
    assert structure_of(first) == structure_of(same) is not None
    slower, other = _job(2, adam), _job(3, OPTIMIZERS["rates of their own"])
    slower.model[0].momentum = 0.5  # type: ignore[index, union-attr]
    assert structure_of(slower) != structure_of(first)
    assert structure_of(other) != structure_of(first)
    assert structure_of(_job(4, adam, nn.CrossEntropyLoss(label_smoothing=0.1))) != structure_of(
        _job(5, adam, nn.CrossEntropyLoss())
    )
    whole = _job(6, lambda model, _: optim.Adafactor(model.parameters()))
    assert structure_of(whole) is None  # its update of an element depends on the others
    stepped = Job("own", first.model, first.optimizer, first.loss, own_order(), step=first.step)
    assert structure_of(stepped) is None


@pytest.mark.parametrize(
    ("faster", "slower_s", "tried"),
    [
        *((Way.LOOP, 1.5, 6), (Way.FUSED, 1.5, 6)),
        *((Way.LOOP, 1.2, 12), (Way.FUSED, 1.2, 12)),
        (Way.LOOP, 1.0, 36),
    ],
)
def test_the_faster_way_is_kept(
    monkeypatch: pytest.MonkeyPatch, faster: Way, slower_s: float, tried: int
) -> None:
    """A clock that says which one is faster, in place of the machine's."""
    now = 0.0
    monkeypatch.setattr("radt.training.fusion._now_s", lambda: now)
    done: list[Way] = []

    def spend(way: Way) -> None:
        nonlocal now
        now += 1.0 if way is faster else slower_s
        done.append(way)

    step, loop = Stack.step, Job.step

    def fused_step(stack: Stack, batches: Any) -> Tensor:
        spend(Way.FUSED)
        return step(stack, batches)

    def loop_step(job: Job, batch: Any) -> Tensor:
        if job.name == "job 0":
            spend(Way.LOOP)
        return loop(job, batch)

    monkeypatch.setattr(Stack, "step", fused_step)
    monkeypatch.setattr(Job, "step", loop_step)
    jobs = [_job(seed, OPTIMIZERS["one rate"]) for seed in range(3)]
    for job, epochs in zip(jobs, (10, 10, 8), strict=True):
        job.epochs = epochs
    with MultiTrainer(jobs, policy="round_robin", fuse="auto") as trainer:
        assert {job.status for job in trainer.run()} == {JobStatus.FINISHED}
    trial, of_the_rest = trainer.ways.values()
    assert trial.chosen is of_the_rest.chosen is faster
    assert set(done[tried:]) == {faster}
    assert done[:tried].count(Way.FUSED) == done[:tried].count(Way.LOOP)
    assert len(done) == 50
    assert [job.epoch for job in jobs] == [10, 10, 8]


def test_a_model_that_cannot_be_stacked_trains_in_a_loop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            scores: Tensor = self.layer(inputs)
            return scores * (2.0 if scores.sum().item() > 0 else 1.0)  # vmap has no values

    jobs = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = Reading()
        optimizer = optim.SGD(model.parameters(), 0.1)
        jobs.append(
            Job(f"job {seed}", model, optimizer, functional.cross_entropy, own_order(), epochs=2)
        )
    with MultiTrainer(jobs, fuse="auto") as trainer:
        assert {job.status for job in trainer.run()} == {JobStatus.FINISHED}
    (trial,) = trainer.ways.values()
    assert trial.chosen is Way.LOOP
    assert "vmap" in trial.reason
    assert f"job 0 and 1 more jobs are not fused: {trial.reason}" in capsys.readouterr().err


def test_an_error_of_the_users_code_fails_its_job_alone_as_in_a_loop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs = [_job(seed, OPTIMIZERS["one rate"]) for seed in range(3)]
    batches = [tuple(batch) for batch in own_order()]
    bad = [(inputs, labels.clone()) for inputs, labels in batches]
    bad[2][1][0] = 99  # there are three classes
    for job in jobs:
        job.loader = bad if job is jobs[1] else batches
    with _fused(jobs) as trainer:
        ended = {job.name: job.status for job in trainer.run()}
    assert ended == {
        "job 0": JobStatus.FINISHED,
        "job 1": JobStatus.FAILED,
        "job 2": JobStatus.FINISHED,
    }
    assert jobs[1].failure is not None
    assert "Target 99 is out of bounds" in jobs[1].failure.message
    assert "cross_entropy_loss" in jobs[1].failure.traceback
    assert [job.steps for job in jobs] == [20, 2, 20]
    assert not capsys.readouterr().err
    assert not any(trial.reason for trial in trainer.ways.values())


def test_an_update_that_stops_on_its_way_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[object] = []

    class Full(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            updates.append(super().step())
            raise torch.OutOfMemoryError("no memory for the last parameter")

    monkeypatch.setattr("radt.training.stack._ELEMENTWISE", {Full})
    jobs = [_job(seed, lambda model, _: Full(model.parameters(), 0.1)) for seed in range(2)]
    with _fused(jobs) as trainer:
        failures = [job.failure for job in trainer.run()]
    assert [each.kind for each in failures if each] == [FailureKind.OUT_OF_MEMORY] * 2
    assert len(updates) == 1


def test_a_fused_job_whose_loss_is_nan_fails_alone() -> None:
    jobs = [_job(seed, OPTIMIZERS["one rate"]) for seed in range(3)]
    with torch.no_grad():
        jobs[1].model[3].weight.fill_(torch.nan)  # type: ignore[index, union-attr, operator]
    with _fused(jobs, stop_at_nan=True) as trainer:
        ended = [(job.name, job.status) for job in trainer.run()]
    assert ended[0] == ("job 1", JobStatus.FAILED)
    assert dict(ended[1:]) == {"job 0": JobStatus.FINISHED, "job 2": JobStatus.FINISHED}
    assert jobs[1].failure is not None
    assert jobs[1].failure.kind is FailureKind.NAN


def test_jobs_are_not_fused_where_memory_is_short() -> None:
    jobs = [_job(seed, OPTIMIZERS["one rate"]) for seed in range(3)]
    with MultiTrainer(jobs, fuse="auto", memory=10**9) as trainer:
        assert {job.status for job in trainer.run()} == {JobStatus.FINISHED}
    (trial,) = trainer.ways.values()
    assert trial.fused_bytes is not None
    present = sum(map(resident_bytes, jobs))
    jobs = [_job(seed, OPTIMIZERS["one rate"]) for seed in range(3)]
    with MultiTrainer(jobs, fuse="auto", memory=present + trial.fused_bytes - 1) as trainer:
        assert {job.status for job in trainer.run()} == {JobStatus.FINISHED}
    (other,) = trainer.ways.values()
    assert other.chosen is Way.LOOP
    assert "memory" in other.reason
    assert len(other.times_s[Way.FUSED]) == 0
