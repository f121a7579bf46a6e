"""A job that fails ends alone; a process that is lost loses no more than the turn under way."""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from radt.errors import TrainingError
from radt.training import Job, MultiTrainer
from radt.training.checkpoints import Checkpoints
from radt.training.failures import train
from radt.training.job import FailureKind, JobStatus
from radt.training.memory import Admission
from tests.support.waiting import TIMEOUT_S, alive, wait_until
from tests.training.trainings import BATCHES, Kept, own_order, plain_losses

ROOT = Path(__file__).parents[2]


def _raise(name: str, loss: Tensor) -> Tensor:
    raise ValueError(f"no luck with {name} at {loss.item():.3f}")


def _nan(name: str, loss: Tensor) -> Tensor:
    del name
    return loss * math.nan


def _too_large(name: str, loss: Tensor) -> Tensor:
    del name
    return loss + torch.empty(2**50).sum()


FAILURES = {
    FailureKind.EXCEPTION: (_raise, "no luck with guilty"),
    FailureKind.NAN: (_nan, "NaN in epoch 2, batch 3"),
    FailureKind.OUT_OF_MEMORY: (_too_large, "allocate memory"),
}


@pytest.mark.quick_variants(4)
@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("share", [False, True])
def test_a_failure_changes_nothing_for_the_others(kind: FailureKind, share: bool) -> None:
    fail, message = FAILURES[kind]
    kept = Kept()

    def hook(name: str, loss: Tensor) -> Tensor:
        is_time = name == "guilty" and guilty.epoch == 1 and guilty.batches == 2
        return fail(name, loss) if is_time else loss

    kept.hook = hook
    loader = own_order() if share else None
    guilty = kept.job("guilty", 1, 3, loader)
    jobs = [kept.job("before", 0, 3, loader), guilty, kept.job("behind", 2, 3, loader)]
    with MultiTrainer(jobs, policy="round_robin", share_input=share, stop_at_nan=True) as trainer:
        ended = [(job.name, job.status) for job in trainer.run()]
    assert ended == [
        ("guilty", JobStatus.FAILED),
        ("before", JobStatus.FINISHED),
        ("behind", JobStatus.FINISHED),
    ]
    assert guilty.failure is not None
    assert guilty.failure.kind is kind
    assert message in guilty.failure.message
    assert "Traceback" in guilty.failure.traceback
    assert all(parameter.grad is None for parameter in guilty.model.parameters())
    loading = own_order if share else None
    for name, seed in {"before": 0, "behind": 2}.items():
        expected = plain_losses(seed, 3, loading) if loading else plain_losses(seed, 3)
        assert kept.losses[name] == expected


def test_a_loader_that_raises_fails_its_job_alone() -> None:
    class Broken:
        def __iter__(self) -> Iterator[object]:
            raise OSError("the disk is gone")

    kept = Kept()
    guilty = kept.job("guilty", 1)
    guilty.loader = Broken()
    with MultiTrainer([guilty, kept.job("other", 2)]) as trainer:
        assert [job.status for job in trainer.run()] == [JobStatus.FAILED, JobStatus.FINISHED]
    assert guilty.failure is not None
    assert guilty.failure.message == "OSError: the disk is gone"
    assert kept.losses["other"] == plain_losses(2, 3)


def test_a_step_without_memory_is_repeated_once_and_exactly() -> None:
    kept, attempts = Kept(), []

    def once(name: str, loss: Tensor) -> Tensor:
        if name == "tight" and tight.epoch == 1 and tight.batches == 2:
            others = [p.grad for p in other.model.parameters() if p.grad is not None]
            attempts.append(len(others))
            if len(attempts) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return loss

    kept.hook = once
    tight, other = kept.job("tight", 1), kept.job("other", 2)
    with MultiTrainer([tight, other], policy="round_robin") as trainer:
        assert {job.status for job in trainer.run()} == {JobStatus.FINISHED}
    assert attempts == [0, 0]
    assert kept.losses == {"tight": plain_losses(1, 3), "other": plain_losses(2, 3)}


def test_a_repeated_step_draws_the_same_numbers_of_numpy() -> None:
    def losses(is_short: bool) -> list[float]:
        def noisy(name: str, loss: Tensor) -> Tensor:
            nonlocal is_short
            loss = loss * np.random.random()
            if is_short and job.batches == 2:
                is_short = False
                raise torch.OutOfMemoryError("CUDA out of memory")
            return loss

        kept = Kept(hook=noisy)
        job = kept.job("one", 1)
        with MultiTrainer([job]) as trainer:
            assert [job.status for job in trainer.run()] == [JobStatus.FINISHED]
        return kept.losses["one"]

    assert losses(is_short=True) == losses(is_short=False)


