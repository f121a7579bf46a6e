"""All settings of radt, and where each of their values comes from.

The nearest place counts: the command line, else a variable, else the settings file
(`radt.setting_values`), else the default.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from radt import setting_values
from radt.errors import UsageError
from radt.paths import start_folder
from radt.setting_values import (
    CLUSTER,
    COUNT,
    HIDDEN,
    LIMIT_COUNT,
    LIMIT_SECONDS,
    NOTIFY_TARGET,
    NUMBER,
    PATH,
    POSITIVE,
    SECONDS,
    SWITCH,
    TEXT,
    URI,
    Kind,
    SettingsFile,
    choice,
    find_settings,
)

T = TypeVar("T")

#: Tables of a settings file that are read elsewhere: commands, environments, clusters.
OTHER_TABLES = frozenset({"models", "environments", "cluster"})


class Level(StrEnum):
    """Where a value comes from, the nearest first."""

    COMMAND_LINE = "command line"
    VARIABLE = "variable"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """One setting.

    Args:
        name: Of its option, and of its key in a settings file; empty where there is only a
            variable.
        variables: The first that is set and not empty counts.
        default_text: How the default is described where its value says little.
        secret: Never shown.
    """

    name: str
    variables: tuple[str, ...]
    kind: Kind[T]
    default: T
    help: str
    default_text: str = ""
    secret: bool = False

    @property
    def label(self) -> str:
        return self.name or self.variables[0]

    def shown(self, value: T) -> str:
        """A value for people, without passwords in it."""
        return HIDDEN if self.secret else self.kind.show(value)


HOME = Setting(
    "home", ("RADT_HOME",), PATH, Path("radt-data"), "Data folder.", default_text="./radt-data"
)
TRACKING_URI = Setting(
    "tracking-uri",
    ("RADT_TRACKING_URI", "MLFLOW_TRACKING_URI"),
    URI,
    "",
    "MLflow's address; none records without MLflow.",
    default_text="mlflow.db in the data folder",
)
STORE_URI = Setting(
    "store-uri",
    ("RADT_STORE_URI",),
    setting_values.STORE_URI,
    "",
    "Postgres database that recorded data is uploaded to.",
    default_text="the tracking URI if it is Postgres",
)
REPEAT = Setting("repeat", ("RADT_REPEAT",), COUNT, 1, "Run the whole experiment N times.")
COOLDOWN = Setting("cooldown", ("RADT_COOLDOWN",), SECONDS, 0.0, "Wait between workloads.")
WAIT_FOR_FILE = Setting(
    "wait-for-file",
    ("RADT_WAIT_FOR_FILE",),
    SECONDS,
    30.0,
    "How long to wait for a missing or invalid experiment file before skipping rows.",
)
MAX_TIME = Setting(
    "max-time", ("RADT_MAX_TIME",), LIMIT_SECONDS, None, "End each run's with block after TIME."
)
MAX_EPOCH = Setting(
    "max-epoch",
    ("RADT_MAX_EPOCH",),
    LIMIT_COUNT,
    None,
    "End each run's with block after N epochs.",
)
IGNORED_PARAMS = Setting(
    "ignored-params",
    ("RADT_IGNORED_PARAMS",),
    TEXT,
    "seed, random-seed, run-name, output, output-dir, out, out-dir, log, log-dir, logdir, save-dir",
    "Params in which a run may differ from the run alone that it is compared with.",
)
SYNC = Setting(
    "sync",
    ("RADT_SYNC",),
    choice("start", "context"),
    "start",
    "Where a workload's runs wait for each other: at process start, or at their with block.",
)
FAIL_FAST = Setting(
    "fail-fast",
    ("RADT_FAIL_FAST",),
    SWITCH,
    False,
    "Stop a workload at its first run that does not finish, and skip the rest.",
)
BUSY = Setting(
    "busy",
    ("RADT_BUSY",),
    choice("wait", "fail", "ignore"),
    "wait",
    "What to do when another process is using a device.",
)
NOTIFY = Setting(
    "notify",
    ("RADT_NOTIFY",),
    NOTIFY_TARGET,
    "",
    "Command to run, or address to notify (any of apprise), on a failure and at the end.",
    default_text="nobody",
)
ON = Setting(
    "on",
    ("RADT_ON",),
    CLUSTER,
    "",
    "Where to run: slurm, slurm:PARTITION, NAME of [cluster.NAME], or local.",
    default_text="local",
)
YES = Setting("yes", ("RADT_YES",), SWITCH, False, "Ask no questions.")
QUIET = Setting(
    "quiet",
    ("RADT_QUIET",),
    SWITCH,
    False,
    "Suppress run output, and radt's two lines about the run of a script.",
)

MODE = Setting("", ("RADT_MODE",), TEXT, "", "off: radt.Run does nothing.", default_text="record")
RANKS = Setting(
    "",
    ("RADT_RANKS",),
    choice("auto", "join", "separate"),
    "auto",
    "Record the ranks of a launcher as one run, or as a run each; auto joins those of one "
    "distributed training.",
)
RUNTIME_DIR = Setting(
    "",
    ("RADT_RUNTIME_DIR",),
    PATH,
    Path(),
    "Sockets, locks and logs of the collector.",
    default_text="private to the user",
)
DASHBOARD_TOKEN = Setting(
    "",
    ("RADT_DASHBOARD_TOKEN",),
    TEXT,
    "",
    "Token that visitors of the dashboard must enter.",
    default_text="none",
    secret=True,
)
DASHBOARD_WRITE_TOKEN = Setting(
    "",
    ("RADT_DASHBOARD_WRITE_TOKEN",),
    TEXT,
    "",
    "Token that visitors of the dashboard must enter to change notes and saved views.",
    default_text="none: only who uses an own store on this machine may",
    secret=True,
)
DASHBOARD_ARTIFACT_ROOT = Setting(
    "",
    ("RADT_DASHBOARD_ARTIFACT_ROOT",),
    PATH,
    Path(),
    "Folder of this machine below which the dashboard shows artifacts that MLflow keeps at paths, "
    "besides those of the data folder.",
    default_text="none",
)
DASHBOARD_LOAD_URI = Setting(
    "",
    ("RADT_DASHBOARD_LOAD_URI",),
    setting_values.STORE_URI,
    "",
    "The dashboard's Postgres store, with a role that can write: the dashboard imports runs that "
    "only MLflow has.",
    default_text="none",
)
ENVIRONMENTS = Setting(
    "",
    ("RADT_ENVIRONMENTS",),
    PATH,
    Path(),
    "Folder of built environments, within $XDG_CACHE_HOME unless set.",
    default_text="radt/environments in ~/.cache",
)
COLLECTOR_IDLE_S = Setting(
    "", ("RADT_COLLECTOR_IDLE_S",), NUMBER, 10.0, "Seconds that an idle collector waits for work."
)
COLLECTOR_OWNER = Setting(
    "",
    ("RADT_COLLECTOR_OWNER",),
    LIMIT_COUNT,
    None,
    "Process id with which the collector ends, as that of a cluster's job does.",
    default_text="none",
)
FLUSH_S = Setting(
    "", ("RADT_FLUSH_S",), POSITIVE, 1.0, "Seconds between the collector's writes to radt.db."
)
DISK_SYNC_S = Setting(
    "",
    ("RADT_DISK_SYNC_S",),
    NUMBER,
    0.0,
    "Seconds between calls of fdatasync for radt.db, which limit the loss in a power cut; 0 "
    "leaves it to the kernel.",
)
COLLECTOR_HANG_S = Setting(
    "",
    ("RADT_COLLECTOR_HANG_S",),
    POSITIVE,
    10.0,
    "Seconds after which the collector gives up a listener that does not return.",
)
COLLECTOR_PATIENCE_S = Setting(
    "",
    ("RADT_COLLECTOR_PATIENCE_S",),
    POSITIVE,
    2.0,
    "Seconds that a script waits at most for its collector, at its start and at its end.",
)
COLLECTOR_BUFFER = Setting(
    "",
    ("RADT_COLLECTOR_BUFFER",),
    COUNT,
    250_000,
    "Points of a run that the collector keeps in memory while radt.db cannot be written.",
)
COLLECTOR_DELIVERY_S = Setting(
    "",
    ("RADT_COLLECTOR_DELIVERY_S",),
    NUMBER,
    120.0,
    "Seconds that an idle collector waits for the upload to MLflow.",
)
#: Up to this many CPUs, an upload takes a good part of what a run needs.
_FEW_CPUS = 4


def _cpu_count() -> int:
    """Return how many CPUs this process may use; all where the system does not say."""
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own is not None else os.cpu_count() or 1


UPLOAD_WAIT_S = Setting(
    "",
    ("RADT_UPLOAD_WAIT_S",),
    NUMBER,
    300.0 if _cpu_count() <= _FEW_CPUS else 10.0,  # the start of an upload takes 4 s of a CPU
    "Seconds by which running runs delay non-urgent uploads at most; 0 uploads at once, with the "
    "priority of the runs.",
    default_text=f"300 with up to {_FEW_CPUS} CPUs, else 10",
)
REPLICATION_S = Setting(
    "",
    ("RADT_REPLICATION_S",),
    POSITIVE,
    60.0,
    "Seconds between uploads of a running run's samples to Postgres.",
)
ARCHIVE_S = Setting(
    "",
    ("RADT_ARCHIVE_S",),
    NUMBER,
    900.0,
    "Seconds between archives of a running run; 0 for no archives.",
)
CLUSTER_PART_S = Setting(
    "",
    ("RADT_CLUSTER_PART_S",),
    POSITIVE,
    60.0,
    "Seconds between what a cluster's node sends of a running run to the shared folder.",
)
CLUSTER_POLL_S = Setting(
    "",
    ("RADT_CLUSTER_POLL_S",),
    POSITIVE,
    15.0,
    "Seconds between two questions to a cluster's queue.",
)
CLUSTER_BEAT_S = Setting(
    "",
    ("RADT_CLUSTER_BEAT_S",),
    POSITIVE,
    10.0,
    "Seconds between a cluster's node's signs of life in the shared folder.",
)
CLUSTER_LATE_S = Setting(
    "",
    ("RADT_CLUSTER_LATE_S",),
    POSITIVE,
    90.0,
    "Seconds until a cluster's shared folder shows here what a node has written, at the latest.",
)
CLUSTER_PATIENCE_S = Setting(
    "",
    ("RADT_CLUSTER_PATIENCE_S",),
    NUMBER,
    600.0,
    "Seconds that a cluster's job waits at its end for a shared folder that is full or away.",
)

#: What a settings file may set, or a variable, or, mostly, an option of the command line.
OPTIONS: tuple[Setting[Any], ...] = (
    HOME,
    TRACKING_URI,
    STORE_URI,
    REPEAT,
    COOLDOWN,
    WAIT_FOR_FILE,
    MAX_TIME,
    MAX_EPOCH,
    IGNORED_PARAMS,
    SYNC,
    FAIL_FAST,
    BUSY,
    NOTIFY,
    ON,
    YES,
    QUIET,
)
#: Of the user and the machine, not of a project: variables only.
VARIABLES: tuple[Setting[Any], ...] = (
    MODE,
    RANKS,
    RUNTIME_DIR,
    DASHBOARD_TOKEN,
    DASHBOARD_WRITE_TOKEN,
    DASHBOARD_ARTIFACT_ROOT,
    DASHBOARD_LOAD_URI,
    ENVIRONMENTS,
    COLLECTOR_IDLE_S,
    COLLECTOR_OWNER,
    FLUSH_S,
    DISK_SYNC_S,
    COLLECTOR_HANG_S,
    COLLECTOR_PATIENCE_S,
    COLLECTOR_BUFFER,
    COLLECTOR_DELIVERY_S,
    UPLOAD_WAIT_S,
    REPLICATION_S,
    ARCHIVE_S,
    CLUSTER_PART_S,
    CLUSTER_POLL_S,
    CLUSTER_BEAT_S,
    CLUSTER_LATE_S,
    CLUSTER_PATIENCE_S,
)
SETTINGS = (*OPTIONS, *VARIABLES)


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A setting's value, the level it is from and the place there: option, variable or file.

    With a ``problem`` the place holds something else than a value, and the value is the default.
    """

    setting: Setting[T]
    value: T
    level: Level = Level.DEFAULT
    place: str = ""
    problem: UsageError | None = None

    @property
    def shown(self) -> str:
        """The value for people, without passwords in it."""
        if self.level is Level.DEFAULT and self.setting.default_text:
            return self.setting.default_text
        return self.setting.shown(self.value)


