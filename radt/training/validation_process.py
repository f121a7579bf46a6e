"""Validate in a separate process: the training's side, and the code that runs in the process.

The process inherits three descriptors: the memory of the snapshots, a memory file with the pickles
of ``evaluate`` and of the model without its values, and one end of a socket pair for requests and
answers in JSON.
"""

from __future__ import annotations

import atexit
import io
import json
import mmap
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.connection import Connection, wait
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from radt.errors import TrainingError, UsageError, described
from radt.loaders.randomness import RandomState
from radt.processes import die_with_parent
from radt.training.evaluation import (
    Evaluate,
    Sums,
    ValidationLane,
    ValidatorDied,
    evaluated,
    targets_of,
)
from radt.training.layout import Layout
from radt.training.snapshot import SnapshotMemory, copy_all, slots_in
from radt.training.weights import model_tensors

#: A process that has not ended this long after the request is killed.
_END_S = 10.0
_MAIN = b"__main__"
#: Garbage collection is off during imports: they leave no garbage, and collecting takes a quarter
#: of PyTorch's import time.
_COMMAND = (
    "import gc; gc.disable();from radt.training.validation_process import main; gc.enable(); main()"
)
_in_validator = False


def refuse_inside_a_validator() -> None:
    """Raise in a validator process whose imported script trains without a main guard.

    Raises:
        UsageError: This is such a process.
    """
    if _in_validator:
        raise UsageError(
            "the validator's process imports this script to find evaluate or the model, and the "
            "script trains again",
            'Put what trains under `if __name__ == "__main__":`',
        )


#: Settings for the precision of float32 operations in PyTorch 2.9 and later, general ones first.
_PRECISIONS = tuple(
    f"{name}fp32_precision"
    for name in (
        *("", "cuda.matmul.", "cudnn.", "cudnn.conv.", "cudnn.rnn."),
        *("mkldnn.", "mkldnn.matmul.", "mkldnn.conv.", "mkldnn.rnn."),
    )
)


@dataclass(frozen=True, slots=True)
class _Numerics:
    """Settings of PyTorch that affect the last bits of results.

    Attributes:
        backends: Attributes of ``torch.backends``, and their values.
        matmul: Precision of matrix products before PyTorch 2.9. Later versions refuse to return it
            after the newer settings were used.
    """

    threads: int
    dtype: torch.dtype
    deterministic: bool
    warn_only: bool
    backends: dict[str, Any]
    matmul: str | None

    @classmethod
    def current(cls) -> _Numerics:
        is_new = hasattr(torch.backends, "fp32_precision")
        names = _PRECISIONS if is_new else ("cudnn.allow_tf32",)
        names = ("cudnn.benchmark", "cudnn.deterministic", *names)
        return cls(
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            {name: attrgetter(name)(torch.backends) for name in names},
            None if is_new else torch.get_float32_matmul_precision(),
        )

    def apply(self) -> None:
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        if self.matmul is not None:
            torch.set_float32_matmul_precision(self.matmul)
        for name, value in self.backends.items():
            # Set only differences: after any is set, evaluate can no longer read the older
            # settings.
            if attrgetter(name)(torch.backends) != value:
                path, _, attribute = name.rpartition(".")
                owner = attrgetter(path)(torch.backends) if path else torch.backends
                setattr(owner, attribute, value)


@dataclass(frozen=True, slots=True)
class _Setup:
    """Initial data of the process. ``evaluate`` and ``model`` are separate pickles."""

    prepare: dict[str, Any]
    layout: Layout
    numerics: _Numerics
    evaluate: bytes
    model: bytes


class Payload:
    """Data for a validator process, created once and used for each start.

    Args:
        evaluate: A function that another process can import, or another picklable callable.
        model: The model; its parameters and buffers are not sent.
        layout: Layout of its snapshots.

    Raises:
        UsageError: ``evaluate`` or the model cannot be sent.
    """

    def __init__(self, evaluate: Evaluate, model: nn.Module, layout: Layout) -> None:
        sent_evaluate = _pickled("evaluate", evaluate, {})
        places = {id(tensor): place for place, tensor in enumerate(model_tensors(model).values())}
        sent_model = _pickled("the model", model, places)
        main = _main_module()
        for what, sent in (("evaluate", sent_evaluate), ("the model", sent_model)):
            if _MAIN in sent and not main:
                raise UsageError(
                    f"{what} is defined in __main__, which is not a file that another process "
                    "can import",
                    'Move it to a module, or use OverlappedValidator(…, where="thread")',
                )
        needs_main = _MAIN in sent_evaluate or _MAIN in sent_model
        prepare = {"sys_path": sys.path, "sys_argv": sys.argv} | (main if needs_main else {})
        setup = _Setup(prepare, layout, _Numerics.current(), sent_evaluate, sent_model)
        self._bytes = pickle.dumps(setup, pickle.HIGHEST_PROTOCOL)

    def file(self) -> int:
        """Return the descriptor of a memory file with the data."""
        descriptor = os.memfd_create("radt-validator")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(self._bytes)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


