"""Built environments on this machine: one folder per content, built by one process at a time.

::

    environments/
    ├── HASH/
    │   ├── complete      written last: a folder without it is left from a killed build
    │   ├── env/          the environment itself (uv, conda)
    │   ├── packages.txt  its packages (uv, conda)
    │   └── facts.json    facts about the image (docker)
    └── HASH.lock         held by the builder, and by the tools it has started

``complete`` is touched at each use, so its modification time is the last use. Environments of uv
and conda are a folder with an interpreter, a *prefix*.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import radt
from radt import settings, units
from radt.environments.spec import BuiltEnvironment, EnvironmentSpec, Launch
from radt.environments.tool import BuildReport, run_tool
from radt.errors import EnvironmentBuildError
from radt.files import lock, write_whole
from radt.packages import LIST_PACKAGES

#: ``-r other.txt``, ``-c constraints.txt``, ``-e ../package`` and their long forms.
_OPTION = re.compile(
    r"(?P<option>-r|-c|-e|--requirement|--constraint|--editable)(?:\s*=\s*|\s+|(?<=-[rce]))"
    r"(?P<value>.+)"
)
_COMMENT = re.compile(r"(^|\s)#.*$")
_FILE_URL = re.compile(r"file:(?://(?:localhost)?)?(?P<path>/[^\s#;]*)")
#: Folders with generated content.
_SKIPPED = frozenset(
    {".git", ".venv", "__pycache__", "build", "dist", ".mypy_cache", ".ruff_cache"}
)


class CachedContent:
    """Hash of the inputs of an environment. The order of additions matters."""

    def __init__(self, kind: str) -> None:
        self._hash = hashlib.sha256()
        self._seen: set[Path] = set()
        # A home folder may be shared by different kinds of machines.
        self.add("kind", kind, sys.platform, platform.machine(), *platform.libc_ver())

    def add(self, *parts: str) -> None:
        """Add texts."""
        self._hash.update(repr(parts).encode("utf-8", "surrogateescape"))

    def add_own_python(self) -> None:
        """Add radt's own interpreter, for environments that are based on it."""
        self.add("python", sys.base_prefix, platform.python_version(), sys.version)

    def add_file(self, path: Path) -> None:
        """Add the bytes of a file, or the fact that it is missing, which its reader reports."""
        try:
            self.add("file", hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError as error:
            self.add("no file", str(path), str(error.errno))

    def add_requirements(self, path: Path) -> None:
        """Add a requirements file and all local files that it refers to."""
        if path in self._seen:
            return
        self._seen.add(path)
        self.add_file(path)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        self.add_requirement_lines(text, path.parent)

    def add_requirement_lines(self, text: str, folder: Path) -> None:
        """Add lines of a requirements file; relative paths start in ``folder``."""
        self.add("lines", text)
        for line in text.replace("\\\n", " ").splitlines():
            requirement = _COMMENT.sub("", line).strip()
            if option := _OPTION.fullmatch(requirement):
                path = folder / option["value"].strip().strip("\"'")
                if option["option"] in ("-e", "--editable"):
                    self.add("editable", str(path.resolve()))  # its sources are used in place
                else:
                    self.add_requirements(path)
            elif url := _FILE_URL.search(requirement):
                self._add_package(Path(url["path"]))
            elif requirement.startswith((".", "/")):
                self._add_package(folder / re.split(r"[;\[]|\s#", requirement)[0].strip())

    def _add_package(self, path: Path) -> None:
        """Add a package's file, or a folder of sources by names, sizes and modification times."""
        if not path.is_dir():
            self.add_file(path)
            return
        self.add("folder", str(path.resolve()))
        for parent, folders, files in os.walk(path):
            folders[:] = sorted(
                name for name in folders if name not in _SKIPPED and not name.endswith(".egg-info")
            )
            for name in sorted(files):
                try:
                    status = os.lstat(os.path.join(parent, name))  # noqa: PTH118 - os.walk's own
                except OSError:
                    continue  # deleted between the two calls
                self.add(parent, name, str(status.st_size), str(status.st_mtime_ns))

    def key(self) -> str:
        """Return the hash as a name for a folder."""
        return self._hash.hexdigest()[:32]


_COMPLETE = "complete"
_POLL_S = 0.1


def cache_folder() -> Path:
    """Return ``$RADT_ENVIRONMENTS``, or ``radt/environments`` in the user's cache folder."""
    setting = settings.variable(settings.ENVIRONMENTS)
    if setting.level is not settings.SettingLevel.DEFAULT:
        return setting.value.absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache"
    return base / "radt" / "environments"


def obtain(
    key: str,
    make: Callable[[Path, int], None],
    report: BuildReport,
    *,
    usable: Callable[[Path], bool] = lambda _: True,
) -> Path:
    """Return the folder of an environment, built if it is missing or no longer usable.

    Args:
        key: Hash of the environment's inputs.
        make: Called with the empty folder and the descriptor of the lock, which the tools that it
            starts must keep open (`radt.environments.tool.run_tool`).

    Raises:
        EnvironmentBuildError: ``make`` failed, the folder cannot be written, or building was
            cancelled. Nothing half-built remains.
    """
    folder = cache_folder() / key
    try:
        if not _ready(folder, usable):
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(folder, usable, report) as lock:
                if lock is not None:
                    _remove(folder)
                    _fill(folder, lock, make)
        (folder / _COMPLETE).touch()
    except OSError as error:
        raise EnvironmentBuildError(
            f"radt cannot keep environments in {folder.parent}: {error.strerror}",
            "Free space there, or set RADT_ENVIRONMENTS to a folder with some GB free",
            str(report.log),
        ) from error
    return folder


def _ready(folder: Path, usable: Callable[[Path], bool]) -> bool:
    return (folder / _COMPLETE).exists() and usable(folder)


def _fill(folder: Path, lock: int, make: Callable[[Path, int], None]) -> None:
    try:
        folder.mkdir()
        make(folder, lock)
        (folder / _COMPLETE).touch()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # the rest is removed next time, as incomplete
        raise


def _remove(folder: Path) -> None:
    if folder.exists():
        (folder / _COMPLETE).unlink(missing_ok=True)  # first: a half-removed one is not ready
        shutil.rmtree(folder)


@contextmanager
def _locked(
    folder: Path, usable: Callable[[Path], bool], report: BuildReport
) -> Iterator[int | None]:
    """Hold the build lock; yield None if another process has built the environment meanwhile.

    The kernel's lock belongs to all processes that have the descriptor and is released when the
    last of them exits. So the tool of a killed builder, which is still writing, keeps others out.
    """
    fd = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        announced = False
        while not lock(fd):
            if _ready(folder, usable):  # a daemon started by a build may keep the lock
                yield None
                return
            if not announced:
                report.say("waiting for another radt that builds this environment")
                announced = True
            report.check()
            time.sleep(_POLL_S)
        yield None if _ready(folder, usable) else fd
    finally:
        os.close(fd)  # not unlocked: the tools' descriptors are the same lock


#: Requirements of radt itself, and thus of scripts that import it.
OLDEST_PYTHON = (3, 11)


def list_packages(interpreter: Path, report: BuildReport) -> str:
    """Return ``name==version`` lines, the interpreter first.

    Raises:
        EnvironmentBuildError: The interpreter does not run.
    """
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    answer = run_tool([str(interpreter), "-c", LIST_PACKAGES], report, env=env, private=True)
    if answer.code != 0:
        raise report.failed(f"the environment's Python does not run: {answer.complaint}")
    return answer.output.strip() + "\n"


def python_version(packages: str) -> tuple[int, int] | None:
    """Return the major and minor version of the interpreter in a list of packages."""
    first = packages.partition("\n")[0]
    parts = first.removeprefix("python==").split(".")
    if not first.startswith("python==") or len(parts) < 2:
        return None
    major, minor = parts[:2]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def warn_if_old(packages: str, report: BuildReport) -> None:
    """Report an interpreter that is too old for scripts to import radt."""
    version = python_version(packages)
    if version is not None and version < OLDEST_PYTHON:
        report.say(
            f"its Python {version[0]}.{version[1]} is older than {OLDEST_PYTHON[0]}."
            f"{OLDEST_PYTHON[1]}: scripts in it cannot import radt"
        )


def package_folder() -> Path:
    """Return the folder of the running radt's package."""
    return Path(radt.__file__).resolve().parent


def outside_links(package: Path) -> dict[str, Path]:
    """Return the parts of the package that are links to folders outside of it, by name.

    An editable install has some, for parts at the top of the repository.
    """
    return {
        entry.name: entry.resolve()
        for entry in sorted(package.iterdir())
        if entry.is_symlink() and not entry.resolve().is_relative_to(package)
    }


#: Metadata of an installed package, beside radt's: by it, MLflow finds `radt.mlflow_plugin`.
HOOK = "radt_hook.dist-info"
_HOOK_FILES = {
    "METADATA": "Metadata-Version: 2.1\nName: radt-hook\nVersion: 1\n",
    "entry_points.txt": "[mlflow.default_experiment_provider]\n"
    "radt = radt.mlflow_plugin:RunFollower\n",
}


def importable_folder(base: Path) -> Path:
    """Return the folder for ``PYTHONPATH`` in ``base``, creating it if missing.

    It has the package and `HOOK`.

    Raises:
        EnvironmentBuildError: The folder cannot be created.
    """
    package = package_folder()
    digest = hashlib.sha256(os.fsencode(package)).hexdigest()[:16]
    folder = base / f"import-{digest}"
    link = folder / "radt"
    fresh = folder / f".{secrets.token_hex(4)}"  # renamed atomically: others may do the same
    try:
        hook = folder / HOOK
        hook.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            fresh.symlink_to(package)
            fresh.replace(link)
        for name, text in _HOOK_FILES.items():
            if not (hook / name).exists():
                write_whole(hook / name, text)
        # Independent of the umask: the user of a container may be another one.
        for path, mode in ((hook, 0o755), *((hook / name, 0o644) for name in _HOOK_FILES)):
            if path.stat().st_mode & mode != mode:
                path.chmod(mode)
    except OSError as error:
        raise EnvironmentBuildError(
            f"{folder} cannot be made: {error.strerror}",
            "Free space there, or check its permissions",
        ) from error
    return folder


def with_first(first: str, rest: str | None) -> str:
    """Return a search path with a first entry; omit an empty rest, which would mean '.'."""
    return f"{first}{os.pathsep}{rest}" if rest else first


PREFIX = "env"
PACKAGES = "packages.txt"


def obtain_prefix(
    spec: EnvironmentSpec,
    content: CachedContent,
    make: Callable[[Path, int], str],
    report: BuildReport,
) -> tuple[Path, str]:
    """Return a prefix and its packages, built if necessary (`obtain`); warn about an old Python.

    Args:
        spec: The environment.
        content: Its inputs.
        make: Creates the prefix and returns its packages, see `obtain`.
        report: The build.
    """

    def fill(folder: Path, lock: int) -> None:
        started_s = time.monotonic()
        packages = make(folder / PREFIX, lock)
        (folder / PACKAGES).write_text(packages, encoding="utf-8")
        report.say(f"built {spec} in {units.duration(time.monotonic() - started_s)}")

    folder = obtain(content.key(), fill, report, usable=usable)
    packages = (folder / PACKAGES).read_text(encoding="utf-8")
    warn_if_old(packages, report)
    return folder / PREFIX, packages


def python_of(prefix: Path) -> Path:
    """Return the path of an environment's interpreter, if it has one."""
    return prefix / "bin" / "python"


def usable(folder: Path) -> bool:
    """Return whether the interpreter still exists: it may be a link to one that was removed.

    An environment without Python is always usable.
    """
    python = python_of(folder / PREFIX)
    return python.exists() or not python.is_symlink()


@dataclass(frozen=True, slots=True)
class PrefixEnvironment(BuiltEnvironment):
    """An environment in a folder: its programs come first on ``PATH``, and it can import radt."""

    spec: EnvironmentSpec
    prefix: Path
    packages: str
    interpreter: Path | None

    def command(self, launch: Launch) -> list[str]:
        if not launch.needs_python:
            return list(launch.arguments)
        if self.interpreter is None:
            raise EnvironmentBuildError(
                f"{self.spec} has no Python to run {launch.arguments[0]} with",
                f"Add python to the dependencies in {self.spec.source}",
            )
        return [str(self.interpreter), *launch.arguments]

    def variables(self, launch: Launch) -> dict[str, str]:
        return {
            "PATH": with_first(str(self.prefix / "bin"), launch.variables.get("PATH")),
            "PYTHONPATH": with_first(
                str(importable_folder(cache_folder())), launch.variables.get("PYTHONPATH")
            ),
            # Set, it would make Python use another standard library; empty counts as unset.
            "PYTHONHOME": "",
        }
