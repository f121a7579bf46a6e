"""Rounds of random faults: what was recorded is compared with what the scripts wrote down."""

from __future__ import annotations

import logging
import math
import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from radt.errors import StoreError
from radt.model import SOFTWARE, RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.truth import Copy, Log, compare
from tests.chaos.world import World, can_mount, new_world, some
from tests.support.bench import mlflow_database
from tests.support.postgres import Postgres
from tests.support.servers import database_of
from tests.support.stores import differences
from tests.support.waiting import wait_until

log = logging.getLogger(__name__)

#: For hangs only.
HANG_S = 300.0


@dataclass(frozen=True)
class Blow:
    """One fault of a round.

    Attributes:
        begin: It begins once this share of all values is logged, or when all scripts have ended.
        end: If it lasts, it ends the same way; above 1, when all scripts have ended.
    """

    fault: Fault
    begin: float
    end: float


@dataclass
class Round:
    """What is tried in one round, all of it from its seed, and what came of it.

    Attributes:
        sizes: Seed and number of values of each script.
        experiment: The scripts are rows of an experiment file.
        together: The rows are one workload.
        flush_s: How often the collector reads journals.
        begun: MLflow's database is there before the round.
    """

    number: int
    seed: int
    sizes: list[tuple[int, int]]
    experiment: bool
    together: bool
    flush_s: float
    begun: bool
    blows: list[Blow]
    done: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    runs: int = 0
    values: int = 0
    lost: int = 0
    took_s: float = 0.0

    @classmethod
    def drawn(cls, number: int, seed: int, faults: Sequence[Fault]) -> Round:
        """Draw a round."""
        chance = random.Random(f"{seed} {number}")
        sizes = [(chance.randrange(2**31), some(chance, 500, 12_000)) for _ in range(_few(chance))]
        experiment = chance.random() < 0.5
        possible = [one for one in faults if experiment or not one.of_rows]
        chosen = chance.choices(possible or faults, k=_few(chance))
        begins = [chance.random() for _ in chosen]
        blows = [
            Blow(one, begin, begin + chance.random())
            for one, begin in zip(chosen, begins, strict=True)
        ]
        blows.sort(key=lambda blow: (blow.fault.last, blow.begin))
        whole = not any(blow.fault.last for blow in blows[:-1])
        return cls(
            number,
            seed,
            sizes,
            experiment=experiment,
            together=chance.random() < 0.5,
            flush_s=chance.choice([0.2, 1.0, 30.0]),
            begun=chance.random() < 0.7,
            blows=blows if whole else [b for b in blows if not b.fault.last] + blows[-1:],
        )

    @property
    def chance(self) -> random.Random:
        """For what happens in the round."""
        return random.Random(f"{self.seed} {self.number} faults")

    @property
    def faults(self) -> set[Fault]:
        return {blow.fault for blow in self.blows}

    @property
    def what(self) -> str:
        kind = "rows" if self.experiment else "scripts"
        return f"{len(self.sizes)} {kind}"


def _few(chance: random.Random) -> int:
    return chance.choices([1, 2, 3, 4], [4, 3, 2, 1])[0]


@dataclass
class Campaign:
    """Rounds from one seed.

    Args:
        folder: Where rounds with findings are kept.
        postgres: Where each round has a database.
        seed: All is drawn from it.
        names: Faults to choose from; all that can be done here if empty.
    """

    folder: Path
    postgres: Postgres
    seed: int
    names: Sequence[str] = ()
    left_out: list[str] = field(default_factory=list)

    def rounds(self, count: int, first: int = 1, jobs: int = 1) -> Iterator[Round]:
        """Play so many rounds, beginning with one of them; yields them in order.

        Args:
            jobs: So many are played at the same time.
        """
        faults = [FAULTS[name] for name in self.names] or list(FAULTS.values())
        mounts = can_mount()
        if not mounts:
            self.left_out = [fault.name for fault in faults if fault.takes_room]
            faults = [fault for fault in faults if not fault.takes_room]
        drawn = [Round.drawn(n, self.seed, faults) for n in range(first, first + count)]
        mlflow_database()  # by one thread
        pool = ThreadPoolExecutor(jobs)
        try:
            for future in [pool.submit(self._played, tried) for tried in drawn]:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # whoever does not want the rest

    def _played(self, tried: Round) -> Round:
        began_s = time.monotonic()
        disk = any(fault.takes_room for fault in tried.faults)
        folder = self.folder / f"round{tried.number}"
        with (
            database_of(self.postgres) as uri,
            new_world(folder, uri, tried.flush_s, disk=disk, begun=tried.begun) as world,
        ):
            try:
                play(tried, world)
            except Exception as error:  # it is this round's finding; others go on
                log.exception("round %d", tried.number)
                tried.wrong.append(f"{type(error).__name__}: {error}"[:500])
        tried.took_s = time.monotonic() - began_s
        return tried


