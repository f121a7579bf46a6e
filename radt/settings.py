"""All settings of radt, and the precedence of their sources.

The first source that sets a value wins: command line, environment variable, settings file
(`radt.setting_values`), default.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
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


@dataclass(slots=True, eq=False)
class Setting(Generic[T]):
    """A setting that only has an environment variable.

    `key` is its name in this module: ``FLUSH_S`` has the variable ``RADT_FLUSH_S``.

    Args:
        default_text: Description of the default, where the value itself says little.
        also: A second variable, which counts if the first is not set or empty.
        secret: Never show the value.
    """

    kind: SettingKind[T]
    default: T
    help: str
    default_text: str = ""
    also: str = ""
    secret: bool = False
    key: str = field(default="", init=False)

    @property
    def name(self) -> str:
        """Name of the option and key in a settings file; empty if there is only a variable."""
        return ""

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables; the first that is set and not empty wins."""
        own = f"RADT_{self.key}"
        return (own, self.also) if self.also else (own,)

    @property
    def label(self) -> str:
        return self.name or self.variables[0]

    def shown(self, value: T) -> str:
        """Return a value for display, with passwords hidden."""
        return HIDDEN if self.secret else self.kind.show(value)


class Option(Setting[T]):
    """A setting with an option and a key in settings files: ``MAX_TIME`` has ``--max-time``."""

    @property
    def name(self) -> str:
        return self.key.lower().replace("_", "-")


HOME = Option(PATH, Path("radt-data"), "Data folder.", default_text="./radt-data")
TRACKING_URI = Option(
    URI,
    "",
    "MLflow's address; none records without MLflow.",
    default_text="mlflow.db in the data folder",
    also="MLFLOW_TRACKING_URI",
)
STORE_URI = Option(
    setting_values.STORE_URI,
    "",
    "Postgres database that recorded data is uploaded to.",
    default_text="the tracking URI if it is Postgres",
)
REPEAT = Option(COUNT, 1, "Run the whole experiment N times.")
COOLDOWN = Option(SECONDS, 0.0, "Wait between workloads.")
WAIT_FOR_FILE = Option(
    SECONDS, 30.0, "How long to wait for a missing or invalid experiment file before skipping rows."
)
MAX_TIME = Option(LIMIT_SECONDS, None, "End each run's with block after TIME.")
MAX_EPOCH = Option(LIMIT_COUNT, None, "End each run's with block after N epochs.")
IGNORED_PARAMS = Option(
    TEXT,
    "seed, random-seed, run-name, output, output-dir, out, out-dir, log, log-dir, logdir, save-dir",
    "Params in which a run may differ from the run alone that it is compared with.",
)
SYNC = Option(
    choice("start", "context"),
    "start",
    "Where a workload's runs wait for each other: at process start, or at their with block.",
)
FAIL_FAST = Option(
    SWITCH, False, "Stop a workload at its first run that does not finish, and skip the rest."
)
BUSY = Option(
    choice("wait", "fail", "ignore"), "wait", "What to do when another process is using a device."
)
NOTIFY = Option(
    NOTIFY_TARGET,
    "",
    "Command to run, or address to notify (any of apprise), on a failure and at the end.",
    default_text="nobody",
)
ON = Option(
    CLUSTER,
    "",
    "Where to run: slurm, slurm:PARTITION, NAME of [cluster.NAME], or local.",
    default_text="local",
)
YES = Option(SWITCH, False, "Ask no questions.")
WAIT = Option(
    SWITCH,
    False,
    "At the end, wait until MLflow and Postgres have all data; exit with an error if they do not.",
    default_text="only where the collector would be killed, as in a container",
)
QUIET = Option(
    SWITCH, False, "Suppress run output, and radt's two lines about the run of a script."
)

