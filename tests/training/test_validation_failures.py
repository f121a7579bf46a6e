"""`OverlappedValidator` when something fails: training knows, or goes on, and nothing is left."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from torch import nn

from radt.errors import TrainingError, UsageError
from radt.training import OverlappedValidator, Sums
from tests.support.validating import Fails, Gated, counter, evaluate, set_epoch
from tests.support.waiting import TIMEOUT_S, alive, wait_until

WHERE = ["process", "thread"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After each test: no thread, process, mapping or descriptor of a validator."""
    before, children = _open_files(), psutil.Process().children()
    yield
    gc.collect()  # exceptions and their frames refer to each other, and to snapshots
    threads = [thread.name for thread in threading.enumerate()]
    assert not [name for name in threads if name.startswith("radt-validator")]
    # What tests before this one have left may go meanwhile.
    assert not set(psutil.Process().children()) - set(children)
    assert "radt-snapshots" not in Path("/proc/self/maps").read_text()
    assert not Counter(_open_files()) - Counter(before)


def _open_files() -> list[str]:
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # that of the listing itself
            continue
    return sorted(link for link in links if "radt" in link or "socket" in link or "pidfd" in link)


def test_a_process_raises_dies_is_killed_and_validates_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = counter()
    fails = Fails({2: "raises", 3: "returns nothing", 4: "exits", 5: "is killed", 6: "is gone"})
    raises = {2: "the picture is broken", 3: "returned NoneType, expected", 4: "SystemExit: 3"}
    dies = {5: "was ended by SIGKILL", 6: "exited with 5"}
    with OverlappedValidator(fails, model) as validator:
        for epoch in range(1, 9):
            set_epoch(model, epoch)
            if epoch - 1 in raises:
                with pytest.raises(TrainingError, match=raises[epoch - 1]) as raised:
                    validator.submit(epoch)
                assert f"evaluate failed in epoch {epoch - 1}" in str(raised.value)
                assert 'validating.py", line' in str(raised.value) or epoch == 4
            validator.submit(epoch)
            if epoch == 7:
                pid = int(validator.wait(epoch).metrics["pid"])
                os.kill(pid, signal.SIGKILL)  # it does nothing now, which costs nothing
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        results = {result.epoch: result for result in [*validator.finished(), validator.wait(8)]}
    assert list(results) == [1, 5, 6, 8]
    warnings = capfd.readouterr().err
    for epoch, result in results.items():
        if epoch in dies:
            assert result.metrics == {}
            assert result.failure.startswith("the validator's process ")
            assert result.failure.endswith(dies[epoch])
            assert f"epoch {epoch} was not validated, and training goes on: {result.failure}" in (
                warnings
            )
        else:
            assert result.metrics["epoch"] == epoch
            assert not result.failure