def play(tried: Round, world: World) -> None:
    """Play a round; findings are in ``tried.wrong``."""
    if tried.experiment:
        world.start_experiment(tried.sizes, together=tried.together)
    else:
        world.start_scripts(tried.sizes)
    _strike(tried, world)
    wait_until(lambda: world.over, "the end of the scripts", HANG_S)
    for script in world.scripts:
        if script.returncode not in (0, -9):
            tried.wrong.append(f"a script ended with {script.returncode}")
    _settle(tried, world)
    _judge(tried, world)


def _strike(tried: Round, world: World) -> None:
    """Deal the round's blows, each from one share of all values to another."""
    chance = tried.chance
    total = sum(values for _, values in tried.sizes)

    def reached(share: float) -> bool:
        return world.over or sum(log.values for log in world.logs()) >= share * total

    lasting: list[tuple[float, ExitStack]] = []

    def end_until(share: float) -> None:
        """End what does not last beyond a share, each in its time."""
        for one in sorted(lasting, key=lambda one: one[0]):
            if one[0] <= share:
                wait_until(partial(reached, one[0]), "the end of a fault", HANG_S)
                lasting.remove(one)
                one[1].close()

    try:
        for blow in tried.blows:
            end_until(blow.begin)
            wait_until(partial(reached, blow.begin), "the begin of a fault", HANG_S)
            while lasting and blow.fault.last:
                lasting.pop()[1].close()
            stack = ExitStack()
            text = stack.enter_context(blow.fault.strike(world, chance))
            tried.done.append(f"{blow.fault.name} ({text})")
            lasting.append((blow.end if blow.fault.lasts else blow.begin, stack))
        end_until(math.inf)
    finally:
        for _, stack in reversed(lasting):
            stack.close()


def _settle(tried: Round, world: World) -> None:
    """Upload until nothing is left and every run has ended."""
    damages = any(fault.damages for fault in tried.faults)
    synced = []

    def settled() -> bool:
        synced.append(world.sync())
        code, said = synced[-1].returncode, synced[-1].stdout
        return "Traceback" in said or (_all_ended(world) and (code == 0 or damages))

    try:
        wait_until(settled, "the end of all uploads", HANG_S)
    except AssertionError as error:
        tried.wrong.append(str(error))
    said = synced[-1].stdout.strip().replace("\n", " / ")
    if "Traceback" in said or tried.wrong:
        tried.wrong.append(f"radt sync exits with {synced[-1].returncode}: {said[-400:]}")


def _all_ended(world: World) -> bool:
    """Whether the store knows all runs that have logged something, and that they have ended."""
    logged = {log.run_id for log in world.logs() if log.values}
    try:
        with closing(StoreReader(world.home.store_path)) as reader:
            return logged <= {run.run_id for run in reader.runs()} and not reader.unended_runs()
    except StoreError:
        return not logged  # there is no store


def _judge(tried: Round, world: World) -> None:
    logs = world.logs()
    tried.runs, tried.values = len(logs), sum(log.values for log in logs)
    for name, text in world.messages().items():
        if "Traceback" in text and name != "sync":
            tried.wrong.append(f"{name} says {text[text.index('Traceback') :][:300]!r}")
    try:
        reader = StoreReader(world.home.store_path)
    except StoreError as error:
        if tried.values:
            tried.wrong.append(f"no store: {error}")
        return
    with closing(reader):
        runs = {run.run_id: run for run in reader.runs()}
        for log in logs:
            if log.run_id in runs:
                _judge_run(tried, world, reader, log)
            elif log.values:
                tried.wrong.append(f"{log.run_id[:8]}: the store lacks it, {log.values} values")
        tried.wrong += [
            f"{run.run_id[:8]} is {run.status} for ever"
            for run in runs.values()
            if not run.status.ended
        ]
    copied = differences(world.home.store_path, world.store_uri)
    tried.wrong += [f"Postgres: {text}"[:300] for text in copied[:3]]


