"""What an exit means: out of memory is told from a failure, and a mention of it from the thing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from radt import units
from radt.model import RunStatus
from radt.runner.oom import OomEvidence, OomWatch
from radt.runner.outcome import NOT_ENDED, RunEnd, dismissed_end, run_end
from radt.runner.process import Exit
from tests.support.control_groups import RecordedGroups, memory_group

NOTHING = OomEvidence()
KILLED = -signal.SIGKILL

TRACEBACK = """\
Epoch 3
Traceback (most recent call last):
  File "train.py", line 12, in <module>
    loss.backward()
"""


def ending(
    code: int,
    output: str = "",
    *,
    stopped: str = "",
    timed_out_s: float | None = None,
    memory: OomEvidence = NOTHING,
    pid: int = 1234,
    keeper_died: bool = False,
    container: str = "",
) -> RunEnd:
    return run_end(
        Exit(code, pid=pid, keeper_died=keeper_died, container=container),
        stopped=stopped,
        timed_out_s=timed_out_s,
        tail=output.splitlines(),
        memory=memory,
    )


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        (0, RunStatus.FINISHED, ""),
        (3, RunStatus.FAILED, "exit code 3"),
        (255, RunStatus.FAILED, "exit code 255"),
        (139, RunStatus.FAILED, "exit code 139 (as shells report SIGSEGV)"),
        (128, RunStatus.FAILED, "exit code 128"),
        (KILLED, RunStatus.KILLED, "killed by SIGKILL"),
        (-signal.SIGSEGV, RunStatus.KILLED, "killed by SIGSEGV"),
        (-signal.SIGABRT, RunStatus.KILLED, "killed by SIGABRT"),
        (-40, RunStatus.KILLED, "killed by signal 40"),
    ],
)
def test_exit_codes_and_signals(code: int, status: RunStatus, reason: str) -> None:
    assert ending(code) == RunEnd(status, reason)


def test_what_radt_ended_says_why() -> None:
    assert ending(-signal.SIGINT, stopped="stopped by the user") == RunEnd(
        RunStatus.KILLED, "stopped by the user"
    )
    assert ending(1, timed_out_s=600.0) == RunEnd(RunStatus.TIMEOUT, "longer than 10 min")
    assert ending(KILLED, keeper_died=True) == RunEnd(
        RunStatus.KILLED, "its keeper process was killed"
    )


def test_a_process_that_says_it_succeeded_has_also_when_it_was_asked_to_end() -> None:
    assert ending(0, stopped="stopped by the user", timed_out_s=600.0).status is RunStatus.FINISHED


@pytest.mark.parametrize(
    ("code", "ended_ns", "was_killed", "end"),
    [
        (0, 11, False, RunEnd(RunStatus.FINISHED)),
        (7, None, False, RunEnd(RunStatus.FINISHED)),
        (-signal.SIGINT, 11, False, RunEnd(RunStatus.FINISHED)),
        # What it left behind had to be killed, not the service.
        (-signal.SIGINT, 11, True, RunEnd(RunStatus.FINISHED)),
        (KILLED, 11, True, RunEnd(RunStatus.KILLED, NOT_ENDED)),
        (128 + signal.SIGKILL, 11, True, RunEnd(RunStatus.KILLED, NOT_ENDED)),
        (KILLED, 11, False, None),
        (7, 9, False, None),
        (7, 9, True, None),
    ],
)
def test_a_service_that_is_asked_to_end_has_finished_unless_it_had_ended_or_was_killed(
    code: int, ended_ns: int | None, was_killed: bool, end: RunEnd | None
) -> None:
    exit_ = Exit(code, ended_ns=ended_ns)
    assert dismissed_end(exit_, 10, was_killed=was_killed) == end


GPU_TEXTS = {
    "torch 2.5 and later": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 79.15 GiB of which 1.24 GiB is free. Process 812 has 77.90 GiB memory in use.",
        "tried to allocate 2.00 GiB",
    ),
    "torch 2.0": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; "
        "15.78 GiB total capacity; 14.56 GiB already allocated; 18.75 MiB free)",
        "tried to allocate 20.00 MiB",
    ),
    "torch 1": (
        "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 15.78 GiB total)",
        "tried to allocate 1.50 GiB",
    ),
    "torch, outside its allocator": (
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously "
        "reported at some other API call",
        "an allocation failed",
    ),
    "torch, a rank": (
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.",
        "tried to allocate 512.00 MiB",
    ),
    "torch, C++": (
        "terminate called after throwing an instance of 'c10::OutOfMemoryError'\n"
        "  what():  CUDA out of memory. Tried to allocate 64.00 MiB.",
        "tried to allocate 64.00 MiB",
    ),
    "cuBLAS": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "an allocation failed",
    ),
    "cuDNN": (
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "an allocation failed",
    ),
    "NCCL": (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006, unhandled "
        "cuda error\nLast error:\nCuda failure 2 'out of memory'",
        "an allocation failed",
    ),
    "TensorFlow": (
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node "
        "__wrapped__Mul}} OOM when allocating tensor with shape[65536,65536] and type float on "
        "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Mul]",
        "an allocation failed",
    ),
    "JAX": (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
        "allocate 17179869184 bytes.",
        "tried to allocate 17.2 GB",
    ),
    "CuPy": (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes "
        "(allocated so far: 0 bytes).",
        "tried to allocate 8.59 GB",
    ),
    "RMM": (
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /rmm/cuda_memory_resource.hpp"
        ":63: cudaErrorMemoryAllocation out of memory",
        "an allocation failed",
    ),
    "Numba": (
        "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in "
        "CUDA_ERROR_OUT_OF_MEMORY",
        "an allocation failed",
    ),
}


@pytest.mark.parametrize("text", GPU_TEXTS)
def test_gpu_memory_that_ran_out_is_recognised(text: str) -> None:
    words, what = GPU_TEXTS[text]
    expected = RunEnd(RunStatus.OOM, f"GPU memory: {what}")
    assert ending(1, TRACEBACK + words) == expected
    assert ending(-signal.SIGABRT, TRACEBACK + words) == expected
    assert ending(0, TRACEBACK + words).status is RunStatus.FINISHED
    assert ending(-signal.SIGTERM, TRACEBACK + words).status is RunStatus.KILLED


def test_programs_without_exceptions_say_it_in_their_last_lines() -> None:
    words = "ggml_cuda: allocating 512.00 MiB on device 0: cudaMalloc failed: out of memory\n"
    expected = RunEnd(RunStatus.OOM, "GPU memory: tried to allocate 512.00 MiB")
    assert ending(1, words + "main: error: failed to load model") == expected
    assert ending(1, words + "still working\n" * 10).status is RunStatus.FAILED


OOM = GPU_TEXTS["torch 2.5 and later"][0] + "\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
CALLED = (
    "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit "
    "status 1.\n"
)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(TRACEBACK + OOM + "Epoch 4\n" * 60, id="dealt with long ago"),
        pytest.param(
            TRACEBACK + OOM + "smaller batch\n" + TRACEBACK + "ValueError: bad\n", id="dealt with"
        ),
        pytest.param(TRACEBACK + OOM + HANDLING + TRACEBACK + "KeyError: 'x'\n", id="while it was"),
        pytest.param(
            "CUDA out of memory, batch is halved\n" + TRACEBACK + "ValueError: bad\n", id="told"
        ),
        pytest.param(TRACEBACK + "ValueError: no config for 'out of memory'\n", id="words"),
        pytest.param(TRACEBACK + "KeyError: 'CUDA_ERROR'\n", id="another CUDA error"),
        pytest.param(
            TRACEBACK + "RuntimeError: CUDA error: an illegal memory access was encountered\n",
            id="another CUDA failure",
        ),
        pytest.param("", id="silence"),
    ],
)
def test_a_mention_of_memory_is_no_end_by_it(output: str) -> None:
    assert ending(1, output) == RunEnd(RunStatus.FAILED, "exit code 1")


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(TRACEBACK + OOM + "wandb: Synced 5 files\n" * 20, id="exit handlers"),
        pytest.param(TRACEBACK + OOM + TRACEBACK + CALLED, id="launcher"),
        pytest.param(
            TRACEBACK + OOM + TRACEBACK + "ConnectionResetError: [Errno 104]\n" + CALLED, id="peers"
        ),
        pytest.param(
            TRACEBACK + OOM + CAUSE + TRACEBACK + "trainer.TrainingError: step 12\n", id="cause"
        ),
    ],
)
def test_who_only_follows_does_not_hide_who_ran_out_of_memory(output: str) -> None:
    assert ending(1, output).status is RunStatus.OOM


def torchrun(ranks: int, culprit: str, how: str) -> str:
    """What PyTorch 2.14's torchrun prints when its last rank fails and the others miss it."""
    lost = (
        "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1. "
        "This is typically caused by a remote worker crashing."
    )
    words = [f"[rank{ranks - 1}]: {line}" for line in (TRACEBACK + culprit).splitlines()]
    for rank in range(ranks - 1):
        words += [f"[rank{rank}]: {line}" for line in (TRACEBACK + lost).splitlines()]
    words += [*(TRACEBACK * 4).splitlines(), "    raise ChildFailedError("]
    words += ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "train FAILED"]
    for rank in range(ranks):
        exitcode = how if rank == ranks - 1 else "-15 (pid: 1) (SIGTERM)"
        words += [f"[{rank}]:", "  time      : now", "  host      : localhost"]
        words += [f"  rank      : {rank}", f"  exitcode  : {exitcode}", "  error_file: <N/A>"]
    return "\n".join(words)


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_below_torchrun_is_found_behind_all_that_follows(ranks: int) -> None:
    assert ending(1, torchrun(ranks, OOM, "1 (pid: 77)")) == RunEnd(
        RunStatus.OOM, "GPU memory: tried to allocate 2.00 GiB"
    )
    bug = torchrun(ranks, "ValueError: bad", "1 (pid: 77)")
    assert ending(1, bug, memory=OomEvidence(own=1)).status is RunStatus.FAILED
    killed = torchrun(ranks, "", "-9 (pid: 77)  (SIGKILL)")
    assert ending(1, killed).status is RunStatus.FAILED
    assert ending(1, killed, memory=OomEvidence(0, 1, frozenset({77}))) == RunEnd(
        RunStatus.OOM, "host memory: killed by the kernel"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("MemoryError", "host memory: an allocation failed"),
        (
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 745. GiB for an array "
            "with shape (100000000000,) and data type float64",
            "host memory: tried to allocate 745 GiB",
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't "
            "allocate memory: you tried to allocate 4398046511104 bytes. Error code 12 (Cannot "
            "allocate memory)",
            "host memory: tried to allocate 4.40 TB",
        ),
        ("OSError: [Errno 12] Cannot allocate memory", "host memory: an allocation failed"),
        (
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating "
            "tensor with shape[9] on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
            "host memory: an allocation failed",
        ),
    ],
)
def test_host_memory_that_ran_out_is_recognised(words: str, reason: str) -> None:
    assert ending(1, TRACEBACK + words) == RunEnd(RunStatus.OOM, reason)