def test_a_process_that_cannot_be_started_is_an_error() -> None:
    """The limit of open files stands for any shortage: nobody waits for it for ever."""
    model = counter()
    set_epoch(model, 1)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    held = [os.dup(0)]
    while held[-1] <= highest:  # numbers that are free below others
        held.append(os.dup(0))
    limit = held[-1] + 1 + 2  # the snapshots' memory and its mapping
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        validator = OverlappedValidator(Fails({}), model)
        with pytest.raises(TrainingError, match=r"cannot be started.*Too many open files"):
            validator.submit(1)
            validator.wait(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for number in held:
            os.close(number)
    with contextlib.suppress(TrainingError):  # the lane has tried it twice, or once
        validator.close()


def test_no_worker_of_a_loader_is_forked_while_the_process_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would keep a pipe open whose end `Popen` waits for."""
    begun, forks = threading.Event(), []
    real = subprocess.Popen

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        forks.append(begun.is_set())
        os.waitpid(pid, 0)

    def popen(*arguments: object, **options: object) -> object:
        forking.start()
        forking.join(0.2)
        process = real(*arguments, **options)  # type: ignore[call-overload]
        begun.set()
        return process

    forking = threading.Thread(target=fork)
    monkeypatch.setattr("radt.training.validation_process.subprocess.Popen", popen)
    model = counter()
    set_epoch(model, 1)
    with OverlappedValidator(Fails({}), model) as validator:
        validator.submit(1)
        assert not validator.wait(1).failure
    forking.join()
    assert forks == [True]


def test_an_exception_arrives_wherever_one_waits() -> None:
    for arrives_at in ("submit", "wait", "finished", "close"):
        model = counter()
        set_epoch(model, 2)
        validator = OverlappedValidator(Fails({2: "raises"}), model, where="thread")
        with pytest.raises(TrainingError, match="the picture is broken") as raised, validator:
            validator.submit(2)
            if arrives_at == "submit":
                validator.submit(3)
            elif arrives_at == "wait":
                validator.wait(2)
            elif arrives_at == "finished":
                while True:
                    validator.finished()
        assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_one_part_that_dies_fails_the_epoch() -> None:
    model = counter()
    with OverlappedValidator(Fails({1: "is killed"}), model, parts=2) as validator:
        set_epoch(model, 1)
        validator.submit(1)
        assert "SIGKILL" in validator.wait(1).failure


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("where", WHERE)
def test_a_training_that_fails_does_not_wait_for_a_process(where: str, tmp_path: Path) -> None:
    model, gate = counter(), Gated(tmp_path)
    with (
        pytest.raises(ZeroDivisionError),
        OverlappedValidator(gate, model, where=where) as validator,
    ):
        set_epoch(model, 1)
        validator.submit(1)
        wait_until(lambda: gate.begun(1), "the validation")
        if where == "thread":  # it cannot be ended
            gate.go(1)
        raise ZeroDivisionError


# What another process cannot import ---------------------------------------------------------------


def test_an_evaluate_that_cannot_be_imported_is_refused_before_anything_trains() -> None:
    def closure(model: nn.Module, part: int, parts: int) -> Sums:
        return Sums(count=1)

    for function in (closure, lambda *_: Sums(count=1)):
        with pytest.raises(UsageError, match="evaluate cannot be sent to the validator's process"):
            OverlappedValidator(function, counter())
    holds_a_closure = counter()
    holds_a_closure.register_forward_hook(lambda *_: None)
    with pytest.raises(UsageError, match="the model cannot be sent to the validator's process"):
        OverlappedValidator(evaluate, holds_a_closure)


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from torch import nn
from radt.training import OverlappedValidator, Sums

class Own(nn.Linear):
    pass

def evaluate(model, part, parts):
    return Sums(count=1, kind=float(type(model) is Own), guarded=float(__name__ != "__main__"))
"""
TRAINS = """
def main():
    model = Own(1, 1)
    with OverlappedValidator(evaluate, model) as validator:
        validator.submit(1)
    print(validator.finished()[0].metrics)
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an interpreter to its end."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_an_evaluate_in_a_main_module_without_a_file_is_refused() -> None:
    done = python("-c", SCRIPT.format(root=str(ROOT)) + TRAINS + "main()")
    assert done.returncode == 1
    assert "UsageError: evaluate is defined in __main__, which is not a file" in done.stderr


def test_a_script_has_evaluate_and_its_model(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = SCRIPT.format(root=str(ROOT)) + TRAINS
    script.write_text(text + 'if __name__ == "__main__":\n    main()\n', encoding="utf-8")
    done = python(str(script))
    assert done.stdout == "{'kind': 1.0, 'guarded': 1.0}\n", done.stderr
    assert done.stderr == ""
    script.write_text(text + "main()\n", encoding="utf-8")
    done = python(str(script))
    assert done.returncode == 1
    assert "evaluate failed in epoch 1: UsageError: the validator's process" in done.stderr
    assert 'under `if __name__ == "__main__":`' in done.stderr


# The end of the training's process ----------------------------------------------------------------

WAITS = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from radt.training import OverlappedValidator
from tests.support.validating import Gated, counter, set_epoch

if __name__ == "__main__":
    model = counter()
    set_epoch(model, 1)
    with OverlappedValidator(Gated(Path({folder!r})), model) as validator:
        validator.submit(1)
"""


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_the_process_ends_with_its_training(ending: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WAITS.format(root=str(ROOT), folder=str(tmp_path)), encoding="utf-8")
    gate = Gated(tmp_path)
    training = subprocess.Popen(
        [sys.executable, str(script)], stderr=subprocess.PIPE, text=True, process_group=0
    )
    try:
        wait_until(lambda: gate.begun(1), "the validation")
        validator = gate.begun(1)
        os.killpg(training.pid, ending)  # as Ctrl-C in a terminal
        _, errors = training.communicate(timeout=TIMEOUT_S)
    finally:
        training.kill()
    wait_until(lambda: not alive(validator), "the validator's end")
    assert training.returncode == -ending
    assert errors.count("KeyboardInterrupt") == (ending is signal.SIGINT), errors