def test_a_step_is_not_repeated_once_parameters_have_changed() -> None:
    kept = Kept()
    job = kept.job("one", 1)
    updates = 0
    update = job.optimizer.step

    def without_memory() -> None:
        nonlocal updates
        updates += 1
        update()
        raise torch.OutOfMemoryError("CUDA out of memory")

    job.optimizer.step = without_memory  # type: ignore[assignment, method-assign]
    with MultiTrainer([job]) as trainer:
        assert [job.status for job in trainer.run()] == [JobStatus.FAILED]
    assert updates == 1
    assert job.failure is not None
    assert job.failure.kind is FailureKind.OUT_OF_MEMORY


def test_ctrl_c_is_nobodys_failure() -> None:
    def interrupt(name: str, loss: Tensor) -> Tensor:
        raise KeyboardInterrupt

    kept = Kept(hook=interrupt)
    job = kept.job("one", 1)
    with MultiTrainer([job]) as trainer:
        with pytest.raises(KeyboardInterrupt):
            list(trainer.run())
        with pytest.raises(TrainingError, match="closed"):  # it has lost a batch
            list(trainer.run())
    assert job.status is JobStatus.READY


# Memory ----------------------------------------------------------------------------------------


def test_a_job_waits_until_others_have_ended_where_memory_is_short() -> None:
    kept, order = Kept(), []

    def note(name: str, loss: Tensor) -> Tensor:
        order.append(name)
        return loss

    kept.hook = note
    jobs = [kept.job("wide", 0, 2, width=20_000), kept.job("small", 1, 2)]
    alone = _needed_bytes(kept.job("alone", 0, width=20_000))
    order.clear()
    with MultiTrainer(jobs, memory=alone + 1) as trainer:  # the small one's parameters are too much
        ended = [(job.name, job.status) for job in trainer.run()]
    assert ended == [("small", JobStatus.FINISHED), ("wide", JobStatus.FINISHED)]
    assert order == ["wide"] + 10 * ["small"] + 9 * ["wide"]  # the first step is measured
    assert kept.losses["wide"] == plain_losses(0, 2, width=20_000)
    assert kept.losses["small"] == plain_losses(1, 2)


def test_a_job_that_does_not_fit_at_all_fails() -> None:
    kept = Kept()
    jobs = [kept.job("wide", 0, 2, width=20_000), kept.job("small", 1, 2)]
    alone = _needed_bytes(kept.job("alone", 0, width=20_000))
    with MultiTrainer(jobs, memory=alone - 1) as trainer:
        ended = [(job.name, job.status) for job in trainer.run()]
    assert ended == [("small", JobStatus.FINISHED), ("wide", JobStatus.FAILED)]
    assert jobs[0].failure is not None
    assert jobs[0].failure.kind is FailureKind.OUT_OF_MEMORY
    assert "memory allows" in jobs[0].failure.message
    assert len(kept.losses["wide"]) == 1
    assert kept.losses["small"] == plain_losses(1, 2)


@pytest.mark.parametrize("end", [MultiTrainer.resume, MultiTrainer.cancel])
def test_a_job_waits_for_the_memory_of_paused_ones(
    capsys: pytest.CaptureFixture[str], end: Callable[[MultiTrainer, str], None]
) -> None:
    name = f"small, to {end.__name__}"  # a warning is written once

    def pause(step_of: str, loss: Tensor) -> Tensor:
        if len(kept.losses[name]) == 1:
            trainer.pause(name)
        return loss

    kept = Kept()
    alone = _needed_bytes(kept.job("alone", 0, width=20_000))
    kept.hook = pause
    wide, small = kept.job("wide", 0, 2, width=20_000), kept.job(name, 1, 2)
    with MultiTrainer([wide, small], memory=alone + 1) as trainer:
        assert [job.status for job in trainer.run()] == [JobStatus.PAUSED]
        assert wide.status is JobStatus.READY
        assert f"jobs wait for memory that paused ones keep ({name})" in capsys.readouterr().err
        end(trainer, name)
        assert [job.name for job in trainer.run()] == [name, "wide"]
    assert wide.status is JobStatus.FINISHED
    assert kept.losses["wide"] == plain_losses(0, 2, width=20_000)


