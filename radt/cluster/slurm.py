"""Slurm as an engine, through its own commands.

Of what they print, only formats that are asked for by fields are read, and lines of errors. Written
with Slurm 22.05; later versions have more states, which count as running.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from radt.cluster.engine import INTENT, REST, ArrayRequest, End, JobId, JobState, Phase
from radt.cluster.shape import Shape
from radt.cluster.slurm_command import GONE, run
from radt.errors import ClusterError, EngineAwayError, SubmitLimitError

#: Seconds before the time limit at which steps are told, at most; Slurm may be 60 s early.
_NOTICE_S = 120
_MIB = 1 << 20
#: Array index, state, nodes, (expected) start, comment, and last the reason, which may be any text.
_QUEUE_FIELDS = ("%F", "%K", "%T", "%N", "%S", "%k", "%r")
_PAST_FIELDS = ("JobID", "State", "NodeList")
_MOST_IN_ARGUMENT = 1000

_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED"})
_HELD_STATES = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT"})
_HELD = re.compile(r"held", re.IGNORECASE)  # JobHeldUser, launch_failed_requeued_held
_ENDS: Mapping[str, End] = {
    **{end.value: end for end in End},
    "REVOKED": End.CANCELLED,
    "LAUNCH_FAILED": End.BOOT_FAIL,
    "RECONFIG_FAIL": End.BOOT_FAIL,
}
#: Why the test of a job fails that would be queued.
_WAITS = re.compile(
    r"nodes are busy|node not available|partition not available|partition configuration not"
    r"|DOWN state|held state|maintenance reservation",
    re.IGNORECASE,
)
_UNKNOWN_TIMES = ("N/A", "Unknown", "None", "")


class Slurm:
    """The cluster that Slurm's commands on this machine belong to; an `Engine`.

    Args:
        patience_s: For the answer to a question; None for as long as orders may take.
    """

    name = "slurm"

    def __init__(self, patience_s: float | None = None) -> None:
        self._patience_s = patience_s

    @cached_property
    def max_array_size(self) -> int:
        limits = [int(self._config.get("MaxArraySize", "1001"))]
        if match := re.search(
            r"max_array_tasks=(\d+)", self._config.get("SchedulerParameters", "")
        ):
            limits.append(int(match[1]))
        if min(limits) < 1:
            raise ClusterError(
                "this cluster has no job arrays (MaxArraySize=0), which radt needs",
                "Ask its administrators for MaxArraySize=1001, which is Slurm's default",
            )
        return min(limits)

    def check(self, request: ArrayRequest) -> str:
        try:
            answer = run("sbatch", "--test-only", *_options(request), script=request.script)
        except EngineAwayError:
            raise
        except ClusterError as error:
            if _WAITS.search(error.message):  # it would be queued all the same
                return error.message.rpartition(": ")[2]
            raise
        line = next((line for line in answer.splitlines() if " to start at " in line), "")
        return re.sub(r"^(?:sbatch: )?Job \d+ ", "", line or answer.strip())

    def pick(self, request: ArrayRequest) -> str:
        answer = self.check(request)
        match = re.search(r" on (?:nodes? )?(\S+) in partition ", answer)
        if match is None:
            raise ClusterError(
                f"Slurm does not say on which node a job would start: {answer}",
                'Write sbatch = ["--nodelist=NODE"] into [cluster] instead of same-node',
            )
        return match[1]

    def submit(self, request: ArrayRequest) -> str:
        try:
            answer = run("sbatch", "--parsable", *_options(request), script=request.script)
        except SubmitLimitError:
            # sbatch may have been ended while it tried once more.
            if (array := self.find(request.intent)) is None:
                raise
            return array
        match = re.search(r"^(\d+)(?:;|$)", answer, re.MULTILINE)
        if match is None:
            raise ClusterError(
                f"sbatch printed no job id but {answer.strip()!r}",
                "Check that sbatch on PATH is Slurm's, and not a script of the site",
            )
        return match[1]

    def find(self, intent: str) -> str | None:
        jobs = self._ask(
            *("squeue", "--noheader", "--states=all", f"--user={os.getuid()}"),
            "--format=%F|%k",
        )
        for line in jobs.splitlines():
            array, _, comment = line.strip().partition("|")
            if comment == intent:
                return array
        return None

    def states(self, arrays: Collection[str]) -> Mapping[JobId, JobState]:
        if not arrays:
            return {}
        answer = self._ask(
            *("squeue", "--noheader", "--array", "--states=all"),
            *(f"--jobs={','.join(sorted(arrays))}", f"--format={'|'.join(_QUEUE_FIELDS)}"),
            harmless=GONE,  # asked about a single one that it has forgotten
        )
        return parse_queue(answer)

    def past(self, jobs: Collection[JobId]) -> Mapping[JobId, JobState]:
        if not jobs or self._config.get("AccountingStorageType", "").endswith("/none"):
            return {}
        found: dict[JobId, JobState] = {}
        for words in _expressions(jobs):
            answer = self._ask(
                *("sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={words}"),
                f"--format={','.join(_PAST_FIELDS)}",
            )
            found |= parse_past(answer)
        return {job: found[job] for job in jobs if job in found}

    def cancel(self, jobs: Collection[JobId], *, now: bool = False) -> None:
        if now:
            # A signal to the job is a polite cancel, whichever it is; one to a step is itself.
            steps = [f"{job}.0" for job in sorted(jobs)]
            for start in range(0, len(steps), _MOST_IN_ARGUMENT):
                some = steps[start : start + _MOST_IN_ARGUMENT]
                run("scancel", "--signal=KILL", *some, harmless=GONE)
        # Pending jobs end; steps get SIGTERM, and SIGKILL after KillWait (30 s unless it is set).
        for words in _expressions(jobs):
            run("scancel", "--quiet", words, harmless=GONE)

    def release(self, jobs: Collection[JobId]) -> None:
        for words in _expressions(jobs):
            run("scontrol", "release", words, harmless=GONE)

    def hold(self, jobs: Collection[JobId]) -> None:
        for words in _expressions(jobs):
            run("scontrol", "uhold", words, harmless=GONE)

    @cached_property
    def _config(self) -> Mapping[str, str]:
        lines = self._ask("scontrol", "show", "config").splitlines()
        pairs = (line.partition("=") for line in lines)
        return {name.strip(): value.strip() for name, _, value in pairs}

    def _ask(self, *command: str, harmless: re.Pattern[str] | None = None) -> str:
        return run(*command, harmless=harmless, timeout_s=self._patience_s)


# What sbatch is asked for -------------------------------------------------------------------------


def _options(request: ArrayRequest) -> list[str]:
    """Return the options of sbatch. The site's come last: they win."""
    most = "" if request.most_at_once is None else f"%{request.most_at_once}"
    return [
        f"--job-name={request.name}",
        f"--comment={request.intent}",
        f"--array={ranges(request.indices)}{most}",
        f"--output={request.output}",
        "--open-mode=append",  # a job that is queued again goes on with the file
        "--requeue",
        f"--signal=USR1@{_notice_s(request.shape.time_s)}",  # to steps; not to the batch script
        *_shape_options(request.shape),
        *request.options,
    ]