BUS_ERROR = """\
RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that \
dataloader's workers are out of shared memory.
"""


@pytest.mark.parametrize(
    ("code", "output", "status", "begin"),
    [
        (1, TRACEBACK + BUS_ERROR, RunStatus.OOM, "shared memory: larger than "),
        (
            *(-signal.SIGBUS, "", RunStatus.KILLED),
            "killed by SIGBUS; perhaps shared memory was full: ",
        ),
    ],
)
def test_shared_memory_that_ran_out_names_its_size_and_the_option_for_it(
    code: int, output: str, status: RunStatus, begin: str
) -> None:
    size = units.size(shutil.disk_usage("/dev/shm").total)
    reason = f"{begin}/dev/shm ({size}, set with --shm-size in a container)"
    assert ending(code, output) == RunEnd(status, reason)


def test_a_container_is_found_in_the_kernels_log_by_its_id() -> None:
    def of_container(**evidence: Any) -> RunEnd:
        return ending(KILLED, container="c0ffee", memory=OomEvidence(**evidence))

    log = {"elsewhere": 1, "pids": frozenset({77})}
    killed = RunEnd(RunStatus.OOM, "host memory: killed by the kernel")
    assert of_container(**log, groups=frozenset({"/system.slice/docker-c0ffee.scope"})) == killed
    assert of_container(**log, groups=frozenset({"/docker/other"})).status is RunStatus.KILLED
    # Without the log, a kill in the runner's own group is no more certain than any other.
    unread = RunEnd(RunStatus.OOM, "host memory: probably killed by the kernel")
    assert of_container(own=1) == of_container(elsewhere=1) == unread