def test_a_job_that_does_not_fit_leaves_the_lockstep_and_waits() -> None:
    kept, loader = Kept(), own_order()
    alone = _needed_bytes(kept.job("alone", 0, width=20_000))
    jobs = [kept.job("small", 1, 2, loader), kept.job("wide", 0, 2, loader, width=20_000)]
    with MultiTrainer(jobs, memory=alone + 1, share_input=True) as trainer:
        ended = [(job.name, job.status) for job in trainer.run()]
    assert ended == [("small", JobStatus.FINISHED), ("wide", JobStatus.FINISHED)]
    assert kept.losses["small"] == plain_losses(1, 2, own_order)
    assert kept.losses["wide"] == plain_losses(0, 2, own_order, width=20_000)


def test_a_job_whose_gradients_do_not_fit_does_not_begin() -> None:
    kept = Kept()
    with MultiTrainer([kept.job("wide", 0, width=20_000)], memory="1MB") as trainer:
        assert [job.status for job in trainer.run()] == [JobStatus.FAILED]
    assert kept.losses["wide"] == []


def _needed_bytes(job: Job) -> int:
    admission = Admission(10**12)
    assert job.loader is not None
    (batch, *_) = list(job.loader)
    admission.measure(job, lambda: train(job, batch, stop_at_nan=False, others=[]))
    return admission.needed_bytes(job, [job])


