"""Policies decide which job trains next. To add one, write a class and list it in `POLICIES`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from radt.errors import UsageError
from radt.training.job import Job


@dataclass(slots=True)
class Candidate:
    """A job that is ready to train.

    Attributes:
        job: The job.
        joined: Increases with each job that joins or is resumed.
        served: Number of its last turn; 0 if it had none.
    """

    job: Job
    joined: int = 0
    served: int = 0


class Policy(ABC):
    """Chooses the job of the next turn.

    A turn is an epoch (UnifiedNN, section on scheduling), unless the job ends, is paused, or is
    interrupted. `interrupts` is called between two steps; if `is_inside_steps`, also at the
    boundaries of segments inside a step.
    """

    is_inside_steps = False

    @abstractmethod
    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """Return the rank of a candidate. The lowest rank trains."""

    def interrupts(self, waiting: Job, running: Job) -> bool:
        """Return True if `waiting` takes over before the epoch of `running` is complete."""
        del waiting, running
        return False


class FirstCome(Policy):
    """``fcfs``: jobs in the order of joining, each to its end."""

    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """Return the time of joining."""
        return (candidate.joined,)


class Priority(Policy):
    """``priority``: lower numbers first, equal ones in turns of an epoch.

    A job that joins with a lower number takes over after the current step.
    """

    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """Return the priority. Among equal ones, the job that has waited longest goes first."""
        return (candidate.job.priority, candidate.served, candidate.joined)

    def interrupts(self, waiting: Job, running: Job) -> bool:
        """Return True if the priority is higher."""
        return waiting.priority < running.priority


class ShortestJob(Policy):
    """``sjf``: the job with the least remaining work, measured as parameters times epochs.

    Step times are not measured, so that the order is the same on every machine.
    """

    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """Return the remaining work."""
        job = candidate.job
        parameters = job.weights.parameter_count
        return (parameters * (job.epochs - job.epoch), candidate.joined)


class RoundRobin(Policy):
    """``round_robin``: one epoch of each job in turn."""

    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """Return the number of its last turn."""
        return (candidate.served, candidate.joined)


class Preemptive(Priority):
    """``preemptive``: like ``priority``, but a job can take over inside a step, at a boundary.

    Steps hold the lease of a device, so that others with high priority can use it (SwitchFlow).
    """

    is_inside_steps = True


POLICIES: dict[str, type[Policy]] = {
    "fcfs": FirstCome,
    "priority": Priority,
    "sjf": ShortestJob,
    "round_robin": RoundRobin,
    "preemptive": Preemptive,
}


def policy_of(policy: str | Policy) -> Policy:
    """Return a policy by its name.

    Raises:
        UsageError: There is no policy of this name.
    """
    if isinstance(policy, Policy):
        return policy
    if policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise UsageError(f'"{policy}" is not a policy', f"use one of: {known}")
    return POLICIES[policy]()
