"""What observing idle runs costs: ``python -m radt.selftest.sampling RUNS SECONDS LISTENERS``.

So many runs of four sleeping processes each are recorded by the collector, which brings nothing to
MLflow: what it takes is what sampling takes. Prints it as JSON, with the ledger of each listener.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from radt.clock import Clock
from radt.collector.client import CollectorClient
from radt.collector.protocol import Registration
from radt.home import RUN_ID_VARIABLE, Home
from radt.model import ListenerChoice, RunStatus
from radt.nvml import list_gpus
from radt.store.reader import StoreReader
from radt.store.records import LedgerRecord, RunRecord
from radt.store.writer import StoreWriter

CHILDREN = 3
#: What opening listeners costs is not what reading them costs.
SETTLE_S = 1.5
_IDLE = f"""\
import os, signal
for _ in range({CHILDREN}):
    if not os.fork():
        break
signal.pause()
"""


@dataclass(frozen=True, slots=True)
class Account:
    """What became of one listener's readings, over all runs; times in seconds.

    ``values`` counts what it measured; ``state`` and ``reason`` are of the run where it did worst.
    """

    listener: str
    expected: int
    received: int
    missed: int
    values: int
    took_s: float
    took_max_s: float
    late_s: float
    late_max_s: float
    state: str
    reason: str

    @classmethod
    def of(cls, rows: Sequence[LedgerRecord], values: int) -> Account:
        """From the rows of one listener; the mean times are those of a reading."""
        received = sum(row.received for row in rows)
        worst = max(rows, key=lambda row: (row.missed, bool(row.reason)))
        return cls(
            listener=rows[0].listener,
            expected=sum(row.expected for row in rows),
            received=received,
            missed=sum(row.missed for row in rows),
            values=values,
            took_s=sum(row.sampling_ns for row in rows) / max(1, received) / 1e9,
            took_max_s=max(row.sampling_max_ns for row in rows) / 1e9,
            late_s=sum(row.late_ns for row in rows) / max(1, received) / 1e9,
            late_max_s=max(row.late_max_ns for row in rows) / 1e9,
            state=worst.state,
            reason=worst.reason,
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """A stretch of sampling.

    ``share`` is the collector's CPU time as a share of one core, ``rss_bytes`` its memory and that
    of its guardian, ``values_per_s`` what was stored. ``warnings`` are those about listeners.
    """

    share: float
    rss_bytes: int
    values_per_s: float
    accounts: tuple[Account, ...]
    warnings: tuple[str, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sampled:
        """What `main` printed."""
        accounts = tuple(Account(**one) for one in data["accounts"])
        return cls(**{**data, "accounts": accounts, "warnings": tuple(data["warnings"])})

    @property
    def expected(self) -> int:
        return sum(one.expected for one in self.accounts)

    @property
    def missed(self) -> int:
        return sum(one.missed for one in self.accounts)

    @property
    def late_s(self) -> float:
        """How late a reading began, in the mean."""
        received = sum(one.received for one in self.accounts)
        return sum(one.late_s * one.received for one in self.accounts) / max(1, received)

    @property
    def late_max_s(self) -> float:
        return max((one.late_max_s for one in self.accounts), default=0.0)


def sample(home: Home, runs: int, seconds: float, listeners: Sequence[ListenerChoice]) -> Sampled:
    """Record idle runs for so long.

    Raises:
        RadtError: The collector or the store cannot be used.
    """
    run_ids = [uuid.uuid4().hex for _ in range(runs)]
    gpus = tuple(str(gpu.index) for gpu in list_gpus().gpus[:1])
    idle: list[subprocess.Popen[bytes]] = []
    with CollectorClient.connect() as client:
        warnings = _register(client, home, run_ids, listeners, gpus)
        try:
            for run_id in run_ids:
                idle.append(_idle(run_id))
                client.started(run_id, idle[-1].pid, time.monotonic_ns())
            time.sleep(SETTLE_S)
            before, before_s, values = client.status(), time.monotonic(), _values(home, run_ids)
            time.sleep(seconds)
            after, took_s = client.status(), time.monotonic() - before_s
            new_values = sum(_values(home, run_ids).values()) - sum(values.values())
        finally:
            for process in idle:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for run_id in run_ids:
            client.finish(run_id, RunStatus.FINISHED)
    return Sampled(
        share=(after.cpu_s - before.cpu_s) / took_s,
        rss_bytes=after.rss_bytes,
        values_per_s=new_values / took_s,
        accounts=_accounts(home, run_ids),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _register(
    client: CollectorClient,
    home: Home,
    run_ids: Sequence[str],
    listeners: Sequence[ListenerChoice],
    gpus: tuple[str, ...],
) -> list[str]:
    warnings: list[str] = []
    workload_id = uuid.uuid4().hex
    with StoreWriter(home.store_path) as writer:
        for run_id in run_ids:
            spool = str(home.run_dir(run_id).create().path)
            now_ns = Clock.for_machine().now_ns()
            writer.put_run(
                RunRecord(run_id, workload_id, "selftest", "idle", "a", "idle", now_ns, spool=spool)
            )
            warnings += client.register(
                Registration(run_id, str(home.store_path), spool, "", "", tuple(listeners), gpus)
            )
    return warnings


def _idle(run_id: str) -> subprocess.Popen[bytes]:
    """Four processes that do nothing, in a group of their own."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _IDLE],
        env=os.environ | {RUN_ID_VARIABLE: run_id},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def _values(home: Home, run_ids: Sequence[str]) -> dict[str, int]:
    """How many values of each listener are stored."""
    found: dict[str, int] = {}
    with StoreReader(home.store_path) as reader:
        for one in reader.summary(run_ids):
            found[one.series.listener] = found.get(one.series.listener, 0) + one.count
    return found


def _accounts(home: Home, run_ids: Sequence[str]) -> tuple[Account, ...]:
    values = _values(home, run_ids)
    rows: dict[str, list[LedgerRecord]] = {}
    with StoreReader(home.store_path) as reader:
        for row in reader.ledger(run_ids):
            rows.setdefault(row.listener, []).append(row)
    return tuple(Account.of(found, values.get(name, 0)) for name, found in sorted(rows.items()))


def main(runs: int, seconds: float, listeners: str) -> None:
    """One stretch."""
    choices = tuple(map(ListenerChoice.parse, listeners.split("+")))
    done = sample(Home.resolve(), runs, seconds, choices)
    sys.stdout.write(json.dumps(asdict(done)) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
