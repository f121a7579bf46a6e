"""Slurm as an engine, through its command-line tools.

Parses only output in formats that select fields, and error lines. Written for Slurm 22.05; unknown
states of later versions count as running.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property

from radt.cluster.engine import INTENT, REST, ArrayRequest, JobEnd, JobId, JobState, Phase, Shape
from radt.errors import ClusterError, EngineAwayError, SubmitLimitError
from radt.processes import run_command
from radt.units import ranges_text

#: Maximum seconds before the time limit at which steps get a signal; Slurm may be 60 s early.
_NOTICE_S = 120
_MIB = 1 << 20
#: Array id and index, state, nodes, (expected) start, comment; the reason is last: it may be any
#: text.
_QUEUE_FIELDS = ("%F", "%K", "%T", "%N", "%S", "%k", "%r")
_PAST_FIELDS = ("JobID", "State", "NodeList")
_MOST_IN_ARGUMENT = 1000

_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED"})
_HELD_STATES = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT"})
_HELD = re.compile(r"held", re.IGNORECASE)  # JobHeldUser, launch_failed_requeued_held
_ENDS: Mapping[str, JobEnd] = {
    **{end.value: end for end in JobEnd},
    "REVOKED": JobEnd.CANCELLED,
    "LAUNCH_FAILED": JobEnd.BOOT_FAIL,
    "RECONFIG_FAIL": JobEnd.BOOT_FAIL,
}
#: Errors of a test submission that would nevertheless be queued.
_WAITS = re.compile(
    r"nodes are busy|node not available|partition not available|partition configuration not"
    r"|DOWN state|held state|maintenance reservation",
    re.IGNORECASE,
)
_UNKNOWN_TIMES = ("N/A", "Unknown", "None", "")


class Slurm:
    """The cluster of Slurm's commands on this machine; an `Engine`.

    Args:
        patience_s: Time limit for answers to queries; None for the time limit of other commands.
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
            # sbatch may have succeeded and been killed during a retry.
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
            harmless=GONE,  # the error for a query about a single forgotten job
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
            # scancel with a signal for a whole job cancels it; for a step, it sends that signal.
            steps = [f"{job}.0" for job in sorted(jobs)]
            for start in range(0, len(steps), _MOST_IN_ARGUMENT):
                some = steps[start : start + _MOST_IN_ARGUMENT]
                run("scancel", "--signal=KILL", *some, harmless=GONE)
        # Pending jobs are cancelled; steps get SIGTERM, and SIGKILL after KillWait (default 30 s).
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


# Options of sbatch --------------------------------------------------------------------------------