WORKER = TRACEBACK + "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.\n"
WORKERS = TRACEBACK + "RuntimeError: DataLoader worker (pid(s) 76, 77) exited unexpectedly\n"
TORCHRUN = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Root Cause (first observed failure):
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 77)
  traceback : Signal 9 (SIGKILL) received by PID 77
"""


@pytest.mark.parametrize(
    ("code", "output"),
    [(KILLED, ""), (128 + 9, ""), (1, WORKER), (1, WORKERS), (1, TRACEBACK + TORCHRUN)],
    ids=["itself", "below a shell", "a worker", "one of several workers", "below torchrun"],
)
def test_killed_by_the_kernel_takes_the_kernels_word(code: int, output: str) -> None:
    certain = RunEnd(RunStatus.OOM, "host memory: killed by the kernel")
    probable = RunEnd(RunStatus.OOM, "host memory: probably killed by the kernel")
    victim = 77 if output else 1234
    assert ending(code, output).status in (RunStatus.KILLED, RunStatus.FAILED)
    assert ending(code, output, memory=OomEvidence(1, 1, frozenset({victim}))) == certain
    assert ending(code, output, memory=OomEvidence(own=1)) == certain
    assert ending(code, output, memory=OomEvidence(own=2)) == probable
    assert ending(code, output, memory=OomEvidence(elsewhere=1)) == probable
    other = OomEvidence(1, 1, frozenset({4321}))
    assert ending(code, output, memory=other).status is not RunStatus.OOM


@pytest.mark.parametrize(
    ("code", "output"),
    [(1, ""), (-signal.SIGSEGV, ""), (-signal.SIGTERM, ""), (1, TRACEBACK + "ValueError: bad")],
)
def test_what_the_kernel_did_to_others_is_no_reason(code: int, output: str) -> None:
    assert ending(code, output, memory=OomEvidence(own=1, elsewhere=1)) == ending(code, output)


class Machine:
    """What the kernel would say: ``/proc``, cgroups and its log, in files."""

    def __init__(self, folder: Path, version: int) -> None:
        groups = RecordedGroups(folder)
        if version == 1:
            groups.mount("cgroup", "cgroup", options="rw,memory")
        else:
            groups.mount("cgroup", "cgroup2")
        groups.process("self", {1: "4:memory:", 2: "0::"}[version] + "/user/radt.scope")
        self.proc = groups.proc
        self.kmsg = folder / "kmsg"
        self.own = folder / "cgroup" / "user" / "radt.scope"
        self.name = {1: "memory.oom_control", 2: "memory.events"}[version]
        (self.proc / "self" / "ns").mkdir(parents=True)
        self.own.mkdir(parents=True)
        self.pid_namespace("pid:[4026531836]")
        for path in (self.own, self.own.parent):
            self.count(path / self.name, 5)
        self.count(self.proc / "vmstat", 7)
        self.kmsg.write_text("6,1,1,-;Killed process 1234 (before)\n", encoding="ascii")

    def pid_namespace(self, text: str) -> None:
        link = self.proc / "self" / "ns" / "pid"
        link.unlink(missing_ok=True)
        link.symlink_to(text)

    @staticmethod
    def count(path: Path, kills: int) -> None:
        path.write_text(f"low 0\noom 9\noom_kill {kills}\noom_group_kill 0\n", encoding="ascii")

    def say(self, pid: int, group: str = "") -> None:
        with self.kmsg.open("a", encoding="ascii") as file:
            if group:
                where = f"oom_memcg=/docker,task_memcg={group},task=a b,pid={pid},uid=0"
                file.write(
                    f"6,8,8,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),{where}\n"
                )
            file.write(f"3,9,9,-;Out of memory: Killed process {pid} (python) total-vm:1kB\n")

    def watch(self) -> OomWatch:
        return OomWatch(self.proc, self.kmsg)


@pytest.fixture(params=[1, 2], ids=["cgroup v1", "cgroup v2"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path, request.param)


def test_evidence_is_what_has_happened_since_the_watch_began(machine: Machine) -> None:
    watch = machine.watch()
    assert watch.evidence() == OomEvidence(0, 0, frozenset())
    machine.count(machine.own / machine.name, 6)
    machine.say(77)
    assert watch.evidence() == OomEvidence(1, 0, frozenset({77}))
    machine.count(machine.own.parent / machine.name, 7)
    machine.say(78, "/docker/c0ffee")
    groups = frozenset({"/docker/c0ffee"})
    assert watch.evidence() == OomEvidence(1, 2, frozenset({77, 78}), groups)
    machine.count(machine.proc / "vmstat", 10)
    assert watch.evidence() == OomEvidence(1, 3, frozenset({77, 78}), groups)
    assert machine.watch().evidence() == OomEvidence(0, 0, frozenset())


def test_one_kill_explains_one_run(machine: Machine) -> None:
    machine.kmsg.unlink()
    watch = machine.watch()
    machine.count(machine.own / machine.name, 6)
    machine.count(machine.proc / "vmstat", 8)
    first = ending(KILLED, memory=watch.evidence())
    assert first == RunEnd(RunStatus.OOM, "host memory: killed by the kernel")
    assert ending(KILLED, memory=watch.evidence()).status is RunStatus.KILLED


def test_numbers_of_another_pid_namespace_are_not_taken_for_ours(machine: Machine) -> None:
    machine.pid_namespace("pid:[4026532999]")
    watch = machine.watch()
    machine.say(1234)
    assert watch.evidence() == OomEvidence(0, 0, None)


def test_a_machine_that_says_nothing_is_no_error(tmp_path: Path) -> None:
    watch = OomWatch(tmp_path / "proc", tmp_path / "kmsg")
    assert watch.evidence() == OomEvidence(0, 0, None)


#: Moves into a cgroup and runs, as the runner does, a command that needs more than it may have.
SMALL_MACHINE = """
import os, pathlib, sys
group, folder = map(pathlib.Path, sys.argv[1:])
(group / "cgroup.procs").write_text(str(os.getpid()))
from radt.runner.barrier import Barrier
from radt.runner.oom import MemoryWatch
from radt.runner.outcome import run_end
from radt.runner.process import TrainingProcess
watch, barrier, exits = MemoryWatch(), Barrier(), []
source = "x = bytearray(400_000_000)\\nfor i in range(0, len(x), 4096): x[i] = 1"
process = TrainingProcess(
    [sys.executable, "-c", source], run_id="f" * 32, cwd=folder, env=dict(os.environ),
    barrier=barrier, output_log=folder / "output.log", show=print, on_exit=exits.append,
)
process.wait_ready(180)
barrier.close()
process.wait_released(180)
process.join()
print(exits[0].code)
ending = run_end(
    exits[0], stopped="", timed_out_s=None, tail=exits[0].tail, memory=watch.evidence()
)
print(f"{ending.status}: {ending.reason}")
"""


def test_the_kernels_own_kill_is_recognised(tmp_path: Path) -> None:
    with memory_group(150_000_000) as group:
        done = subprocess.run(
            [sys.executable, "-c", SMALL_MACHINE, str(group.folder), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert done.stdout.splitlines() == ["-9", "OOM: host memory: killed by the kernel"], done.stderr