# Checkpoints -----------------------------------------------------------------------------------


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("step", [1, 7, 18, 29, 40])
def test_a_new_start_goes_on_from_the_last_switch(tmp_path: Path, step: int, share: bool) -> None:
    steps = 0

    def stop(name: str, loss: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == 3:
            trainer.pause("job 0")  # so that a switch is in the middle of an epoch
        if steps == step:
            raise KeyboardInterrupt
        return loss

    def jobs(kept: Kept) -> list[Job]:
        loader = own_order() if share else None
        return [kept.job(f"job {seed}", seed, 3, loader) for seed in range(3)]

    first, second = Kept(hook=stop), Kept()
    options = {"policy": "round_robin", "checkpoint": tmp_path, "share_input": share}
    with pytest.raises(KeyboardInterrupt), MultiTrainer(jobs(first), **options) as trainer:
        while True:
            for job in trainer.run():
                trainer.resume(job.name)
    with MultiTrainer(jobs(second), **options) as trainer:
        assert {job.status for job in trainer.run()} == {JobStatus.FINISHED}
    again = 0
    for seed in range(3):
        before, behind = first.losses[f"job {seed}"], second.losses[f"job {seed}"]
        expected = plain_losses(seed, 3, own_order) if share else plain_losses(seed, 3)
        assert before == expected[: len(before)]
        assert len(behind) == 0 or behind == expected[-len(behind) :]
        again += len(before) + len(behind) - len(expected)
        assert len(before) + len(behind) >= len(expected)
    assert again <= (15 if share else 5)  # the turn under way
    with MultiTrainer(jobs(Kept()), **options) as trainer:  # all have finished: once more yielded
        assert {job.status for job in trainer.run()} == {JobStatus.FINISHED}


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("second", [1, 2, 5])
def test_a_new_start_may_have_other_numbers_of_epochs(tmp_path: Path, second: int) -> None:
    for epochs in (2, second):
        kept = Kept()
        job = kept.job("one", 1, epochs)
        with MultiTrainer([job], checkpoint=tmp_path) as trainer:
            assert [job.status for job in trainer.run()] == [JobStatus.FINISHED]
    assert job.epoch == max(2, second)
    assert kept.losses["one"] == plain_losses(1, job.epoch)[2 * BATCHES :]


def test_steps_of_the_loss_go_on_after_a_new_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Mock(epoch=_no_context)
    run = Mock(span=_no_context, child=lambda name, params: child)
    monkeypatch.setattr("radt.training.records.active_run", lambda: run)
    for epochs in (2, 3):
        jobs = [Kept().job("one", 1, epochs)]
        with MultiTrainer(jobs, policy="round_robin", checkpoint=tmp_path) as trainer:
            list(trainer.run())
    logged = [call.args for call in child.log_metric.call_args_list]
    assert {name for name, *_ in logged} == {"loss"}
    steps = [step for _, _, step in logged]
    assert {BATCHES, 2 * BATCHES, 3 * BATCHES} <= set(steps)
    assert steps == sorted(set(steps))


def _no_context(*_: object) -> nullcontext[None]:
    return nullcontext()


def test_a_state_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    kept = Kept()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def fill(name: str, loss: Tensor) -> Tensor:
        if job.epoch == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
        return loss

    kept.hook = fill
    job = kept.job("one", 1)
    try:
        with MultiTrainer([job], policy="round_robin", checkpoint=tmp_path) as trainer:
            with pytest.raises(TrainingError, match="job one cannot be written") as raised:
                list(trainer.run())
            assert raised.value.remedy
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert {file.name for file in tmp_path.iterdir()} == {"one.pt", "running"}
    kept = Kept()
    with MultiTrainer([kept.job("one", 1)], checkpoint=tmp_path) as trainer:
        list(trainer.run())
    assert kept.losses["one"] == plain_losses(1, 3)[BATCHES:]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    with MultiTrainer([Kept().job("one", 1)], checkpoint=tmp_path) as trainer:
        list(trainer.run())
    with pytest.raises(TrainingError, match=r"job one cannot go on from .*one\.pt"):
        MultiTrainer([Kept().job("one", 1, width=9)], checkpoint=tmp_path)


# A lost process --------------------------------------------------------------------------------

_SCRIPT = """
import ctypes, os, signal, sys
from pathlib import Path
import torch
from radt.training import MultiTrainer
from tests.training.trainings import Kept

torch.set_num_threads(1)
folder, fault = Path(sys.argv[1]), sys.argv[2]

def die(name, loss):
    if fault == "both" and name == "behind" and jobs[2].epoch == 1:
        ctypes.string_at(0)
    if name == "guilty" and guilty.epoch == 1 and guilty.batches == 2:
        if fault == "both":  # of another one, later
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            (folder / "waiting").touch()
            signal.pause()
    return loss

kept = Kept(hook=die)
guilty = kept.job("guilty", 1)
jobs = [kept.job("before", 0, 4), guilty, kept.job("behind", 2)]
with MultiTrainer(jobs, policy="round_robin", checkpoint=folder / "states") as trainer:
    for job in trainer.run():
        print(job.name, job.status, job.failure and job.failure.kind)
for name, losses in kept.losses.items():
    print(name, *map(float.hex, losses))
"""


def _guarded(folder: Path, fault: str) -> list[str]:
    (folder / "train.py").write_text(_SCRIPT, encoding="utf-8")
    (folder / "states").mkdir()
    script = [str(folder / "train.py"), str(folder), fault]
    return [sys.executable, "-m", "radt.training.guard", str(folder / "states"), *script]


def _done(folder: Path, fault: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _guarded(folder, fault),
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_jobs_that_end_their_process_fail_and_the_others_go_on(tmp_path: Path) -> None:
    done = _done(tmp_path, "both")
    assert done.returncode == 0, done.stderr
    for guilty in ("guilty", "behind"):
        assert f"job {guilty} ended its process" in done.stderr
    *said, _, losses, _ = done.stdout.splitlines()
    assert set(said) == {
        "before finished None",
        "behind failed process lost",
        "guilty failed process lost",
    }
    rest = plain_losses(0, 4)[-BATCHES:]  # of its last turn
    assert losses.split() == ["before", *(value.hex() for value in rest)]


def test_who_ended_the_process_is_known_until_its_state_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "lost").write_text("guilty", encoding="utf-8")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Checkpoints, "save", killed)
        MultiTrainer([Kept().job("guilty", 1)], checkpoint=tmp_path)
    for _ in range(2):
        with MultiTrainer([Kept().job("guilty", 1)], checkpoint=tmp_path) as trainer:
            (job,) = trainer.run()
        assert job.failure is not None
        assert job.failure.kind is FailureKind.PROCESS_LOST
        assert not (tmp_path / "lost").exists()


def test_a_process_that_is_told_to_end_is_not_started_again(tmp_path: Path) -> None:
    done = _done(tmp_path, "terminate")
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stdout == done.stderr == ""


def test_the_script_ends_with_its_guard(tmp_path: Path) -> None:
    with subprocess.Popen(
        _guarded(tmp_path, "wait"), cwd=ROOT, env=dict(os.environ, PYTHONPATH=str(ROOT))
    ) as guard:
        wait_until((tmp_path / "waiting").exists, "the job at its step")
        (child,) = psutil.Process(guard.pid).children()
        guard.kill()
    wait_until(lambda: not alive(child.pid), "the end of the script")
