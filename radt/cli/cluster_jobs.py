"""``radt status``, ``attach`` and ``stop`` of a file whose runs are jobs of a cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from radt import settings, units
from radt.cli.options import call
from radt.cluster.collecting import Collection
from radt.cluster.course import Course
from radt.cluster.follow import Follower, PacedStatuses
from radt.cluster.opened import open_submission
from radt.cluster.output import OutputTails
from radt.cluster.overview import Overview, headline, overview_lines
from radt.cluster.rows import submitted_rows, submitted_table
from radt.cluster.settle import SubmittedRow
from radt.cluster.shape import WorkloadKey
from radt.cluster.spool import Spool
from radt.cluster.start import course_of, plan_of, reopened
from radt.collector.client import CollectorClient
from radt.errors import ClusterError, EngineAwayError, HeldError, RadtError
from radt.experiment.columns import QUEUED, parse_status
from radt.experiment.files import table_path
from radt.experiment.lock import ExperimentLock, Holder
from radt.experiment.status import RowStatus, StatusWriter
from radt.home import Home
from radt.model import RunStatus
from radt.render.model import printable
from radt.runner.active import StopRequest
from radt.runner.console import RunConsole, shown_path
from radt.runner.live import label_width, runs_text
from radt.runner.notify import Notifier
from radt.runner.outcome import STOPPED
from radt.settings import Settings

#: How long a cluster may take to answer somebody who looks; and, if it did not, once more.
LOOK_S = 10.0
_LOOK_AGAIN_S = 1.0
SHOWN_DONE = 8
SHOWN_WAITING = 8
_POLL_S = 0.2
#: How long a follower elsewhere may take to notice a stop, and jobs to end.
_STOP_PATIENCE_S = 180.0
#: How long a follower may take to submit the rest after a submission has ended.
_NEXT_PATIENCE_S = 180.0


@contextmanager
def _lock_if_free(file: Path, spool: Spool) -> Iterator[Holder | None]:
    """Hold the experiment's lock while inside; give who has it if that is somebody else."""
    lock = ExperimentLock(file, home=Path(spool.submission.home))
    try:
        lock.acquire()
    except HeldError:
        holder = lock.holder()
        if holder is None:
            raise
        yield holder
        return
    try:
        yield None
    finally:
        lock.release()


# Status -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Looked:
    """A submission as `look` saw it."""

    spool: Spool
    course: Course
    overview: Overview
    rows: dict[WorkloadKey, Sequence[SubmittedRow]]

    def text(self, row: SubmittedRow) -> str:
        return self.course.statuses.get(row.line, RowStatus("")).text


def show_status(
    file: Path, spool: Spool, *, everything: bool, as_json: bool
) -> dict[str, Any] | None:
    """Show what the jobs of a file are at, and bring its statuses up to date.

    Returns:
        The document for ``--json``; None if lines were printed.

    Raises:
        ClusterError: The engine refuses to answer, or a submission cannot be read.
    """
    with _lock_if_free(file, spool) as holder:
        look = _look(spool, file, is_ours=holder is None)
    if as_json:
        return _document(file, look, holder)
    console = Console(highlight=False)
    for line in _lines(file, look, holder, console.width, everything=everything):
        console.print(line, soft_wrap=True)
    return None


def show_open(spools: Sequence[Spool], *, as_json: bool) -> dict[str, Any] | None:
    """Show what submissions of several files are at; the files stay as they are.

    Returns:
        The document for ``--json``; None if lines were printed.
    """
    console = Console(highlight=False)
    documents: list[dict[str, Any]] = []
    patience_s = LOOK_S
    for spool in spools:
        file = Path(spool.submission.file)
        try:
            look = _look(spool, file, is_ours=False, patience_s=patience_s)
            holder = ExperimentLock(file).holder()
            patience_s = _LOOK_AGAIN_S if look.course.away else LOOK_S
        except RadtError as error:  # the others can be looked at
            if isinstance(error, ClusterError):
                patience_s = _LOOK_AGAIN_S
            documents.append({"file": str(file), "error": error.message, "remedy": error.remedy})
            lines = [Text(f"{printable(str(file))}: {printable(str(error))}", "red")]
        else:
            documents.append(_document(file, look, holder))
            lines = _lines(file, look, holder, console.width, everything=False)
        for line in () if as_json else [*lines, Text()]:
            console.print(line, soft_wrap=True)
    if not spools and not as_json:
        console.print(Text("no open submissions to a cluster", "dim"))
    return {"files": documents} if as_json else None


def _look(spool: Spool, file: Path, *, is_ours: bool, patience_s: float = LOOK_S) -> _Looked:
    cluster, engine = reopened(spool, patience_s)
    course = course_of(spool, cluster, engine, looks_only=True)
    changes = course.step(time.monotonic())
    if is_ours:
        writer = StatusWriter(table_path(file), submitted_table(spool))
        statuses = PacedStatuses(writer, lambda _text: None)
        statuses.put(changes.statuses)
        statuses.flush()
    rows = dict(submitted_rows(spool))
    return _Looked(spool, course, Overview.of(course, cluster.name), rows)


