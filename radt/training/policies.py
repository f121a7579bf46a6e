"""Policies: which job trains next. To add one, write its class and its line in `POLICIES`."""

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
        joined: Grows with each job that joins or is resumed.
        served: Number of the turn that it had last; 0 if it had none.
    """

    job: Job
    joined: int = 0
    served: int = 0


class Policy(ABC):
    """Choose the job of the next turn.

    A turn is an epoch (UnifiedNN, section on scheduling), unless the job ends, is paused, or is
    interrupted. `is_inside_steps` says where `interrupts` is asked: only between two steps, or
    also at the boundaries of segments inside a step.
    """

    is_inside_steps = False

    @abstractmethod
    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """Return the rank of a candidate; the lowest one trains."""

    def interrupts(self, waiting: Job, running: Job) -> bool:
        """Return whether `waiting` takes over before the epoch of `running` is complete."""
        del waiting, running
        return False


class FirstCome(Policy):
    """``fcfs``: jobs in the order in which they joined, each to its end."""

    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """Return when it joined."""
        return (candidate.joined,)


class Priority(Policy):
    """``priority``: lower numbers first, equal ones in turns of an epoch.

    A job that joins with a lower number takes over after the step under way.
    """

    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """Return the priority; of equal ones, the one trains that has waited longest."""
        return (candidate.job.priority, candidate.served, candidate.joined)

    def interrupts(self, waiting: Job, running: Job) -> bool:
        """Return whether the priority is higher."""
        return waiting.priority < running.priority


class ShortestJob(Policy):
    """``sjf``: the job with the least work left, which is its parameters times its epochs.

    The time of a step is not measured for it, so that the order is the same on each machine.
    """

    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """Return the work that is left."""
        job = candidate.job
        parameters = sum(parameter.numel() for parameter in job.model.parameters())
        return (parameters * (job.epochs - job.epoch), candidate.joined)


class RoundRobin(Policy):
    """``round_robin``: each job an epoch in turn."""

    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        """Return when it had its last turn."""
        return (candidate.served, candidate.joined)


class Preemptive(Priority):
    """``preemptive``: as ``priority``, but a job takes over inside a step, at a boundary.

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
        UsageError: There is none with this name.
    """
    if isinstance(policy, Policy):
        return policy
    if policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise UsageError(f'"{policy}" is not a policy', f"use one of: {known}")
    return POLICIES[policy]()
