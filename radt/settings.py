"""All settings of radt, and the precedence of their sources.

The first source that sets a value wins: command line, environment variable, settings file
(`radt.setting_values`), default.
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
from radt.masking import HIDDEN
from radt.paths import start_folder
from radt.setting_values import (
    CLUSTER,
    COUNT,
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
    SettingKind,
    SettingsFile,
    choice,
    find_settings,
)

T = TypeVar("T")

#: Tables of a settings file that other modules read: commands, environments, clusters.
OTHER_TABLES = frozenset({"models", "environments", "cluster"})


class SettingLevel(StrEnum):
    """Source of a value, highest precedence first."""

    COMMAND_LINE = "command line"
    VARIABLE = "variable"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A setting.

    Args:
        name: Name of the option and key in a settings file; empty if there is only a variable.
        variables: Environment variables; the first that is set and not empty wins.
        default_text: Description of the default, where the value itself says little.
        secret: Never show the value.
    """

    name: str
    variables: tuple[str, ...]
    kind: SettingKind[T]
    default: T
    help: str
    default_text: str = ""
    secret: bool = False

    @property
    def label(self) -> str:
        return self.name or self.variables[0]

    def shown(self, value: T) -> str:
        """Return a value for display, with passwords hidden."""
        return HIDDEN if self.secret else self.kind.show(value)


def _option(
    name: str,
    kind: SettingKind[T],
    default: T,
    help_text: str,
    *,
    default_text: str = "",
    also: str = "",
) -> Setting[T]:
    """Return a setting with an option, a file key and a variable; ``also`` is a second variable."""
    own = f"RADT_{name.upper().replace('-', '_')}"
    variables = (own, also) if also else (own,)
    return Setting(name, variables, kind, default, help_text, default_text)


def _variable(
    name: str,
    kind: SettingKind[T],
    default: T,
    help_text: str,
    *,
    default_text: str = "",
    secret: bool = False,
) -> Setting[T]:
    """Return a setting that only has an environment variable."""
    return Setting("", (name,), kind, default, help_text, default_text, secret)


HOME = _option("home", PATH, Path("radt-data"), "Data folder.", default_text="./radt-data")
TRACKING_URI = _option(
    "tracking-uri",
    URI,
    "",
    "MLflow's address; none records without MLflow.",
    default_text="mlflow.db in the data folder",
    also="MLFLOW_TRACKING_URI",
)
STORE_URI = _option(
    "store-uri",
    setting_values.STORE_URI,
    "",
    "Postgres database that recorded data is uploaded to.",
    default_text="the tracking URI if it is Postgres",
)
REPEAT = _option("repeat", COUNT, 1, "Run the whole experiment N times.")
COOLDOWN = _option("cooldown", SECONDS, 0.0, "Wait between workloads.")
WAIT_FOR_FILE = _option(
    "wait-for-file",
    SECONDS,
    30.0,
    "How long to wait for a missing or invalid experiment file before skipping rows.",
)
MAX_TIME = _option("max-time", LIMIT_SECONDS, None, "End each run's with block after TIME.")
MAX_EPOCH = _option("max-epoch", LIMIT_COUNT, None, "End each run's with block after N epochs.")
IGNORED_PARAMS = _option(
    "ignored-params",
    TEXT,
    "seed, random-seed, run-name, output, output-dir, out, out-dir, log, log-dir, logdir, save-dir",
    "Params in which a run may differ from the run alone that it is compared with.",
)
SYNC = _option(
    "sync",
    choice("start", "context"),
    "start",
    "Where a workload's runs wait for each other: at process start, or at their with block.",
)
FAIL_FAST = _option(
    "fail-fast",
    SWITCH,
    False,
    "Stop a workload at its first run that does not finish, and skip the rest.",
)
BUSY = _option(
    "busy",
    choice("wait", "fail", "ignore"),
    "wait",
    "What to do when another process is using a device.",
)
NOTIFY = _option(
    "notify",
    NOTIFY_TARGET,
    "",
    "Command to run, or address to notify (any of apprise), on a failure and at the end.",
    default_text="nobody",
)
ON = _option(
    "on",
    CLUSTER,
    "",
    "Where to run: slurm, slurm:PARTITION, NAME of [cluster.NAME], or local.",
    default_text="local",
)
YES = _option("yes", SWITCH, False, "Ask no questions.")
WAIT = _option(
    "wait",
    SWITCH,
    False,
    "At the end, wait until MLflow and Postgres have all data; exit with an error if they do not.",
    default_text="only where the collector would be killed, as in a container",
)
QUIET = _option(
    "quiet", SWITCH, False, "Suppress run output, and radt's two lines about the run of a script."
)