def _lines(
    file: Path, look: _Looked, holder: Holder | None, width: int, *, everything: bool
) -> list[Text]:
    submission = look.spool.submission
    runs = runs_text(row.role for rows in look.rows.values() for row in rows)
    name = plan_of(look.spool).name
    amount = f"{units.plural(len(look.rows), 'workload')}, {runs}"
    lines = [
        Text.assemble((printable(name), "bold"), f" · {amount} · on {submission.engine}"),
        Text(f"  submission {submission.submission_id} in {shown_path(look.spool.path)}", "dim"),
    ]
    if holder is not None:
        where = "" if holder.is_here else f" on {printable(holder.host)}"
        lines.append(Text(f"  followed by process {holder.pid}{where}", "dim"))
    lines += [Text(), *overview_lines(look.overview, width), Text()]
    lines += list(_workload_lines(look, everything=everything))
    lines.append(Text())
    if look.course.is_settled:
        hint = f"{call(file, 'attach')} collects what the jobs have recorded"
    elif look.overview.held:
        hint = f"{call(file, options=f'--on {submission.engine}')} lets the jobs start"
    else:
        hint = f"{call(file, 'attach')} follows the jobs, {call(file, 'stop')} cancels them"
    lines.append(Text(f"  {hint}", "dim"))
    return lines


def _workload_lines(look: _Looked, *, everything: bool) -> Iterator[Text]:
    order = sorted(look.rows, key=lambda key: look.rows[key][0].line)
    done = [key for key in order if _is_done(look, key)]
    waiting = [key for key in order if _is_waiting(look, key)]
    hidden = set() if everything else {*done[:-SHOWN_DONE], *waiting[SHOWN_WAITING:]}
    width = label_width(key.label for key in order)
    skipped: Counter[str] = Counter()
    for number, key in enumerate(order, start=1):
        if key in hidden:
            skipped["waiting" if _is_waiting(look, key) else "done"] += 1
            continue
        if skipped:
            yield _hidden(skipped)
            skipped = Counter()
        yield Text.assemble(
            (f"  {number:>{len(str(len(order)))}}/{len(order)}  ", "dim"),
            (f"{printable(key.label):<{width}} ", "bold"),
            f"{runs_text(row.role for row in look.rows[key]):<9} ",
            _state(look, key),
        )
    if skipped:
        yield _hidden(skipped)


def _hidden(skipped: Counter[str]) -> Text:
    parts = ", ".join(f"{count:,} {state}" for state, count in skipped.items())
    return Text(f"       … {parts}   (--all lists them)", "dim")


def _state(look: _Looked, key: WorkloadKey) -> Text:
    """``✔``, ``▶ gpu-07``, ``· 1234_7 Resources``, or how its rows ended."""
    texts = [look.text(row) for row in look.rows[key]]
    statuses = [parse_status(text) for text in texts]
    if RunStatus.RUNNING in statuses:
        where = texts[statuses.index(RunStatus.RUNNING)].partition(": ")[2]
        return Text(f"▶ {printable(where)}", "cyan")
    if _is_waiting(look, key):
        reason = next((text.partition(": ")[2] for text in texts if text.startswith(QUEUED)), "")
        return Text(f"· {printable(reason) or 'waiting'}", "dim")
    if set(statuses) <= {RunStatus.FINISHED}:
        return Text("✔", "green")
    bad = dict.fromkeys(
        text for text, status in zip(texts, statuses, strict=True) if status != RunStatus.FINISHED
    )
    return Text(f"✘ {printable(', '.join(bad))}", "red")


def _is_done(look: _Looked, key: WorkloadKey) -> bool:
    statuses = [parse_status(look.text(row)) for row in look.rows[key]]
    return all(status is not None and status.ended for status in statuses)


def _is_waiting(look: _Looked, key: WorkloadKey) -> bool:
    statuses = {parse_status(look.text(row)) for row in look.rows[key]}
    return RunStatus.RUNNING not in statuses and bool(statuses & {None, RunStatus.SCHEDULED})


def _document(file: Path, look: _Looked, holder: Holder | None) -> dict[str, Any]:
    """Return what the jobs are at for ``--json``."""
    return {
        "file": str(file.absolute()),
        "experiment": plan_of(look.spool).name,
        "running": not look.course.is_settled,
        "holder": None if holder is None else asdict(holder),
        "submission": {
            "id": look.spool.submission.submission_id,
            "folder": str(look.spool.path),
            "headline": headline(look.overview).plain.strip(),
            **asdict(look.overview),
            "workloads": [
                {
                    "experiment": key.experiment,
                    "workload": key.label,
                    "runs": [
                        {
                            "letter": row.letter,
                            "name": row.name,
                            "role": str(row.role),
                            "status": look.text(row),
                            "run": look.course.statuses.get(row.line, RowStatus("")).run_id,
                        }
                        for row in rows
                    ],
                }
                for key, rows in look.rows.items()
            ],
        },
    }


# Attach -------------------------------------------------------------------------------------------


