"""Run examples of other trackers without radt and with it, and compare what was recorded.

    python -m tests.peers.compare FOLDER...        or RADT_PEER_EXAMPLES=FOLDER

FOLDER has checkouts in any layout, such as ``wandb/examples`` and the examples of Trackio and
MLflow. A script belongs to the tracker that it imports. With radt, W&B's and Trackio's import is
replaced by ``import radt as …``, and MLflow's comes after ``radt.autolog()``. MLflow's fluent tests
(``tests/tracking/fluent``) run under pytest, and those that fail are compared.

Compared are the exit code, the number of runs, their names, parameters and last values.
`DIFFERENCES` says what is expected to differ, and why. The exit code is 1 if anything else does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from mlflow.tracking import MlflowClient

from radt.model import SOFTWARE
from radt.store.reader import StoreReader
from tests.support.bench import RADT, has_store, mlflow_database, stop_collectors
from tests.support.waiting import wait_until

HERE = Path(__file__).parent


class Peer(StrEnum):
    """A tracker, by the name of its package."""

    MLFLOW = "mlflow"
    TRACKIO = "trackio"
    WANDB = "wandb"


class Aspect(StrEnum):
    """What is compared."""

    EXIT_CODE = "exit code"
    RUNS = "number of runs"
    NAMES = "names"
    PARAMS = "parameters"
    VALUES = "last values"
    TESTS = "failing tests"


@dataclass(frozen=True)
class Difference:
    """What is expected to differ.

    Attributes:
        script: Pattern of the script's path in the folder.
        aspect: What differs.
        why: The reason.
    """

    script: str
    aspect: Aspect
    why: str


_RESUMED = "radt does not go on with a run that has ended; each part is a run"
DIFFERENCES = (
    Difference("*resume*", Aspect.RUNS, _RESUMED),
    Difference("*resume*", Aspect.NAMES, _RESUMED),
    Difference("*resume*", Aspect.PARAMS, _RESUMED),
    Difference("*resume*", Aspect.VALUES, _RESUMED),
)
#: Scripts that cannot be compared, and why.
SKIPPED = {
    "*sweep*": "a sweep agent needs W&B's server; radt runs the sweep file itself",
    "*artifact*": "use_artifact needs W&B's server, and radt refuses it by name",
    "*/__init__.py": "no script",
    "*/conftest.py": "no script",
    "*/test_*.py": "runs under pytest",
}
TIMEOUT_S = 600.0
_IMPORT = re.compile(
    r"^([ \t]*)(?:import (trackio|wandb)(?= *$| as )|(?=(?:import|from) mlflow\b))", re.M
)
#: Names that MLflow and W&B make up, and the id of a run of W&B, which is imported as its name.
_MADE_UP = re.compile(r"[a-z]+-[a-z]+-\d+|[0-9a-z]{8}|")
#: Parameters that radt adds: the script and its arguments.
_OWN_PARAMS = frozenset({"File"})


@dataclass(frozen=True)
class RunSeen:
    """A run as a tracker has it. Values are texts, so that NaN equals NaN."""

    name: str
    params: frozenset[tuple[str, str]]
    values: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Outcome:
    """What a script did."""

    exit_code: int
    output: str
    runs: tuple[RunSeen, ...]

    def seen(self, aspect: Aspect) -> object:
        """Return what is compared."""
        match aspect:
            case Aspect.EXIT_CODE:
                return self.exit_code
            case Aspect.RUNS:
                return len(self.runs)
            case Aspect.PARAMS:
                return Counter(run.params for run in self.runs)
            case Aspect.VALUES:
                return Counter(run.values for run in self.runs)
        return Counter(run.name for run in self.runs if not _MADE_UP.fullmatch(run.name))


def peer_of(script: Path) -> Peer | None:
    """Return the tracker that a script imports; None for none."""
    found = _IMPORT.search(script.read_text(encoding="utf-8", errors="replace"))
    return Peer(found[2] or "mlflow") if found else None


def with_radt(source: str) -> str:
    """Return the source of a script that uses radt in place of its tracker."""

    def replaced(found: re.Match[str]) -> str:
        indent, peer = found[1], found[2]
        if peer is None:
            return f"{indent}import radt; radt.autolog(); "
        is_renamed = source[found.end() :].startswith(" as ")
        return f"{indent}import radt" + ("" if is_renamed else f" as {peer}")

    return _IMPORT.sub(replaced, source)


def run_both(script: Path, folder: Path) -> tuple[Outcome, Outcome]:
    """Return what a script does without radt, and with it."""
    peer = peer_of(script)
    assert peer is not None
    return _run(script, peer, folder / "without"), _run(script, peer, folder / "with", radt=True)


def _run(script: Path, peer: Peer, folder: Path, *, radt: bool = False) -> Outcome:
    copy = folder / "examples"
    shutil.copytree(script.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    if radt:
        for path in copy.rglob("*.py"):
            path.write_text(with_radt(path.read_text(encoding="utf-8")), encoding="utf-8")
    home = folder / "radt-data"
    home.mkdir()
    env = dict(os.environ, **_variables(peer, folder, home, radt=radt))
    if not radt and find_spec(peer) is None:
        env["PYTHONPATH"] = str(HERE / "stand_ins")
    runs: Iterator[RunSeen] = iter(())
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=copy,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if radt:
        if (home / "runs").exists():  # else it has begun none
            wait_until(lambda: has_store(home), f"{script.name} is in a store")
            runs = _of_radt(home)
        stop_collectors(Path(env["RADT_RUNTIME_DIR"]))
    else:
        runs = _READERS[peer](folder)
    return Outcome(done.returncode, done.stdout, tuple(runs))


def _variables(peer: Peer, folder: Path, home: Path, *, radt: bool) -> Mapping[str, str]:
    runtime = tempfile.mkdtemp(prefix="radt-peers-")  # paths of sockets are short
    variables = {
        "MPLBACKEND": "agg",
        "RADT_ARCHIVE_S": "0",
        "RADT_COLLECTOR_IDLE_S": "2",
        "RADT_HOME": str(home),
        "RADT_RUNTIME_DIR": runtime,
        "RADT_TRACKING_URI": "none",
        "TRACKIO_DIR": str(folder),
        "WANDB_DIR": str(folder),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
    }
    if peer is Peer.MLFLOW:
        shutil.copy(mlflow_database(), home / "mlflow.db")
        uri = f"sqlite:///{home / 'mlflow.db'}"
        variables |= {"RADT_TRACKING_URI": "" if radt else "none", "MLFLOW_TRACKING_URI": uri}
    return variables


# What trackers have ---------------------------------------------------------------------------


def _seen(name: str, params: Mapping[str, object], values: Mapping[str, float]) -> RunSeen:
    return RunSeen(
        name,
        frozenset((key, str(text)) for key, text in params.items()),
        frozenset((key, repr(float(value))) for key, value in values.items()),
    )


def _of_radt(home: Path) -> Iterator[RunSeen]:
    with StoreReader(home / "radt.db") as reader:
        for run in reader.runs():
            params = {
                key: text
                for key, text in reader.params(run.run_id).items()
                if key not in _OWN_PARAMS
            }
            values = {}
            for series in reader.series([run.run_id]):
                if series.listener == SOFTWARE:
                    samples = reader.samples(run.run_id, series.series_no)
                    values[series.metric] = float(samples.values[-1])
            yield _seen(run.name, params, values)


def _of_mlflow(folder: Path) -> Iterator[RunSeen]:
    client = MlflowClient(f"sqlite:///{folder / 'radt-data' / 'mlflow.db'}")
    experiments = [each.experiment_id for each in client.search_experiments()]
    for run in client.search_runs(experiments):
        yield _seen(str(run.info.run_name), run.data.params, run.data.metrics)


def _of_wandb(folder: Path) -> Iterator[RunSeen]:
    """Read what W&B wrote as ``radt import`` does."""
    home = folder / "imported"
    command = [RADT, "import", f"wandb:{folder / 'wandb'}", "--home", str(home)]
    env = dict(os.environ, RADT_TRACKING_URI="none")
    done = subprocess.run(
        [*command, "--tracking-uri", "none"], env=env, capture_output=True, text=True, check=False
    )
    if (folder / "wandb").exists() and not has_store(home):
        raise AssertionError(done.stdout + done.stderr)
    return _of_radt(home) if has_store(home) else iter(())


def _of_trackio(folder: Path) -> Iterator[RunSeen]:
    for path in sorted(folder.glob("*.db")):
        with sqlite3.connect(path) as database:
            names = dict(database.execute("SELECT run_id, run_name FROM configs"))
            params = dict(database.execute("SELECT run_id, config FROM configs"))
            values: dict[str, dict[str, float]] = defaultdict(dict)
            for run_id, text in database.execute("SELECT run_id, metrics FROM metrics"):
                values[run_id] |= json.loads(text)
        for run_id, name in names.items():
            config = {k: v for k, v in json.loads(params[run_id]).items() if not k.startswith("_")}
            yield _seen(name, config, values[run_id])


_READERS: Mapping[Peer, Callable[[Path], Iterator[RunSeen]]] = {
    Peer.MLFLOW: _of_mlflow,
    Peer.TRACKIO: _of_trackio,
    Peer.WANDB: _of_wandb,
}


# Comparing ------------------------------------------------------------------------------------


def differing(without: Outcome, with_radt: Outcome) -> dict[Aspect, str]:
    """Return what differs, as a text for each aspect."""
    found = {}
    for aspect in Aspect:
        before, after = without.seen(aspect), with_radt.seen(aspect)
        if aspect is Aspect.TESTS or before == after:
            continue
        if isinstance(before, Counter) and isinstance(after, Counter):
            if aspect is Aspect.NAMES and before <= after:  # radt names every run
                continue
            before, after = [*(before - after)], [*(after - before)]
        found[aspect] = f"{before} without radt, {after} with it"
    return found


def expected(script: str, aspect: Aspect) -> str:
    """Return why something is expected to differ; empty if it is not."""
    reasons = (d.why for d in DIFFERENCES if d.aspect is aspect and fnmatch(script, d.script))
    return next(reasons, "")


def scripts_in(folder: Path) -> Iterator[Path]:
    """Yield the scripts of a folder that use a tracker."""
    for path in sorted(folder.rglob("*.py")):
        name = f"/{path.relative_to(folder)}"
        if not any(fnmatch(name, pattern) for pattern in SKIPPED) and peer_of(path) is not None:
            yield path


def _failing_tests(tests: Path, folder: Path, *, radt: bool) -> frozenset[str]:
    folder.mkdir(parents=True)
    report = folder / "report.xml"
    plugin = ["-p", "tests.peers.autologged"] if radt else []
    env = dict(
        os.environ,
        PYTHONPATH=str(HERE.parents[1]),
        **_variables(Peer.TRACKIO, folder, folder, radt=radt),
    )
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *plugin, str(tests)],
        env=env,
        cwd=tests.parents[2],
        timeout=TIMEOUT_S,
        check=False,
    )
    cases = ElementTree.parse(report).iter("testcase")
    return frozenset(
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    )


def main() -> int:
    """Compare all scripts of the folders; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    given = os.environ.get("RADT_PEER_EXAMPLES")
    parser.add_argument("folders", nargs="*", type=Path, default=[Path(given)] if given else [])
    folders = parser.parse_args().folders
    if not folders:
        parser.error("expected folders, or RADT_PEER_EXAMPLES")
    is_bad = False
    for folder in folders:
        for script in scripts_in(folder):
            name = f"/{script.relative_to(folder)}"
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
                try:
                    without, after = run_both(script, Path(place))
                except (subprocess.TimeoutExpired, AssertionError) as error:
                    is_bad = True
                    print(f"{name}: FAILED: {error}")
                    continue
            if without.exit_code == after.exit_code and not without.runs:
                last = (without.output.strip().splitlines() or [""])[-1]
                print(f"{name}: not comparable here: {last:.120}")
                continue
            is_bad |= _report(name, differing(without, after))
        for tests in folder.rglob("tests/tracking/fluent"):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
                failing = _failing_tests(tests, Path(place, "without"), radt=False)
                new = _failing_tests(tests, Path(place, "with"), radt=True) - failing
            is_bad |= _report(
                f"/{tests.relative_to(folder)}/test_fluent.py",
                {Aspect.TESTS: ", ".join(sorted(new))} if new else {},
            )
    return int(is_bad)


def _report(name: str, differences: Mapping[Aspect, str]) -> bool:
    """Print what differs in a script; return whether any of it is unexpected."""
    if not differences:
        print(f"{name}: equal")
    unexpected = False
    for aspect, text in differences.items():
        why = expected(name, aspect)
        unexpected |= not why
        print(f"{name}: {aspect} {'differs as expected' if why else 'DIFFERS'}: {why or text}")
    return unexpected


if __name__ == "__main__":
    sys.exit(main())