MODE = _variable("RADT_MODE", TEXT, "", "off: radt.Run does nothing.", default_text="record")
RANKS = _variable(
    "RADT_RANKS",
    choice("auto", "join", "separate"),
    "auto",
    "Record the ranks of a launcher as one run, or as a run each; auto joins those of one "
    "distributed training.",
)
RUNTIME_DIR = _variable(
    "RADT_RUNTIME_DIR",
    PATH,
    Path(),
    "Sockets, locks and logs of the collector.",
    default_text="private to the user",
)
DASHBOARD_TOKEN = _variable(
    "RADT_DASHBOARD_TOKEN",
    TEXT,
    "",
    "Token that visitors of the dashboard must enter.",
    default_text="none",
    secret=True,
)
DASHBOARD_WRITE_TOKEN = _variable(
    "RADT_DASHBOARD_WRITE_TOKEN",
    TEXT,
    "",
    "Token that visitors of the dashboard must enter to change notes and saved views.",
    default_text="none: only the owner of a local store may",
    secret=True,
)
DASHBOARD_BASE_PATH = _variable(
    "RADT_DASHBOARD_BASE_PATH",
    TEXT,
    "",
    "Path below which a reverse proxy serves the dashboard, as with `radt dashboard --base-path`.",
    default_text="none: the proxy strips it, or there is none",
)
DASHBOARD_ARTIFACT_ROOT = _variable(
    "RADT_DASHBOARD_ARTIFACT_ROOT",
    PATH,
    Path(),
    "Folder of this machine below which the dashboard shows artifacts that MLflow keeps at paths, "
    "besides those of the data folder.",
    default_text="none",
)
DASHBOARD_LOAD_URI = _variable(
    "RADT_DASHBOARD_LOAD_URI",
    setting_values.STORE_URI,
    "",
    "The dashboard's Postgres store, with a role that can write: the dashboard imports runs that "
    "only MLflow has.",
    default_text="none",
)
ENVIRONMENTS = _variable(
    "RADT_ENVIRONMENTS",
    PATH,
    Path(),
    "Folder of built environments, within $XDG_CACHE_HOME unless set.",
    default_text="radt/environments in ~/.cache",
)
COLLECTOR_IDLE_S = _variable(
    "RADT_COLLECTOR_IDLE_S", NUMBER, 10.0, "Seconds that an idle collector waits for work."
)
COLLECTOR_OWNER = _variable(
    "RADT_COLLECTOR_OWNER",
    LIMIT_COUNT,
    None,
    "Process id with which the collector ends, as that of a cluster's job does.",
    default_text="none",
)
FLUSH_S = _variable(
    "RADT_FLUSH_S", POSITIVE, 1.0, "Seconds between the collector's writes to radt.db."
)
DISK_SYNC_S = _variable(
    "RADT_DISK_SYNC_S",
    NUMBER,
    0.0,
    "Seconds between calls of fdatasync for radt.db, which limit the loss in a power cut; 0 "
    "leaves it to the kernel.",
)
COLLECTOR_HANG_S = _variable(
    "RADT_COLLECTOR_HANG_S",
    POSITIVE,
    10.0,
    "Seconds after which the collector gives up a listener that does not return.",
)
COLLECTOR_PATIENCE_S = _variable(
    "RADT_COLLECTOR_PATIENCE_S",
    POSITIVE,
    2.0,
    "Seconds that a script waits at most for its collector, at its start and at its end.",
)
COLLECTOR_BUFFER = _variable(
    "RADT_COLLECTOR_BUFFER",
    COUNT,
    250_000,
    "Points of a run that the collector keeps in memory while radt.db cannot be written.",
)
COLLECTOR_DELIVERY_S = _variable(
    "RADT_COLLECTOR_DELIVERY_S",
    NUMBER,
    120.0,
    "Seconds that an idle collector waits for uploads without progress, and radt at its end (wait) "
    "in all.",
)
#: On machines with up to this many CPUs, an upload noticeably competes with runs.
_FEW_CPUS = 4


def _cpu_count() -> int:
    """Return the number of CPUs that this process may use; all CPUs if that is unknown."""
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own is not None else os.cpu_count() or 1


UPLOAD_WAIT_S = _variable(
    "RADT_UPLOAD_WAIT_S",
    NUMBER,
    300.0 if _cpu_count() <= _FEW_CPUS else 10.0,  # starting an upload takes 4 s of CPU time
    "Seconds by which running runs delay non-urgent uploads at most; 0 uploads at once, with the "
    "priority of the runs.",
    default_text=f"300 with up to {_FEW_CPUS} CPUs, else 10",
)
REPLICATION_S = _variable(
    "RADT_REPLICATION_S",
    POSITIVE,
    60.0,
    "Seconds between uploads of a running run's samples to Postgres.",
)
ARCHIVE_S = _variable(
    "RADT_ARCHIVE_S", NUMBER, 900.0, "Seconds between archives of a running run; 0 for no archives."
)
CLUSTER_PART_S = _variable(
    "RADT_CLUSTER_PART_S",
    POSITIVE,
    60.0,
    "Seconds between a cluster node's uploads of a running run to the shared folder.",
)
CLUSTER_POLL_S = _variable(
    "RADT_CLUSTER_POLL_S", POSITIVE, 15.0, "Seconds between two queries of a cluster's queue."
)
CLUSTER_BEAT_S = _variable(
    "RADT_CLUSTER_BEAT_S",
    POSITIVE,
    10.0,
    "Seconds between a cluster's node's signs of life in the shared folder.",
)
CLUSTER_LATE_S = _variable(
    "RADT_CLUSTER_LATE_S",
    POSITIVE,
    90.0,
    "Seconds until a cluster's shared folder shows here what a node has written, at the latest.",
)
CLUSTER_PATIENCE_S = _variable(
    "RADT_CLUSTER_PATIENCE_S",
    NUMBER,
    600.0,
    "Seconds that a cluster's job waits at its end for a shared folder that is full or away.",
)

