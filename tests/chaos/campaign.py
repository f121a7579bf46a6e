"""Rounds of random faults: what was recorded is compared with what the scripts wrote down."""

from __future__ import annotations

import logging
import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from radt.errors import StoreError
from radt.model import SOFTWARE, RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.truth import Copy, Log, compare
from tests.chaos.world import World, can_mount, new_world, some
from tests.support.postgres import Postgres
from tests.support.servers import database_of
from tests.support.stores import differences
from tests.support.waiting import wait_until

log = logging.getLogger(__name__)

#: For hangs only.
HANG_S = 300.0
_LOOK_S = 0.02


@dataclass(frozen=True)
class Blow:
    """One fault of a round: it begins once so much of all values is logged."""

    fault: Fault
    share: float
    holds_s: float


@dataclass
class Round:
    """What is tried in one round, all of it from its seed, and what came of it."""

    number: int
    seed: int
    sizes: list[tuple[int, int]]
    experiment: bool
    together: bool
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
        blows = [Blow(one, chance.random(), one.holds_s * chance.random()) for one in chosen]
        blows.sort(key=lambda blow: (blow.fault.last, blow.share))
        whole = not any(blow.fault.last for blow in blows[:-1])
        return cls(
            number,
            seed,
            sizes,
            experiment=experiment,
            together=chance.random() < 0.5,
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

    def rounds(self, count: int, first: int = 1) -> Iterator[Round]:
        """Run so many rounds, beginning with one of them; yields each when it is over."""
        faults = [FAULTS[name] for name in self.names] or list(FAULTS.values())
        mounts = can_mount()
        if not mounts:
            self.left_out = [fault.name for fault in faults if fault.takes_room]
            faults = [fault for fault in faults if not fault.takes_room]
        for number in range(first, first + count):
            tried = Round.drawn(number, self.seed, faults)
            began_s = time.monotonic()
            with database_of(self.postgres) as uri:
                disk = any(fault.takes_room for fault in tried.faults)
                with new_world(self.folder / f"round{number}", uri, disk=disk) as world:
                    try:
                        play(tried, world)
                    except Exception as error:  # it is this round's finding; others go on
                        log.exception("round %d", number)
                        tried.wrong.append(f"{type(error).__name__}: {error}"[:500])
            tried.took_s = time.monotonic() - began_s
            yield tried


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
    """Deal the round's blows, each when its share of all values is logged."""
    chance = tried.chance
    total = sum(values for _, values in tried.sizes)
    waiting = list(tried.blows)
    lasting: list[tuple[float, ExitStack]] = []
    try:
        while waiting or lasting:
            now_s = time.monotonic()
            over = world.over
            if waiting and (
                over or sum(log.values for log in world.logs()) >= waiting[0].share * total
            ):
                blow = waiting.pop(0)
                stack = ExitStack()
                text = stack.enter_context(blow.fault.strike(world, chance))
                tried.done.append(f"{blow.fault.name} ({text})")
                lasting.append((now_s + blow.holds_s, stack))
            for until_s, stack in list(lasting):
                if now_s >= until_s:
                    lasting.remove((until_s, stack))
                    stack.close()
            time.sleep(_LOOK_S)
    finally:
        for _, stack in reversed(lasting):
            stack.close()


def _settle(tried: Round, world: World) -> None:
    """Upload until nothing is left and every run has ended."""
    deadline_s = time.monotonic() + HANG_S
    damages = any(fault.damages for fault in tried.faults)
    while True:
        synced = world.sync()
        said = synced.stdout.strip().replace("\n", " / ")
        if "Traceback" in synced.stdout:
            tried.wrong.append(f"radt sync: {said[-400:]}")
            return
        if _all_ended(world) and (synced.returncode == 0 or damages):
            return
        if time.monotonic() > deadline_s:
            tried.wrong.append(f"radt sync exits with {synced.returncode}: {said[-400:]}")
            return


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
    if log.done and run.status is not RunStatus.FINISHED and not otherwise:
        text = f"is {run.status} ({run.end_reason}), its script came to its end"
        tried.wrong.append(f"{head} {text}")
    if not log.ends and run.status is RunStatus.FINISHED:
        tried.wrong.append(f"{head} is FINISHED, its script did not come to its end")
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
