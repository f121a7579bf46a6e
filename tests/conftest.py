"""Fixtures that all tests share: every test has a runtime folder and a data folder of its own."""

from __future__ import annotations

import compileall
import gc
import multiprocessing
import os
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from _pytest.assertion import rewrite
from playwright.sync_api import Playwright, sync_playwright

from tests.support import servers
from tests.support.daemon import ServerError
from tests.support.disk import small_disk
from tests.support.docker import DockerEngine, ran
from tests.support.mlflow_server import Bucket, MlflowServer
from tests.support.postgres import Postgres
from tests.support.s3 import S3Server
from tests.support.surroundings import hide_machine

__all__ = ["small_disk"]

# A shell that starts the tests in the background has them ignore Ctrl-C, which every process below
# would inherit, also those whose Ctrl-C is what is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine only. `make test-full` takes more.
# The same examples in every run; `make test-full` draws new ones.
hypothesis.settings.register_profile("default", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.register_profile("full", deadline=None, max_examples=300)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_REAPER = pytest.StashKey[subprocess.Popen[bytes]]()

#: Folders with tests that take long. They are begun first: last, they would keep one process busy
#: for minutes while the others are done.
_LONG = (
    *("chaos", "team", "cluster", "experiments", "selftest", "faults", "postgres"),
    *("frontend", "mlflow", "process", "archive", "support", "training", "loaders"),
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """What is imported stays: it is not looked through for garbage, now or by tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark further variants as long; put long folders first and files that need Docker last.

    The order within a folder stays.
    """
    variants: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("quick_variants"):
            test = item.nodeid.partition("[")[0]
            variants[test] += 1
            if variants[test] > mark.args[0]:
                item.add_marker(pytest.mark.long)
    with_docker = {
        item.path
        for item in items
        if item.get_closest_marker("docker") and not item.get_closest_marker("long")
    }
    rank = {name: place for place, name in enumerate(_LONG)}
    items.sort(
        key=lambda item: (item.path in with_docker, rank.get(item.path.parent.name, len(rank)))
    )


@pytest.fixture(scope="module")
def module_runtime() -> Iterator[Path]:
    """The runtime folder of all tests of a file that are marked ``shared_collector``."""
    from tests.support.bench import shared_runtime  # imports MLflow

    with shared_runtime() as runtime:
        yield runtime


@pytest.fixture
def shares_collector(request: pytest.FixtureRequest) -> bool:
    """Whether the collector was there before the test and stays: deliverers are a test's own."""
    node = request.node
    return bool(
        node.get_closest_marker("shared_collector") and not node.get_closest_marker("mlflow")
    )


@pytest.fixture
def runtime_folder(shares_collector: bool, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The runtime folder.

    It is not below ``tmp_path``: the path of a Unix socket may have only 107 characters.
    """
    if shares_collector:
        yield request.getfixturevalue("module_runtime")
        return
    with tempfile.TemporaryDirectory(prefix="radt-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def private_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runtime_folder: Path) -> None:
    """Keep tests off the user's own collector and data."""
    monkeypatch.setenv("RADT_RUNTIME_DIR", str(runtime_folder))
    monkeypatch.setenv("RADT_HOME", str(tmp_path / "radt-data"))
    # An archive takes half a second of a core for every run; those tests that are about what
    # becomes of it have it made (`archives`).
    monkeypatch.setenv("RADT_ARCHIVE_S", "0")
    # Tests wait for what is uploaded, with both cores busy.
    monkeypatch.setenv("RADT_UPLOAD_WAIT_S", "0")
    # On a busy machine a collector may be slow to greet; those that are stopped are few.
    monkeypatch.setenv("RADT_COLLECTOR_PATIENCE_S", "60")


@pytest.fixture
def archives(private_folders: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are archived as they are for users."""
    monkeypatch.delenv("RADT_ARCHIVE_S")


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    """The way to browsers; a process can have only one."""
    with sync_playwright() as started:
        yield started


# Servers: one of each for the whole test run (tests/support/servers.py) -------------------------


def _rewrite_assertions(config: pytest.Config) -> None:
    """Have all cores do once what each worker would do at its start: ten seconds of one core."""
    folder = Path(__file__).parent
    files = [*folder.rglob("test_*.py"), *folder.rglob("conftest.py")]
    cores = os.cpu_count() or 1
    fork = multiprocessing.get_context("fork")
    shares = [
        fork.Process(target=_rewrite_files, args=(files[core::cores], config))
        for core in range(cores)
    ]
    for share in shares:
        share.start()
    for share in shares:
        share.join()


def _rewrite_files(files: list[Path], config: pytest.Config) -> None:
    for file in files:
        made = rewrite.get_cache_dir(file) / (file.name[:-3] + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, made) is None and rewrite.try_makedirs(made.parent):
            source_hash, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, made)


def _expect_packages(root: Path) -> None:
    """Say at once what a run of all tests lacks, rather than by the failures of hundreds."""
    command = ["sh", root / "tests" / "system_packages.sh", "--missing"]
    if missing := subprocess.run(command, capture_output=True, text=True).stdout.strip():
        raise pytest.UsageError(
            f"Not installed: {missing} (Debian's names). Run: sh tests/system_packages.sh"
        )


def pytest_configure(config: pytest.Config) -> None:
    """The first process of a test run owns the servers; its workers find them by a variable.

    It also hides the machine, before it starts them.
    """
    if not hasattr(config, "workerinput"):
        if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            _expect_packages(config.rootpath)
        # Where PYTHONDONTWRITEBYTECODE is set, each of some thousand processes would compile anew.
        for package in ("radt", "frontend", "listeners"):
            compileall.compile_dir(config.rootpath / package, quiet=2, workers=0)
        if getattr(config.option, "numprocesses", None):
            _rewrite_assertions(config)
        config.stash[_REAPER] = servers.share_servers()
        hide_machine(Path(os.environ[servers.SHARED_VARIABLE]))


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers that tests have started."""
    if reaper := config.stash.get(_REAPER, None):
        assert reaper.stdin is not None
        reaper.stdin.close()
        reaper.wait()


@pytest.fixture(scope="session")
def postgres() -> Postgres:
    """A Postgres cluster that nobody stops."""
    return servers.shared_postgres()


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """URI of a new Postgres database, with a password in it."""
    with servers.database_of(postgres) as uri:
        yield uri


@pytest.fixture(scope="session")
def s3() -> S3Server:
    """An S3 server that nobody stops."""
    return servers.shared_s3()


@pytest.fixture
def bucket(s3: S3Server) -> Bucket:
    """A new bucket."""
    return servers.bucket_of(s3)


@pytest.fixture(scope="session")
def mlflow_server(postgres: Postgres, s3: S3Server) -> MlflowServer:
    """A tracking server without passwords; artifacts go through it."""
    return servers.shared_mlflow(postgres, s3)


@pytest.fixture(scope="session")
def mlflow_server_with_auth(postgres: Postgres, s3: S3Server) -> MlflowServer:
    """A tracking server with basic auth; artifacts go through it."""
    return servers.shared_mlflow(postgres, s3, auth=True)


@pytest.fixture(scope="session")
def docker_engine() -> DockerEngine:
    """A Docker engine that nobody stops; where none can start, the tests that want it are skipped
    unless ``RADT_TEST_DOCKER`` is ``required``."""
    try:
        return servers.shared_docker()
    except ServerError as error:
        if os.environ.get("RADT_TEST_DOCKER") == "required":
            raise
        pytest.skip(str(error))


@pytest.fixture
def docker(docker_engine: DockerEngine, monkeypatch: pytest.MonkeyPatch) -> DockerEngine:
    """The Docker engine, which radt, too, finds by `docker` on PATH."""
    for name, value in docker_engine.environ.items():
        monkeypatch.setenv(name, value)
    return docker_engine


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say whether the tests that need Docker were run."""
    if line := ran(report for found in terminalreporter.stats.values() for report in found):
        terminalreporter.write_line(line)