SETTINGS: tuple[Setting[Any], ...] = tuple(
    setting for setting in globals().values() if isinstance(setting, Setting)
)
#: Settings for the command line (mostly), a settings file or a variable.
OPTIONS = tuple(setting for setting in SETTINGS if setting.name)
#: Settings of the user and the machine rather than of a project: variables only.
VARIABLES = tuple(setting for setting in SETTINGS if not setting.name)


@dataclass(frozen=True, slots=True)
class FoundSetting(Generic[T]):
    """A setting's value and its source; ``place`` names the option, variable or file.

    With a ``problem``, the text at that place is invalid and the value is the default.
    """

    setting: Setting[T]
    value: T
    level: SettingLevel = SettingLevel.DEFAULT
    place: str = ""
    problem: UsageError | None = None

    @property
    def shown(self) -> str:
        """Return the value for display, with passwords hidden."""
        if self.level is SettingLevel.DEFAULT and self.setting.default_text:
            return self.setting.default_text
        return self.setting.shown(self.value)


class Settings:
    """Values that apply to one folder.

    Args:
        file: Settings file of the folder.
        given: Command-line values by setting; None for settings that were not given.
        environ: Environment variables.
        folder: Base of relative paths in the command line and variables.
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
        """Return the settings for experiments in a folder.

        Raises:
            UsageError: The settings file cannot be read.
        """
        return cls(find_settings(folder), given, environ)

    def __getitem__(self, setting: Setting[T]) -> T:
        """Return the value.

        Raises:
            UsageError: The source with the highest precedence has an invalid value.
        """
        resolved = self.find(setting)
        if resolved.problem is not None:
            raise resolved.problem
        return resolved.value

    def find(self, setting: Setting[T]) -> FoundSetting[T]:
        """Return the value with its source; a problem is returned, not raised."""
        text = self._given.get(setting)
        if text is not None:
            return self._parsed(setting, text, SettingLevel.COMMAND_LINE, f"--{setting.name}")
        for variable in setting.variables:
            if text := self._environ.get(variable):
                return self._parsed(setting, text, SettingLevel.VARIABLE, variable)
        if setting.name and self.file is not None:
            value = self.file.table.get(setting.name)
            if value not in (None, ""):
                return self._from_file(setting, self.file, value)
        return FoundSetting(setting, self._default(setting))

    def problems(self) -> Iterator[UsageError]:
        """Yield every invalid value of a setting and every unknown key of the settings file."""
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
        """Check all settings.

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

    def _from_file(self, setting: Setting[T], file: SettingsFile, value: object) -> FoundSetting[T]:
        place = f"{file.where}: {setting.name}"
        if type(value) not in (str, *setting.kind.in_toml):
            problem = UsageError(f"{place}: {value!r} is not a valid value", setting.help)
            return FoundSetting(
                setting, self._default(setting), SettingLevel.FILE, file.where, problem
            )
        parsed = self._parsed(setting, str(value), SettingLevel.FILE, place, file.path.parent)
        return replace(parsed, place=file.where)

    def _parsed(
        self,
        setting: Setting[T],
        text: str,
        level: SettingLevel,
        place: str,
        folder: Path | None = None,
    ) -> FoundSetting[T]:
        try:
            value = setting.kind.parse(text, folder or self._folder)
        except UsageError as error:
            problem = UsageError(f"{place}: {error.message}", error.remedy)
            return FoundSetting(setting, self._default(setting), level, place, problem)
        return FoundSetting(setting, value, level, place)


def variable(setting: Setting[T], environ: Mapping[str, str] = os.environ) -> FoundSetting[T]:
    """Return a setting's value from the environment alone."""
    return Settings(None, environ=environ).find(setting)


def value_for_script(setting: Setting[T], warn: Callable[[str], None] | None) -> T:
    """Return a setting's value from the settings file of the start folder, else the default.

    Args:
        setting: The setting.
        warn: Receives a description of the problem, and the default is used; None raises instead.

    Raises:
        UsageError: The settings file cannot be read or its value is invalid.
    """
    try:
        return Settings.of(start_folder(), environ={})[setting]
    except (UsageError, OSError) as error:
        if warn is None:
            raise
        warn(f"settings are not used: {error}")
        return Settings(None, environ={})[setting]