class Settings:
    """The values that hold for one folder.

    Args:
        file: The settings file of the folder.
        given: What the command line says, by setting; None for what it does not mention.
        environ: The variables.
        folder: Where relative paths of command line and variables start.
    """

    def __init__(
        self,
        file: SettingsFile | None,
        given: Mapping[Setting[Any], str | None] | None = None,
        environ: Mapping[str, str] = os.environ,
        folder: Path | None = None,
    ) -> None:
        self.file = file
        self._given = given or {}
        self._environ = environ
        self._folder = folder or start_folder()

    @classmethod
    def of(
        cls,
        folder: Path,
        given: Mapping[Setting[Any], str | None] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Settings:
        """The settings that hold for experiments of this folder.

        Raises:
            UsageError: The settings file cannot be read.
        """
        return cls(find_settings(folder), given, environ)

    def __getitem__(self, setting: Setting[T]) -> T:
        """The value.

        Raises:
            UsageError: The nearest place that mentions it holds something else.
        """
        resolved = self.find(setting)
        if resolved.problem is not None:
            raise resolved.problem
        return resolved.value

    def find(self, setting: Setting[T]) -> Found[T]:
        """The value and where it is from; a problem is returned, not raised."""
        text = self._given.get(setting)
        if text is not None:
            return self._parsed(setting, text, Level.COMMAND_LINE, f"--{setting.name}")
        for variable in setting.variables:
            if text := self._environ.get(variable):
                return self._parsed(setting, text, Level.VARIABLE, variable)
        if setting.name and self.file is not None:
            value = self.file.table.get(setting.name)
            if value not in (None, ""):
                return self._from_file(setting, self.file, value)
        return Found(setting, self._default(setting))

    def problems(self) -> Iterator[UsageError]:
        """All that is wrong with any setting, and with the keys of the settings file."""
        for setting in SETTINGS:
            if problem := self.find(setting).problem:
                yield problem
        known = {setting.name for setting in OPTIONS}
        for key in self.file.table if self.file is not None else ():
            if key not in known | OTHER_TABLES:
                assert self.file is not None
                near = difflib.get_close_matches(key, known | OTHER_TABLES, n=1)
                yield UsageError(
                    f"{self.file.where}: unknown setting {key!r}",
                    f"Did you mean {near[0]!r}?" if near else "radt config shows what there is",
                )

    def check(self) -> None:
        """
        Raises:
            UsageError: The first of `problems`.
        """
        for problem in self.problems():
            raise problem

    def _default(self, setting: Setting[T]) -> T:
        value = setting.default
        if isinstance(value, Path) and setting is HOME:
            return setting.kind.parse(str(value), self._folder)
        return value

    def _from_file(self, setting: Setting[T], file: SettingsFile, value: object) -> Found[T]:
        place = f"{file.where}: {setting.name}"
        if type(value) not in (str, *setting.kind.in_toml):
            problem = UsageError(f"{place}: {value!r} is not a value for it", setting.help)
            return Found(setting, self._default(setting), Level.FILE, file.where, problem)
        parsed = self._parsed(setting, str(value), Level.FILE, place, file.path.parent)
        return replace(parsed, place=file.where)

    def _parsed(
        self, setting: Setting[T], text: str, level: Level, place: str, folder: Path | None = None
    ) -> Found[T]:
        try:
            value = setting.kind.parse(text, folder or self._folder)
        except UsageError as error:
            problem = UsageError(f"{place}: {error.message}", error.remedy)
            return Found(setting, self._default(setting), level, place, problem)
        return Found(setting, value, level, place)


def variable(setting: Setting[T], environ: Mapping[str, str] = os.environ) -> Found[T]:
    """Return what the environment alone says of a setting."""
    return Settings(None, environ=environ).find(setting)


def value_for_script(setting: Setting[T], warn: Callable[[str], None] | None) -> T:
    """What the settings file of the folder says that the program was started in, else the default.

    Args:
        setting: The setting.
        warn: Told of a problem, which then leaves the default; raised if None.

    Raises:
        UsageError: The settings file cannot be read, or has no value of its kind there.
    """
    try:
        return Settings.of(start_folder(), environ={})[setting]
    except (UsageError, OSError) as error:
        if warn is None:
            raise
        warn(f"settings are not used: {error}")
        return Settings(None, environ={})[setting]
