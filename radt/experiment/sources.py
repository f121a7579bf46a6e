"""Which of the listeners and profilers that rows name work here, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from radt.errors import UsageError
from radt.experiment.plan import WorkloadPlan
from radt.listeners.api import Profiler, Registry, probed
from radt.model import ListenerChoice
from radt.units import plural


def absences(workloads: Iterable[WorkloadPlan], registry: Registry) -> tuple[str, ...]:
    """Warnings about listeners that runs name and that do not work on this machine."""
    runs = Counter(
        choice.name
        for workload in workloads
        for run in workload.runs
        for choice in run.listeners
        if choice.name in registry.listeners
    )
    answers = {name: probed(registry.listeners[name]) for name in sorted(runs)}
    return tuple(
        f"listener {name} does not work here: {answer.reason}; "
        f"{plural(runs[name], 'run')} without it{f'. {answer.remedy}' if answer.remedy else ''}"
        for name, answer in answers.items()
        if not answer.available
    )


def prefixing(choices: Iterable[ListenerChoice], registry: Registry) -> Sequence[str]:
    """Names of those that put something before a run's command."""
    return [
        choice.name
        for choice in choices
        if (kind := registry.profilers.get(choice.name)) is not None
        and kind.prefix is not Profiler.prefix
    ]


def not_in_containers(name: str) -> UsageError:
    """Why a profiler cannot be put before the command of a run in a container."""
    return UsageError(
        f"{name} does not reach into containers: it would profile docker's client",
        f"Give the row a uv or conda environment, or take {name} out of Listeners",
    )