#: Held while a process starts. A loader's worker forked meanwhile would inherit the pipe that
#: reports the start, and `subprocess.Popen` would wait until that worker ends.
_STARTING = threading.Lock()
os.register_at_fork(
    before=_STARTING.acquire,
    after_in_parent=_STARTING.release,
    after_in_child=_STARTING.release,
)


class ProcessLane(ValidationLane):
    """Evaluates one part in a process, which is restarted after it was killed.

    Args:
        payload: Data for the process.
        memory: Memory of the snapshots.
        part: Number of the part.
        parts: Number of parts.
    """

    def __init__(self, payload: Payload, memory: SnapshotMemory, part: int, parts: int) -> None:
        self._payload, self._memory, self._part, self._parts = payload, memory, part, parts
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None
        self._killed = False

    @property
    def pid(self) -> int | None:
        """Process id; None if it is not running."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def prepare(self) -> None:
        """Start the process. Its imports run while the first epoch trains.

        Raises:
            TrainingError: It cannot be started.
        """
        self._release()
        try:
            self._connection, theirs = multiprocessing.Pipe()
            with theirs, os.fdopen(self._payload.file(), "rb") as payload:
                passed = [theirs.fileno(), self._memory.descriptor, payload.fileno()]
                numbers = [*passed, os.getpid(), self._part, self._parts]
                # The kernel ends the process with the thread that started it, which lives until
                # `close`.
                with _STARTING:
                    self._process = subprocess.Popen(
                        [sys.executable, "-P", "-c", _COMMAND, *map(str, numbers)],
                        stdin=subprocess.DEVNULL,
                        pass_fds=passed,
                        process_group=0,  # only the training gets Ctrl-C, and then ends the process
                    )
        except OSError as error:
            raise TrainingError(
                f"the validator's process cannot be started: {error}",
                "Free memory, processes and open files (ulimit -n) on this machine",
            ) from error
        if self._killed:  # killed meanwhile
            self._process.kill()

    def evaluate(self, snapshot: Any) -> Sums:
        """See `ValidationLane`."""
        if self.pid is None:
            self.prepare()
        assert self._connection is not None
        snapshot.wait()
        request = {"slot": snapshot.slot, "epoch": snapshot.epoch}
        try:
            self._connection.send_bytes(json.dumps(request).encode())
            answer = self._answer()
        except (ConnectionError, EOFError):
            raise ValidatorDied(self._end_reason()) from None
        if "failed" in answer:
            raise TrainingError(
                f"evaluate failed in epoch {snapshot.epoch}: {answer['failed']}. "
                f"The validator's traceback:\n\n{answer['traceback']}".rstrip()
            )
        return Sums.from_json(answer)

    def _answer(self) -> dict[str, Any]:
        """Wait for an answer or for the process's end.

        Loader workers forked meanwhile may hold its end of the socket pair, so that end of file
        does not show that the process is gone.
        """
        assert self._process is not None and self._connection is not None
        ended = os.pidfd_open(self._process.pid)
        try:
            while not self._connection.poll():
                if ended in wait([self._connection, ended]) and not self._connection.poll():
                    raise EOFError
        finally:
            os.close(ended)
        answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return answer

    def _end_reason(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return f"the validator's process {self._process.pid} {how}"

    def close(self) -> None:
        """Ask the process to end, and wait. Kill it if it does not."""
        if self._process is not None and self._connection is not None:
            with suppress(ConnectionError):
                self._connection.send_bytes(b"")
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._release()

    def kill(self) -> None:
        """Kill the process, from another thread."""
        self._killed = True
        process = self._process  # its thread may clear it meanwhile
        if process is not None:
            process.kill()

    def _release(self) -> None:
        if self._process is not None:
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


# Pickles ------------------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Leaves out the values of tensors that each snapshot contains."""

    def __init__(self, file: io.BytesIO, places: dict[int, int]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._places = places

    def persistent_id(self, obj: Any) -> tuple[int, bool, bool] | None:
        if type(obj) not in (Tensor, nn.Parameter) or id(obj) not in self._places:
            return None
        return self._places[id(obj)], type(obj) is nn.Parameter, obj.requires_grad


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, layout: Layout) -> None:
        super().__init__(file)
        self._layout = layout
        self._tensors: dict[int, Tensor] = {}

    def persistent_load(self, pid: tuple[int, bool, bool]) -> Tensor:
        number, is_parameter, requires_grad = pid
        if number not in self._tensors:
            tensor = self._layout.pieces[number].empty()
            if is_parameter:
                tensor = nn.Parameter(tensor, requires_grad=requires_grad)
            self._tensors[number] = tensor
        return self._tensors[number]


