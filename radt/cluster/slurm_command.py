"""Slurm's commands: run with a time limit, and their failures as errors with a remedy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from radt.errors import ClusterError, EngineAwayError, SubmitLimitError

#: Seconds for an answer. Slurm's own timeouts add up to less, unless the controller is overloaded,
#: or there is no slurm.conf, for which its commands wait a minute.
TIMEOUT_S = 60.0

#: Says where the cluster is. All other variables of Slurm are of the job that radt may be in, or
#: change what its commands print.
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
_DROPPED = ("SLURM_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "CUDA_VISIBLE_DEVICES")

# Texts of Slurm's errors: src/common/slurm_errno.c, of 22.05 and later.
_AWAY = re.compile(
    r"unable to contact slurm|timed out|zero bytes|standby mode|not responding|rate limit exceeded"
    r"|connection (?:failure|refused|reset|rejected|forced)|(?:send|receive) failure|socket error"
    r"|authentication (?:error|cred)|munge|try again later|to (?:the )?database",
    re.IGNORECASE,
)
_NO_ROOM = re.compile(r"(?:QOS|Assoc)\w*Submit\w*Limit|MaxJobCount limit", re.IGNORECASE)
_WAITS_FOR_ROOM = "temporarily unable to accept job"
#: Of jobs of which some, or all, have ended meanwhile.
GONE = re.compile(
    r"No error|Invalid job id|already complet|already finished|(?:not|is|no longer) pending",
    re.IGNORECASE,
)
_NO_CONFIGURATION = re.compile(r"configuration (?:source|file)|slurm\.conf", re.IGNORECASE)
#: What the user can do about a refusal, by a part of Slurm's words.
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
    """Run a command of Slurm and return what it prints; of ``--test-only``, what it says.

    Args:
        program: Such as ``squeue``, looked up on PATH.
        arguments: Its own.
        script: Its standard input.
        harmless: What each of its lines of errors may match without being one.
        timeout_s: For an answer; None for `TIMEOUT_S`.

    Raises:
        ClusterError: Slurm is not installed here, or refuses.
        EngineAwayError: It does not answer.
        SubmitLimitError: It takes no more jobs of this user just now.
    """
    if shutil.which(program) is None:
        raise ClusterError(
            f"Slurm is not here: there is no {program} on PATH",
            "Run radt on a login node of the cluster, or load its module first",
        )
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    try:
        done = subprocess.run(
            [program, *arguments],
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            env=_environment(),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        words = (error.stderr or b"").decode(errors="replace")
        if _WAITS_FOR_ROOM in words:
            raise SubmitLimitError(f"Slurm refuses: {_first(words)}") from error
        if _NO_CONFIGURATION.search(words):
            raise _unconfigured(_first(words)) from error
        raise _away(f"{program} took more than {timeout_s:g} s") from error
    except OSError as error:
        raise ClusterError(
            f"{program} cannot be run: {error.strerror}", "Check the site's installation of Slurm"
        ) from error
    if done.returncode != 0:
        words = done.stderr.strip() or done.stdout.strip()
        if not words or harmless is None or not all(map(harmless.search, words.splitlines())):
            raise _error(program, words, done.returncode)
        return done.stdout
    return done.stdout or done.stderr


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(_DROPPED)
    }
    return kept | {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}


def _error(program: str, words: str, code: int) -> ClusterError:
    said = _first(words) or f"{program} ended with code {code}"
    if _NO_ROOM.search(words) or _WAITS_FOR_ROOM in words:
        return SubmitLimitError(f"Slurm refuses: {said}", "Set max-jobs in [cluster] to fewer jobs")
    if _NO_CONFIGURATION.search(words):
        return _unconfigured(said)
    if _AWAY.search(words):
        return _away(said)
    remedy = next((what for part, what in _REMEDIES.items() if part in words.lower()), None)
    return ClusterError(
        f"Slurm refuses: {said}",
        remedy or "Change the row, or [cluster] in radt.toml; the site's pages say what it allows",
    )


def _unconfigured(said: str) -> ClusterError:
    return ClusterError(
        f"Slurm has no configuration here: {said}",
        "Run radt on a login node of the cluster, or set SLURM_CONF",
    )


def _away(said: str) -> EngineAwayError:
    return EngineAwayError(
        f"Slurm does not answer: {said}",
        "Try again later; `scontrol ping` says whether it is there",
    )


def _first(words: str) -> str:
    """Return the first of Slurm's error lines: sites put theirs before Slurm's general one."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)] or lines[:1]
    distinct = dict.fromkeys(_PREFIX.sub("", line) for line in errors[:1] + errors[-1:])
    return ": ".join(distinct)