def _shape_options(shape: Shape) -> list[str]:
    options = [f"--nodes={shape.nodes}", "--ntasks-per-node=1"]
    if shape.gpus:
        kind = shape.gpu_type.removeprefix("gpu:")
        options.append(f"--gres=gpu:{kind}:{shape.gpus}" if kind else f"--gres=gpu:{shape.gpus}")
    if shape.cpus is not None:
        options.append(f"--cpus-per-task={shape.cpus}")
    if shape.memory_bytes is not None:
        options.append(f"--mem={math.ceil(shape.memory_bytes / _MIB)}M")
    if shape.time_s is not None:
        options.append(f"--time={max(1, math.ceil(shape.time_s / 60))}")
    if shape.partition:
        options.append(f"--partition={shape.partition}")
    if shape.exclusive:
        options.append("--exclusive")
    if shape.node:
        options.append(f"--nodelist={shape.node}")
    return options


def _notice_s(time_s: float | None) -> int:
    """Return how long before the time limit a job is told: a quarter of a short limit."""
    return _NOTICE_S if time_s is None else max(1, min(_NOTICE_S, int(time_s / 4)))


def ranges(indices: Iterable[int]) -> str:
    """Write indices as Slurm does.

    >>> ranges([3, 0, 1, 2, 7])
    '0-3,7'
    """
    found: list[list[int]] = []
    for index in sorted(indices):
        if found and index == found[-1][1] + 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in found)


def _expressions(jobs: Collection[JobId]) -> list[str]:
    """Write jobs as ``1234_[0-3,7]``, in words that the command line has room for."""
    words = []
    for array in sorted({job.array for job in jobs}, key=int):
        indices = sorted(job.index for job in jobs if job.array == array)
        words += [
            f"{array}_[{ranges(indices[start : start + _MOST_IN_ARGUMENT])}]"
            for start in range(0, len(indices), _MOST_IN_ARGUMENT)
        ]
    return words


# What Slurm says ----------------------------------------------------------------------------------


def parse_queue(text: str) -> dict[JobId, JobState]:
    """Parse what squeue says of arrays, a line a job."""
    states = {}
    for line in text.splitlines():
        fields = line.strip().split("|", len(_QUEUE_FIELDS) - 1)
        if len(fields) == len(_QUEUE_FIELDS):
            array, index, state, nodes, starts, comment, reason = fields
            number = int(index) if index.isdigit() else REST
            found = _state(state, nodes, starts, reason)
            states[JobId(array, number)] = replace(found, intent=_intent(comment))
    return states


def parse_past(text: str) -> dict[JobId, JobState]:
    """Parse what sacct says of jobs, a line each: ``1234_7|CANCELLED by 1000|gpu-07``."""
    states = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        job = re.fullmatch(r"(\d+)_(\d+)", fields[0])
        if job is not None and len(fields) == len(_PAST_FIELDS):
            states[JobId(job[1], int(job[2]))] = _state(fields[1], fields[2])
    return states


def _intent(comment: str) -> str | None:
    """Return the intent that a job has as its comment; None if the site writes its own there."""
    if comment in ("", "(null)"):
        return ""
    return comment if comment.startswith(INTENT) else None


def _state(words: str, nodes: str, starts: str = "", reason: str = "") -> JobState:
    state = words.split()[0].rstrip("+") if words.split() else ""
    if reason in ("None", "none", "(null)"):
        reason = ""
    if nodes in ("None assigned", "(null)"):
        nodes = ""
    if end := _ENDS.get(state):
        return JobState(Phase.ENDED, reason, nodes, end)
    if state in _HELD_STATES or (state in _WAITING and _HELD.search(reason)):
        return JobState(Phase.HELD, reason)
    if state in _WAITING:
        return JobState(Phase.QUEUED, reason, starts="" if starts in _UNKNOWN_TIMES else starts)
    # COMPLETING, CONFIGURING, SUSPENDED and what later versions may add: somebody is at work.
    return JobState(Phase.RUNNING, "" if state == "RUNNING" else state.capitalize(), nodes)