def _options(request: ArrayRequest) -> list[str]:
    """Return the options of sbatch. The site's come last and take precedence."""
    return [
        f"--job-name={request.name}",
        f"--comment={request.intent}",
        f"--array={ranges_text(sorted(request.indices), ',')}",
        f"--output={request.output}",
        "--open-mode=append",  # a requeued job continues the file
        "--requeue",
        f"--signal=USR1@{_notice_s(request.shape.time_s)}",  # to steps, not to the batch script
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
    """Return the seconds before the time limit at which a job is notified: ≤ 1/4 of the limit."""
    return _NOTICE_S if time_s is None else max(1, min(_NOTICE_S, int(time_s / 4)))


def _expressions(jobs: Collection[JobId]) -> list[str]:
    """Write jobs as ``1234_[0-3,7]``, split into words short enough for a command line."""
    words = []
    for array in sorted({job.array for job in jobs}, key=int):
        indices = sorted(job.index for job in jobs if job.array == array)
        words += [
            f"{array}_[{ranges_text(indices[start : start + _MOST_IN_ARGUMENT], ',')}]"
            for start in range(0, len(indices), _MOST_IN_ARGUMENT)
        ]
    return words


# Output of Slurm ----------------------------------------------------------------------------------


def parse_queue(text: str) -> dict[JobId, JobState]:
    """Parse the output of squeue about arrays, one line per job."""
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
    """Parse the output of sacct, one line per job: ``1234_7|CANCELLED by 1000|gpu-07``."""
    states = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        job = re.fullmatch(r"(\d+)_(\d+)", fields[0])
        if job is not None and len(fields) == len(_PAST_FIELDS):
            states[JobId(job[1], int(job[2]))] = _state(fields[1], fields[2])
    return states


def _intent(comment: str) -> str | None:
    """Return the intent from a job's comment; None if the site writes its own comment there."""
    if comment in ("", "(null)"):
        return ""
    return comment if comment.startswith(INTENT) else None


def _state(state: str, nodes: str, starts: str = "", reason: str = "") -> JobState:
    state = "".join(state.split()[:1]).rstrip("+")  # CANCELLED by 1000, CANCELLED+
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
    # COMPLETING, CONFIGURING, SUSPENDED and states of later versions: the job is not over.
    return JobState(Phase.RUNNING, "" if state == "RUNNING" else state.capitalize(), nodes)


#: Meanings of Slurm's reasons; https://slurm.schedmd.com/job_reason_codes.html
_REASONS = {
    "Priority": "jobs before it in the queue",
    "Resources": "a node with room for it",
    "BeginTime": "its time to start again, after its node failed or another job took it",
    "Dependency": "another job",
    "JobArrayTaskLimit": "other jobs of its array",
    "ReqNodeNotAvail": "a node that is down, drained or reserved",
    "PartitionDown": "its partition, which is down",
    "PartitionTimeLimit": "nothing: its time is longer than the partition allows",
    "held": "a release: see above",
}
#: Prefixes of reasons about limits of an account or a quality of service.
_LIMIT_REASONS = ("Assoc", "QOS", "MaxJobs", "MaxSubmit")


def waits_for(reason: str) -> str:
    """Return what a job is waiting for, given Slurm's reason."""
    if reason.startswith(_LIMIT_REASONS):
        return "jobs of its account to end: a limit is reached"
    return next((text for word, text in _REASONS.items() if reason.startswith(word)), "–")


#: Time limit for an answer, in s. Slurm's own timeouts add up to less, unless the controller is
#: overloaded, or slurm.conf is missing, in which case its commands wait a minute.
TIMEOUT_S = 60.0

#: The variables that locate the cluster. All others of Slurm belong to a job that radt may run in,
#: or change the output of its commands.
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
_DROPPED = ("SLURM_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "CUDA_VISIBLE_DEVICES")

# Slurm's error messages: src/common/slurm_errno.c of 22.05 and later.
_AWAY = re.compile(
    r"unable to contact slurm|timed out|zero bytes|standby mode|not responding|rate limit exceeded"
    r"|connection (?:failure|refused|reset|rejected|forced)|(?:send|receive) failure|socket error"
    r"|authentication (?:error|cred)|munge|try again later|to (?:the )?database",
    re.IGNORECASE,
)
_NO_ROOM = re.compile(r"(?:QOS|Assoc)\w*Submit\w*Limit|MaxJobCount limit", re.IGNORECASE)
_WAITS_FOR_ROOM = "temporarily unable to accept job"
#: Errors about jobs some or all of which have ended meanwhile.
GONE = re.compile(
    r"No error|Invalid job id|already complet|already finished|(?:not|is|no longer) pending",
    re.IGNORECASE,
)
_NO_CONFIGURATION = re.compile(r"configuration (?:source|file)|slurm\.conf", re.IGNORECASE)
#: Remedies for a refusal, by a part of Slurm's message.
_REMEDIES = {
    "invalid partition": "`sinfo` lists the partitions; set Partition, or partition in [cluster]",
    "invalid account": "`sacctmgr show associations user=$USER` lists yours; set account",
    "invalid qos": "Set qos in [cluster]: `sacctmgr show qos` lists them",
    "generic resource": "`sinfo -o '%N %G'` lists the nodes' GPUs; change Gpus or Devices",
    "gres": "`sinfo -o '%N %G'` lists the nodes' GPUs; change Gpus or Devices",
    "time limit": "`sinfo -o '%P %l'` lists the partitions' time limits; change Time",
    "node configuration": "`sinfo -o '%P %N %c %m %G'` lists CPUs, memory and GPUs of the nodes",
    "more processors": "`sinfo -o '%N %c'` lists the nodes' CPUs; change Cpus",
    "memory": "`sinfo -o '%N %m'` lists the nodes' memory in MB; change Memory",
    "feature": "`sinfo -o '%N %f'` lists the nodes' features; change constraint in [cluster]",
    "option": "`sbatch --help` lists its options; change sbatch in [cluster]",
}
_PREFIX = re.compile(
    r"^\w+: (?:(?:error|fatal|warning): )?(?:allocation failure: |Batch job submission failed: )?"
)
_ERROR = re.compile(r"^\w+: (?:error|fatal): |error:", re.IGNORECASE)


def run(
    program: str,
    *arguments: str,
    script: str = "",
    harmless: re.Pattern[str] | None = None,
    timeout_s: float | None = None,
) -> str:
    """Run a command of Slurm and return its output; for ``--test-only``, its message.

    Args:
        program: A program such as ``squeue``, looked up on PATH.
        arguments: Its arguments.
        script: Its standard input.
        harmless: Error lines that match this are ignored.
        timeout_s: Time limit; None for `TIMEOUT_S`.

    Raises:
        ClusterError: Slurm is not installed here, or refuses.
        EngineAwayError: It does not answer.
        SubmitLimitError: This user may not submit more jobs now.
    """
    if shutil.which(program) is None:
        raise ClusterError(
            f"Slurm is not here: there is no {program} on PATH",
            "Run radt on a login node of the cluster, or load its module first",
        )
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    try:
        done = run_command([program, *arguments], timeout_s, text=script, env=_environment())
    except subprocess.TimeoutExpired as error:
        output = (error.stderr or b"").decode(errors="replace")
        if _WAITS_FOR_ROOM in output:
            raise SubmitLimitError(f"Slurm refuses: {_first(output)}") from error
        if _NO_CONFIGURATION.search(output):
            raise _unconfigured(_first(output)) from error
        raise _away(f"{program} took more than {timeout_s:g} s") from error
    except OSError as error:
        raise ClusterError(
            f"{program} cannot be run: {error.strerror}", "Check the site's installation of Slurm"
        ) from error
    if done.returncode != 0:
        output = done.stderr.strip() or done.stdout.strip()
        if not output or harmless is None or not all(map(harmless.search, output.splitlines())):
            raise _error(program, output, done.returncode)
        return done.stdout
    return done.stdout or done.stderr


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(_DROPPED)
    }
    return kept | {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}


def _error(program: str, output: str, code: int) -> ClusterError:
    message = _first(output) or f"{program} ended with code {code}"
    if _NO_ROOM.search(output) or _WAITS_FOR_ROOM in output:
        return SubmitLimitError(
            f"Slurm refuses: {message}", "Set max-jobs in [cluster] to fewer jobs"
        )
    if _NO_CONFIGURATION.search(output):
        return _unconfigured(message)
    if _AWAY.search(output):
        return _away(message)
    remedy = next((what for part, what in _REMEDIES.items() if part in output.lower()), None)
    return ClusterError(
        f"Slurm refuses: {message}",
        remedy or "Change the row, or [cluster] in radt.toml; the site's pages say what it allows",
    )


def _unconfigured(message: str) -> ClusterError:
    return ClusterError(
        f"Slurm has no configuration here: {message}",
        "Run radt on a login node of the cluster, or set SLURM_CONF",
    )


def _away(message: str) -> EngineAwayError:
    return EngineAwayError(
        f"Slurm does not answer: {message}",
        "Try again later; `scontrol ping` says whether it is there",
    )


def _first(output: str) -> str:
    """Return the first error line: sites' messages precede Slurm's general one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)] or lines[:1]
    distinct = dict.fromkeys(_PREFIX.sub("", line) for line in errors[:1] + errors[-1:])
    return ": ".join(distinct)