MODE = Setting(TEXT, "", "off: radt.Run does nothing.", default_text="record")
RANKS = Setting(
    choice("auto", "join", "separate"),
    "auto",
    "Record the ranks of a launcher as one run, or as a run each; auto joins those of one "
    "distributed training.",
)
RUNTIME_DIR = Setting(
    PATH, Path(), "Sockets, locks and logs of the collector.", default_text="private to the user"
)
DASHBOARD_TOKEN = Setting(
    TEXT, "", "Token that visitors of the dashboard must enter.", default_text="none", secret=True
)
DASHBOARD_WRITE_TOKEN = Setting(
    TEXT,
    "",
    "Token that visitors of the dashboard must enter to change notes and saved views.",
    default_text="none: only the owner of a local store may",
    secret=True,
)
DASHBOARD_BASE_PATH = Setting(
    TEXT,
    "",
    "Path below which a reverse proxy serves the dashboard, as with `radt dashboard --base-path`.",
    default_text="none: the proxy strips it, or there is none",
)
DASHBOARD_ARTIFACT_ROOT = Setting(
    PATH,
    Path(),
    "Folder of this machine below which the dashboard shows artifacts that MLflow keeps at paths, "
    "besides those of the data folder.",
    default_text="none",
)
DASHBOARD_LOAD_URI = Setting(
    setting_values.STORE_URI,
    "",
    "The dashboard's Postgres store, with a role that can write: the dashboard imports runs that "
    "only MLflow has.",
    default_text="none",
)
ENVIRONMENTS = Setting(
    PATH,
    Path(),
    "Folder of built environments, within $XDG_CACHE_HOME unless set.",
    default_text="radt/environments in ~/.cache",
)
COLLECTOR_IDLE_S = Setting(NUMBER, 10.0, "Seconds that an idle collector waits for work.")
COLLECTOR_OWNER = Setting(
    LIMIT_COUNT,
    None,
    "Process id with which the collector ends, as that of a cluster's job does.",
    default_text="none",
)
FLUSH_S = Setting(POSITIVE, 1.0, "Seconds between the collector's writes to radt.db.")
DISK_SYNC_S = Setting(
    NUMBER,
    0.0,
    "Seconds between calls of fdatasync for radt.db, which limit the loss in a power cut; 0 "
    "leaves it to the kernel.",
)
COLLECTOR_HANG_S = Setting(
    POSITIVE, 10.0, "Seconds after which the collector gives up a listener that does not return."
)
COLLECTOR_PATIENCE_S = Setting(
    POSITIVE,
    2.0,
    "Seconds that a script waits at most for its collector, at its start and at its end.",
)
COLLECTOR_BUFFER = Setting(
    COUNT,
    250_000,
    "Points of a run that the collector keeps in memory while radt.db cannot be written.",
)
COLLECTOR_DELIVERY_S = Setting(
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


UPLOAD_WAIT_S = Setting(
    NUMBER,
    300.0 if _cpu_count() <= _FEW_CPUS else 10.0,  # starting an upload takes 4 s of CPU time
    "Seconds by which running runs delay non-urgent uploads at most; 0 uploads at once, with the "
    "priority of the runs.",
    default_text=f"300 with up to {_FEW_CPUS} CPUs, else 10",
)
REPLICATION_S = Setting(
    POSITIVE, 60.0, "Seconds between uploads of a running run's samples to Postgres."
)
ARCHIVE_S = Setting(NUMBER, 900.0, "Seconds between archives of a running run; 0 for no archives.")
CLUSTER_PART_S = Setting(
    POSITIVE,
    60.0,
    "Seconds between a cluster node's uploads of a running run to the shared folder.",
)
CLUSTER_POLL_S = Setting(POSITIVE, 15.0, "Seconds between two queries of a cluster's queue.")
CLUSTER_BEAT_S = Setting(
    POSITIVE, 10.0, "Seconds between a cluster's node's signs of life in the shared folder."
)
CLUSTER_LATE_S = Setting(
    POSITIVE,
    90.0,
    "Seconds until a cluster's shared folder shows here what a node has written, at the latest.",
)
CLUSTER_PATIENCE_S = Setting(
    NUMBER,
    600.0,
    "Seconds that a cluster's job waits at its end for a shared folder that is full or away.",
)

_BY_KEY = {key: each for key, each in globals().items() if isinstance(each, Setting)}
for _key, _setting in _BY_KEY.items():
    _setting.key = _key
SETTINGS: tuple[Setting[Any], ...] = tuple(_BY_KEY.values())
#: Settings for the command line (mostly), a settings file or a variable.
OPTIONS: tuple[Setting[Any], ...] = tuple(one for one in SETTINGS if isinstance(one, Option))
#: Settings of the user and the machine rather than of a project: variables only.
VARIABLES = tuple(one for one in SETTINGS if not isinstance(one, Option))


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
    """

    def __init__(
        self,
        file: SettingsFile | None,
        given: Mapping[Setting[Any], str | None] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.file = file
        self._given = given or {}
        self._environ = environ
        #: Base of relative paths in the command line and variables.
        self._folder = Path()
        with suppress(FileNotFoundError):  # the working folder was deleted; paths stay relative
            self._folder = start_folder()

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
        value: object = self._given.get(setting)
        variable = next((name for name in setting.variables if self._environ.get(name)), "")
        folder = self._folder
        if value is not None:
            level, place = SettingLevel.COMMAND_LINE, f"--{setting.name}"
        elif variable:
            level, place, value = SettingLevel.VARIABLE, variable, self._environ[variable]
        elif (
            isinstance(setting, Option)
            and self.file is not None
            and (value := self.file.table.get(setting.name)) not in (None, "")
        ):
            level, place, folder = SettingLevel.FILE, self.file.where, self.file.path.parent
        else:
            return FoundSetting(setting, self._default(setting))
        where = f"{place}: {setting.name}" if level is SettingLevel.FILE else place
        try:
            parsed = setting.kind.read(value, folder, where, setting.help)
        except UsageError as problem:
            return FoundSetting(setting, self._default(setting), level, place, problem)
        return FoundSetting(setting, parsed, level, place)

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
        default, parse = setting.default, setting.kind.parse
        return parse(str(default), self._folder) if setting is HOME else default


def variable(setting: Setting[T], environ: Mapping[str, str] = os.environ) -> FoundSetting[T]:
    """Return a setting's value from the environment alone."""
    return Settings(None, environ=environ).find(setting)


def value_for_script(
    setting: Setting[T],
    warn: Callable[[str], None] | None,
    given: str | None = None,
    *,
    instead: T | None = None,
) -> T:
    """Return a setting's value in a script: as given, of a variable, of a file, or the default.

    The file is that of the start folder. It is read only if it counts.

    Args:
        setting: The setting.
        warn: Receives a description of a problem, which is then not raised.
        given: The value that the script or its caller chose; None or empty for none.
        instead: The value to use where there is a problem; None for the default.

    Raises:
        UsageError: The settings file cannot be read, or the value is invalid.
    """
    chosen = {setting: given or None}
    try:
        if Settings(None, chosen).find(setting).level is not SettingLevel.DEFAULT:
            return Settings(None, chosen)[setting]
        return Settings.of(start_folder(), environ={})[setting]
    except (UsageError, OSError) as error:
        if warn is None:
            raise
        warn(f"a setting is not used: {error}")
        return Settings(None, environ={})[setting] if instead is None else instead
