"""`OverlappedValidator`: results of serial validation, while training goes on as without it."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import radt
from radt.errors import TrainingError, UsageError
from radt.home import RunDir
from radt.journal.reader import JournalReader
from radt.loaders.randomness import RandomState
from radt.training import OverlappedValidator, Sums
from radt.training.evaluation import means
from tests.support import validating
from tests.support.journal import Found
from tests.support.validating import Gated, counter, evaluate, made, set_epoch, train
from tests.support.waiting import wait_until

WHERE = ["process", "thread"]
EPOCHS = 3


class Trained:
    """Losses, random states, weights and metrics of a training with some validation."""

    def __init__(self, validate: Callable[[nn.Module, int], None]) -> None:
        model, optimizer = made()
        self.losses = []
        for epoch in range(1, EPOCHS + 1):
            self.losses.append(train(model, optimizer))
            validate(model, epoch)
        self.random = RandomState.current()
        self.model = model
        self.snapshots: dict[int, dict[str, torch.Tensor]] = {}
        self.metrics: dict[int, dict[str, float]] = {}

    @classmethod
    def serially(cls, evaluate: Callable[..., Sums] = evaluate, parts: int = 1) -> Trained:
        metrics: dict[int, dict[str, float]] = {}
        snapshots = {}

        def validate(model: nn.Module, epoch: int) -> None:
            model.eval()
            with torch.no_grad():
                metrics[epoch] = means([evaluate(model, part, parts) for part in range(parts)])
            snapshots[epoch] = {key: value.clone() for key, value in model.state_dict().items()}

        found = cls(validate)
        found.metrics, found.snapshots = metrics, snapshots
        return found

    @classmethod
    def overlapped(
        cls, where: str, evaluate: Callable[..., Sums] = evaluate, parts: int = 1
    ) -> Trained:
        validators: list[OverlappedValidator] = []
        found: dict[int, dict[str, float]] = {}
        snapshots = {}

        def collect() -> None:
            for result in validators[0].finished():
                assert not result.failure
                found[result.epoch] = result.metrics
                snapshots[result.epoch] = result.snapshot.state_dict()

        def validate(model: nn.Module, epoch: int) -> None:
            if not validators:
                validator = OverlappedValidator(evaluate, model, parts=parts, where=where)
                validators.append(stack.enter_context(validator))
            validators[0].submit(epoch)
            collect()

        with ExitStack() as stack:
            trained = cls(validate)
        collect()
        trained.metrics, trained.snapshots = found, snapshots
        return trained

    def assert_trained_as(self, other: Trained) -> None:
        assert self.losses == other.losses
        for one, same in zip(
            self.model.state_dict().values(), other.model.state_dict().values(), strict=True
        ):
            assert torch.equal(one, same)
        assert str(self.random) == str(other.random)

    def assert_validated_as(self, other: Trained) -> None:
        assert self.metrics == other.metrics
        assert list(self.snapshots) == list(other.snapshots) == list(range(1, EPOCHS + 1))
        for epoch, snapshot in self.snapshots.items():
            assert list(snapshot) == list(other.snapshots[epoch])
            for key, value in snapshot.items():
                assert torch.equal(value, other.snapshots[epoch][key]), (epoch, key)


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("parts", [1, 2])
def test_metrics_weights_and_random_states_are_those_of_serial_validation(
    where: str, parts: int
) -> None:
    serial, overlapped = Trained.serially(parts=parts), Trained.overlapped(where, parts=parts)
    overlapped.assert_trained_as(serial)
    overlapped.assert_validated_as(serial)


def test_what_a_process_draws_is_its_own() -> None:
    serial, drawing = Trained.serially(), Trained.overlapped("process", validating.evaluate_drawing)
    drawing.assert_trained_as(serial)
    for epoch, metrics in drawing.metrics.items():  # the same whenever the process was started
        RandomState.seeded(epoch).restore()
        with torch.no_grad():
            sums = validating.evaluate_drawing(drawing.model.eval(), 0, 1)
        assert metrics["drawn"] == sums.sums["drawn"] / sums.count


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="before PyTorch 2.9")
def test_precision_is_that_of_training_however_it_was_set() -> None:
    """PyTorch refuses to say it by its older names once it was set by the newer ones."""
    backends: Any = torch.backends
    before = backends.cuda.matmul.fp32_precision, backends.cudnn.rnn.fp32_precision
    try:
        backends.cuda.matmul.fp32_precision, backends.cudnn.rnn.fp32_precision = "tf32", "ieee"
        expected = validating.precisions()
        assert expected["cuda.matmul"] == "tf32"
        with OverlappedValidator(validating.said_precisions, made()[0]) as validator:
            validator.submit(1)
            found = validator.wait(1).metrics
    finally:
        backends.cuda.matmul.fp32_precision, backends.cudnn.rnn.fp32_precision = before
    assert {name: validating.PRECISIONS[int(at)] for name, at in found.items()} == expected


def test_a_thread_refuses_to_draw_what_training_draws_from() -> None:
    for bad in (validating.evaluate_loaded, validating.evaluate_drawing):
        with pytest.raises(TrainingError, match=r"draws global random numbers.*generator="):
            Trained.overlapped("thread", bad)


def test_a_loader_with_its_own_generator_and_a_worker_may_validate_in_a_thread() -> None:
    serial = Trained.serially()
    apart = Trained.overlapped("thread", validating.evaluate_loaded_apart)
    apart.assert_trained_as(serial)
    apart.assert_validated_as(serial)


# Sums ---------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_unequal_parts_are_averaged_exactly(values: list[int], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    parts = [values[begin:end] for begin, end in itertools.pairwise(edges)]
    merged = means([Sums(count=len(part), value=sum(part)) for part in parts])
    assert merged == {"value": sum(values) / len(values)}


def test_sums_that_cannot_be_divided_or_added_are_refused() -> None:
    with pytest.raises(UsageError, match="0 samples"):
        means([Sums(count=0, loss=0.0)])
    with pytest.raises(UsageError, match="different metrics"):
        means([Sums(count=1, loss=0.0), Sums(count=1, other=0.0)])
    with pytest.raises((RuntimeError, ValueError), match="one element"):
        Sums(count=2, loss=torch.zeros(2))
    assert math.isnan(means([Sums(count=1, loss=math.nan)])["loss"])


# Order --------------------------------------------------------------------------------------------


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("where", WHERE)
def test_a_snapshot_is_what_was_submitted_and_no_submit_overtakes(
    where: str, tmp_path: Path
) -> None:
    model, gate = counter(), Gated(tmp_path)
    with OverlappedValidator(gate, model, where=where) as validator:
        set_epoch(model, 1)
        validator.submit(1)
        wait_until(lambda: gate.begun(1), "the first validation")
        set_epoch(model, 2)  # trains meanwhile
        entered, left = threading.Event(), threading.Event()

        def submit() -> None:
            entered.set()
            validator.submit(2)
            left.set()

        thread = threading.Thread(target=submit)
        thread.start()
        entered.wait()
        assert not gate.begun(2) and not left.is_set() and validator.finished() == []
        gate.go(1)
        thread.join()
        (first,) = validator.finished()
        assert (first.epoch, first.metrics) == (1, {"epoch": 1.0})
        assert first.snapshot.state_dict()["weight"].item() == 1
        set_epoch(model, 3)
        gate.go(2)
        validator.submit(3)
        with pytest.raises(TrainingError, match="epoch 1 has been overwritten"):
            first.snapshot.state_dict()
        gate.go(3)
    assert [result.metrics["epoch"] for result in validator.finished()] == [2, 3]
    assert gate.notes() == ["begin 1", "end 1", "begin 2", "end 2", "begin 3", "end 3"]


def test_the_last_result_is_in_when_close_returns_and_its_snapshot_can_be_saved(
    tmp_path: Path,
) -> None:
    model, gate = counter(), Gated(tmp_path)
    with OverlappedValidator(gate, model) as validator:
        set_epoch(model, 7)
        validator.submit(1)
        wait_until(lambda: gate.begun(7), "the validation")
        assert validator.finished() == []
        threading.Timer(0.1, gate.go, [7]).start()
    (result,) = validator.finished()
    assert result.metrics == {"epoch": 7.0}
    other = counter()
    other.load_state_dict(result.snapshot.state_dict(), strict=True)
    assert next(other.parameters()).item() == 7
    timing = validator.timing
    assert timing.reached_s >= timing.validation_s[0] >= 0.1


def test_waiting_for_an_epoch_makes_it_serial() -> None:
    model = counter()
    with OverlappedValidator(validating.Fails({}), model, where="thread") as validator:
        for epoch in (1, 2, 3):
            set_epoch(model, epoch)
            validator.submit(epoch)
            assert validator.wait(epoch).metrics["epoch"] == epoch
            assert validator.finished() == []
        assert validator.wait(1).metrics["epoch"] == 1
        with pytest.raises(UsageError, match="epoch 4 was not submitted"):
            validator.wait(4)
        with pytest.raises(UsageError, match="epoch 3 was submitted before"):
            validator.submit(3)
    with pytest.raises(UsageError, match="closed"):
        validator.submit(4)
    assert len(validator.timing.training_s) == len(validator.timing.validation_s) == 3


# Snapshots ----------------------------------------------------------------------------------------


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("where", WHERE)
def test_what_evaluate_does_to_its_copy_stays_there(where: str) -> None:
    model, _ = made()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with OverlappedValidator(validating.evaluate_in_training_mode, model, where=where) as validator:
        validator.submit(1)
        snapshot = validator.wait(1).snapshot.state_dict()
        validator.submit(2)
        assert validator.wait(2).metrics == validator.wait(1).metrics
    for key, value in before.items():
        assert torch.equal(value, snapshot[key])
        assert torch.equal(value, model.state_dict()[key])


def test_a_model_whose_tensors_change_is_refused() -> None:
    model = counter()
    with OverlappedValidator(evaluate, model, where="thread") as validator:
        model.weight = nn.Parameter(torch.zeros(2, 1))
        with pytest.raises(TrainingError, match=r"weight: torch.float32 \(2, 1\) on cpu"):
            validator.submit(1)


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> object:
            return {"scale": 2.0}

    for model, message in (
        (nn.LazyLinear(3), "weight of the model cannot be copied"),
        (Extra(1, 1), "has _extra_state, which is neither"),
    ):
        with pytest.raises(UsageError, match=message):
            OverlappedValidator(evaluate, model)
    holds_a_graph = counter()
    holds_a_graph.scale = torch.ones((), requires_grad=True) * 2
    with pytest.raises(UsageError, match=r"cannot be copied with copy\.deepcopy"):
        OverlappedValidator(evaluate, holds_a_graph, where="thread")


def test_arguments_are_checked() -> None:
    with pytest.raises(UsageError, match="parts is 0"):
        OverlappedValidator(evaluate, counter(), parts=0)
    with pytest.raises(UsageError, match='where is "gpu", expected "process" or "thread"'):
        OverlappedValidator(evaluate, counter(), where="gpu")


# In a run -----------------------------------------------------------------------------------------


def test_a_run_gets_metrics_at_their_own_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = RunDir(tmp_path / "run").create()
    monkeypatch.setenv("RADT_RUN_ID", "0123456789abcdef")
    monkeypatch.setenv("RADT_RUN_DIR", str(run_dir.path))
    model, gate = counter(), Gated(tmp_path)
    with radt.Run() as run, OverlappedValidator(gate, model, where="thread") as validator:
        for epoch in run.epochs(3):
            set_epoch(model, epoch)
            validator.submit(epoch)
            wait_until(lambda epoch=epoch: gate.begun(epoch), "the validation")
            gate.go(epoch)
    found = Found(JournalReader(run_dir.journal, {}))
    found.read(final=True)
    (process,) = found.processes
    assert found.values("epoch", process) == [1, 2, 3]
    assert found.steps("epoch", process) == [1, 2, 3]
    spans = [span for batch in found.batches for span in batch.spans if span.name == "validate"]
    assert [span.begin for span in spans] == [True, False] * 3
    timing = validator.timing
    assert found.values("validation.wait", process)[0] == timing.wait_s[0]
    assert found.values("validation.bound", process) == [timing.bound_s]
    assert found.values("validation.reached", process) == [timing.reached_s]
    fastest = min(timing.training_s), min(timing.validation_s)
    assert timing.bound_s == 3 * max(fastest) + min(fastest)