def _judge_run(tried: Round, world: World, reader: StoreReader, log: Log) -> None:
    run = reader.run(log.run_id)
    head = log.run_id[:8]
    lost = lost_values(reader, log.run_id)
    tried.lost += lost
    if lost and not any(fault.damages or fault.takes_room for fault in tried.faults):
        tried.wrong.append(f"{head}: {lost} values are said to be lost")
    here = Copy(run.status.value)
    for series in reader.series([log.run_id]):
        if series.listener == SOFTWARE:
            samples = reader.samples(log.run_id, series.series_no)
            assert samples.steps is not None
            pairs = zip(samples.steps.tolist(), samples.values.tolist(), strict=True)
            here.points += [(series.metric, step, value) for step, value in pairs]
    tried.wrong += [f"{head} SQLite: {text}" for text in compare(log, here, lost)]
    otherwise = any(fault.ends_runs or fault.takes_room for fault in tried.faults)
    # A row's exit code counts, and its process may be killed after its script's last word.
    otherwise |= tried.experiment and run.end_reason == "killed by SIGKILL"
    if log.done and run.status is not RunStatus.FINISHED and not otherwise:
        text = f"is {run.status} ({run.end_reason}), its script came to its end"
        tried.wrong.append(f"{head} {text}")
    if not log.ends and run.status is RunStatus.FINISHED:
        tried.wrong.append(f"{head} is FINISHED, its script did not come to its end")
    if (run.status is RunStatus.FINISHED) == bool(run.end_reason):
        tried.wrong.append(f"{head} is {run.status}, its reason {run.end_reason!r}")
    there = _mlflow(world.home.path / "mlflow.db", run)
    if there is None:
        tried.wrong.append(f"{head}: MLflow lacks it")
        return
    if there.status != run.status.mlflow:
        tried.wrong.append(f"{head} is {run.status}, at MLflow {there.status}")
    if sorted(there.points) != sorted(here.points):
        more, less = set(there.points) - set(here.points), set(here.points) - set(there.points)
        tried.wrong.append(
            f"{head} MLflow: {len(there.points)} values, {len(less)} missing, {len(more)} too much"
        )


def lost_values(reader: StoreReader, run_id: str) -> int:
    """Return how many logged values of a run are counted as lost."""
    return sum(ledger.missed for ledger in reader.ledger([run_id]) if ledger.listener == SOFTWARE)


def _mlflow(database: Path, run: RunRecord) -> Copy | None:
    if not database.exists():
        return None
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        row = connection.execute(
            "SELECT status FROM runs WHERE run_uuid = ?", [run.mlflow_run_id]
        ).fetchone()
        if row is None:
            return None
        points = connection.execute(
            "SELECT key, step, value FROM metrics WHERE run_uuid = ? AND key GLOB 'm[0-9]*'",
            [run.mlflow_run_id],
        )
        return Copy(row[0], points.fetchall())


def table(rounds: Sequence[Round]) -> str:
    """Return the rounds as a table, findings below their round."""
    lines = []
    for one in rounds:
        lines.append(
            f"{one.number:>5}  {one.what:<10} {one.runs:>2} runs {one.values:>7,} values "
            f"{one.lost:>6,} lost {one.took_s:>5.0f} s  {', '.join(one.done)}"
        )
        lines += [f"       ✘ {text}" for text in one.wrong]
    wrong = sum(1 for one in rounds if one.wrong)
    runs, values = sum(one.runs for one in rounds), sum(one.values for one in rounds)
    total = f"{len(rounds)} rounds, {runs} runs, {values:,} values: {wrong} rounds wrong"
    return "\n".join([*lines, total])