def _pickled(what: str, thing: object, places: dict[int, int]) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, places).dump(thing)
    except Exception as error:
        raise UsageError(
            f"{what} cannot be sent to the validator's process: {described(error)}",
            "Define it at the top level of a module or script, without lambdas and closures, or "
            'use OverlappedValidator(…, where="thread")',
        ) from error
    return file.getvalue()


def _main_module() -> dict[str, str]:
    """Return the data with which another process imports the script (``multiprocessing.spawn``)."""
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return {"init_main_from_name": spec.name}
    file = getattr(main, "__file__", None)
    if file is not None and Path(file).exists():  # standard input is named <stdin>
        return {"init_main_from_path": str(Path(file).absolute())}
    return {}


# In the validator's process -----------------------------------------------------------------------


def main() -> None:
    """Answer requests until asked to end."""
    global _in_validator
    _in_validator = True
    connection, memory, payload, parent, part, parts = map(int, sys.argv[1:])
    die_with_parent(parent)
    failure, validator = None, None
    try:
        validator = _Validator(payload, memory, part, parts)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the parent must know
        failure = _failure(error)
    _answer(Connection(connection), validator, failure)
    atexit._run_exitfuncs()  # noqa: SLF001 - end the loaders' workers
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # save the training the wait for freeing modules and tensors one by one


def _answer(
    connection: Connection[Any, Any],
    validator: _Validator | None,
    failure: dict[str, Any] | None,
) -> None:
    while request := connection.recv_bytes():
        answer = failure
        if validator is not None:
            try:
                answer = validator.validate(**json.loads(request)).to_json()
            except BaseException as error:  # noqa: BLE001 - as above
                answer = _failure(error)
        connection.send_bytes(json.dumps(answer).encode())


def _failure(error: BaseException) -> dict[str, Any]:
    return {"failed": described(error), "traceback": traceback.format_exc()}


class _Validator:
    """The copy of the model, and ``evaluate``."""

    def __init__(self, payload: int, memory: int, part: int, parts: int) -> None:
        with mmap.mmap(payload, 0) as file:
            setup: _Setup = pickle.loads(file)  # noqa: S301 - the parent's, as are the others
        os.close(payload)
        self._part, self._parts = part, parts
        with _recording_nothing():  # an imported script may open a run
            spawn.prepare(setup.prepare)
            self._evaluate: Evaluate = pickle.loads(setup.evaluate)  # noqa: S301
            replica: nn.Module = _Unpickler(io.BytesIO(setup.model), setup.layout).load()
        self._replica = replica
        setup.numerics.apply()
        self._targets = targets_of(replica, setup.layout)
        self._slots = slots_in(mmap.mmap(memory, 0), setup.layout)

    def validate(self, slot: int, epoch: int) -> Sums:
        copy_all(self._slots[slot], self._targets)
        # Random numbers depend only on epoch and part, even after a restart of the process.
        RandomState.seeded(epoch * self._parts + self._part).restore()
        return evaluated(self._evaluate, self._replica, self._part, self._parts)


@contextmanager
def _recording_nothing() -> Iterator[None]:
    before = os.environ.get("RADT_MODE")
    os.environ["RADT_MODE"] = "off"
    try:
        yield
    finally:
        del os.environ["RADT_MODE"]
        if before is not None:
            os.environ["RADT_MODE"] = before
