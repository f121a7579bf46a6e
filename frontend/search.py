"""The search field above the runs: words, and ``key:value`` for status, device and parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from radt.frontend.catalog import Catalog, RunEntry, WorkloadEntry

Params = Mapping[str, Mapping[str, str]]

_FIELDS: Mapping[str, Callable[[RunEntry], str]] = {
    "status": lambda run: run.record.status,
    "device": lambda run: run.record.devices,
    "workload": lambda run: run.record.workload,
    "name": lambda run: run.record.name,
    "host": lambda run: run.record.host,
    "collocation": lambda run: run.record.collocation,
    "listener": lambda run: run.record.listeners,
    "run": lambda run: run.record.run_id,
    "profiled": lambda run: run.profiled,
    "pruned": lambda run: run.pruned,
}


@dataclass(frozen=True, slots=True)
class Query:
    """Every term must match: words anywhere, ``key:value`` in that field or parameter."""

    words: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    params: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Query:
        """From what the user typed; case does not matter."""
        words, fields, params = [], [], []
        for term in text.casefold().split():
            key, colon, value = term.partition(":")
            if not colon or not key:
                words.append(term)
            elif key in _FIELDS:
                fields.append((key, value))
            else:
                params.append((key, value))
        return cls(tuple(words), tuple(fields), tuple(params))

    def matches(self, run: RunEntry, params: Mapping[str, str]) -> bool:
        """Whether the run is one of those asked for."""
        record = run.record
        text = f"{run.short} {record.name} {record.command} {record.run_id} {record.mlflow_run_id}"
        text = f"{text} {record.status} {record.host}".casefold()
        if not all(word in text for word in self.words):
            return False
        if not all(value in _FIELDS[key](run).casefold() for key, value in self.fields):
            return False
        folded = {key.casefold(): value.casefold() for key, value in params.items()}
        return all(value in folded.get(key, "\0") for key, value in self.params)


def search(
    catalog: Catalog, text: str, params_of: Callable[[Sequence[str]], Params]
) -> tuple[WorkloadEntry, ...]:
    """Workloads with at least one matching run, and of their runs those that match.

    ``params_of`` reads parameters; it is called only if the text asks for one.
    """
    query = Query.parse(text)
    if not (query.words or query.fields or query.params):
        return catalog.workloads
    params: Params = params_of(tuple(catalog.runs)) if query.params else {}
    found = []
    for workload in catalog.workloads:
        runs = tuple(run for run in workload.runs if query.matches(run, params.get(run.run_id, {})))
        if runs:
            found.append(WorkloadEntry(workload.record, runs, workload.ordinal))
    return tuple(found)