def attach(file: Path, spool: Spool) -> int:
    """Follow the jobs of a file with the output of their runs; return the exit code.

    Where another process follows them, too, this one goes on with what that one submits next.

    Raises:
        ClusterError: The engine refuses to answer, or the rest is held.
    """
    stop = StopRequest()
    code = 0
    with (
        _lock_if_free(file, spool) as holder,
        RunConsole(Console(highlight=False)) as console,
        stop.listening(),
    ):
        if holder is not None:
            console.say(f"  {holder} writes the statuses; this only looks", "dim")
        current: Spool | None = spool
        while current is not None:
            # The last one counts: what failed before has run again in it.
            code = 0 if _follow(file, current, console, stop, is_ours=holder is None) else 1
            current = None if holder is None else _next_of(holder, file, current, stop)
        if stop:
            console.say(
                f"detached; the jobs go on: {call(file, 'attach')}, {call(file, 'stop')}", "dim"
            )
            return 0
    return code


def _next_of(holder: Holder, file: Path, before: Spool, stop: StopRequest) -> Spool | None:
    """Wait for what a follower submits after a submission; None if it ends instead."""
    lock, end_s = ExperimentLock(file), time.monotonic() + _NEXT_PATIENCE_S
    while not stop and lock.holder() == holder and time.monotonic() < end_s:
        found = open_submission(file)
        if found is not None and found.path != before.path:
            return found
        stop.wait(_POLL_S)
    return None


def _follow(
    file: Path,
    spool: Spool,
    console: RunConsole,
    stop: StopRequest,
    *,
    is_ours: bool,
    with_output: bool = True,
) -> bool:
    """Follow a submission, as the one who writes if nobody else does; whether all FINISHED.

    Raises:
        RadtError: It cannot go on.
    """
    cluster, engine = reopened(spool)
    course = course_of(spool, cluster, engine, looks_only=not is_ours)
    home = Home(Path(spool.submission.home))
    tails = OutputTails(spool, console)
    with _collection(file, spool, home) as collection:
        follower = Follower(
            spool,
            course,
            home,
            console,
            engine_name=cluster.name,
            collection=collection if is_ours else None,
            statuses=StatusWriter(table_path(file), submitted_table(spool)) if is_ours else None,
            notifier=Notifier("", lambda _text: None),
            stop=stop,
            on_look=tails.relay if with_output else lambda _course: None,
        )
        followed = follower.run()
    if followed.problem is not None:
        raise followed.problem
    return {outcome.status for outcome in followed.workloads} <= {RunStatus.FINISHED}


@contextmanager
def _collection(file: Path, spool: Spool, home: Home) -> Iterator[Collection]:
    """What takes the runs of a submission, and has them brought to where the settings say."""
    values = Settings.of(file.absolute().parent)
    tracking_uri = home.tracking_uri(values[settings.TRACKING_URI] or None)
    store_uri = home.store_uri(values[settings.STORE_URI] or None, tracking_uri=tracking_uri)
    client = CollectorClient.for_runner()
    try:
        with Collection(
            spool, home, tracking_uri=tracking_uri, store_uri=store_uri, client=client
        ) as collection:
            yield collection
    finally:
        client.close()


# Stop ---------------------------------------------------------------------------------------------


def stop_jobs(file: Path, spool: Spool, *, now: bool) -> int:
    """Cancel the jobs of a file and wait until its statuses say so; return the exit code.

    Raises:
        EngineAwayError: The engine does not answer; whoever looks next cancels the jobs.
        HeldError: Who follows the jobs has not noticed it in time.
    """
    started_s = time.monotonic()
    spool.stop(STOPPED)  # first: nobody submits any more
    cluster, engine = reopened(spool)
    course = course_of(spool, cluster, engine, looks_only=True)
    course.step(time.monotonic())
    if course.away:
        raise EngineAwayError(
            f"{course.away}: jobs of {file} may go on",
            f"Run {call(file, 'stop')} again; whoever looks at the jobs cancels them, too",
        )
    engine.cancel(course.unended(), now=now)
    console = Console(highlight=False, stderr=True)
    with _lock_if_free(file, spool) as holder:
        if holder is None:
            with RunConsole(console) as output:
                _follow(file, spool, output, StopRequest(), is_ours=True, with_output=False)
        else:
            _wait_for(file, spool, holder)
    took = units.duration(time.monotonic() - started_s)
    console.print(Text(f"{shown_path(file)} was stopped in {took}"))
    on = spool.submission.engine
    console.print(Text(f"  {call(file, options=f'--on {on}')} resumes it", "dim"))
    return 0


def _wait_for(file: Path, spool: Spool, holder: Holder) -> None:
    """Wait for who follows the jobs to bring the file up to date."""
    began_s = time.monotonic()
    lock = ExperimentLock(file)
    while lock.holder() == holder and not spool.is_closed:
        if time.monotonic() - began_s > _STOP_PATIENCE_S:
            raise HeldError(
                f"the jobs were cancelled; {holder} has not brought {file} up to date",
                f"See {call(file, 'status')}",
            )
        time.sleep(_POLL_S)
