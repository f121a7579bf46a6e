"""All settings of radt, and where each of their values comes from.

The nearest place counts: the command line, else a variable, else the settings file
(`radt.settings_file`), else the default.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from radt.durations import duration_text, parse_duration_s
from radt.errors import UsageError
from radt.masking import masked
from radt.settings_file import SettingsFile, find_settings

T = TypeVar("T")

#: What stands for "no limit" where a setting has one.
NONE = "none"
HIDDEN = "***"
#: Tables of a settings file that are read elsewhere: Model to command, name to environment.
OTHER_TABLES = frozenset({"models", "environments"})

_SWITCHES = {"true": True, "yes": True, "on": True, "1": True}
_SWITCHES |= {"false": False, "no": False, "off": False, "0": False}
_RELATIVE_SQLITE = re.compile(r"(sqlite:///)(?![/?]|:memory:)(.+)")


class Level(StrEnum):
    """Where a value comes from, the nearest first."""

    COMMAND_LINE = "command line"
    VARIABLE = "variable"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How the values of a setting are written.

    Args:
        parse: The value of a text, and the folder that relative paths in it start at; raises
            UsageError.
        metavar: What help shows for a value; empty for a switch.
        in_toml: Types that a settings file may write besides a string.
        show: The value for people.
    """

    parse: Callable[[str, Path], T]
    metavar: str
    in_toml: tuple[type, ...] = ()
    show: Callable[[T], str] = str


def _parse_path(text: str, folder: Path) -> Path:
    return folder / Path(text).expanduser()


def _parse_uri(text: str, folder: Path) -> str:
    """A URI; SQLite's relative paths become absolute, as other processes have other folders."""
    return _RELATIVE_SQLITE.sub(lambda found: f"{found[1]}{folder / found[2]}", text.strip())


def _parse_count(text: str, _folder: Path) -> int:
    number = text.strip()
    if not (number.isascii() and number.isdigit()) or int(number) == 0:
        raise UsageError(f"{number!r} is not a number of at least 1", "Write 1, 2, 3 or more")
    return int(number)


def _parse_limit_s(text: str, _folder: Path) -> float | None:
    if text.strip().lower() == NONE:
        return None
    seconds = parse_duration_s(text)
    if seconds == 0:
        raise UsageError("a limit of 0 leaves no time", f"Write such as 10min, or {NONE}")
    return seconds


def _parse_switch(text: str, _folder: Path) -> bool:
    try:
        return _SWITCHES[text.strip().lower()]
    except KeyError:
        raise UsageError(f"{text.strip()!r} is neither on nor off", "Write on or off") from None


def _parse_number(text: str, _folder: Path) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text.strip()!r} is not a number", "Write such as 10 or 0.5") from None


def _choice(*names: str) -> Kind[str]:
    def parse(text: str, _folder: Path) -> str:
        chosen = text.strip().lower()
        if chosen not in names:
            near = difflib.get_close_matches(chosen, names, n=1)
            raise UsageError(
                f"{text.strip()!r} is not one of {', '.join(names)}",
                f"Did you mean {near[0]!r}?" if near else f"Write {' or '.join(names)}",
            )
        return chosen

    return Kind(parse, f"[{'|'.join(names)}]")


def _show_notify(value: str) -> str:
    """Addresses of webhooks are secrets, from the path on."""
    if not value.lower().startswith(("http://", "https://")):
        return masked(value)
    parts = urlsplit(value)
    return f"{parts.scheme}://{parts.hostname}/{HIDDEN}"


_TEXT: Kind[str] = Kind(lambda text, _folder: text.strip(), "TEXT")
_PATH = Kind(_parse_path, "FOLDER")
_URI = Kind(_parse_uri, "URI", show=lambda value: masked(value) if value else "")
_NOTIFY = replace(_TEXT, metavar="COMMAND|URL", show=_show_notify)
_COUNT = Kind(_parse_count, "N", (int,))
_LIMIT_COUNT: Kind[int | None] = Kind(
    lambda text, folder: None if text.strip().lower() == NONE else _parse_count(text, folder),
    "N",
    (int,),
    show=lambda value: NONE if value is None else f"{value:,}",
)
_SECONDS = Kind(
    lambda text, _folder: parse_duration_s(text), "TIME", (int, float), show=duration_text
)
_LIMIT_SECONDS = Kind(
    _parse_limit_s,
    "TIME",
    (int, float),
    show=lambda value: NONE if value is None else duration_text(value),
)
_SWITCH = Kind(_parse_switch, "", (bool,), show=lambda value: "on" if value else "off")
_NUMBER = Kind(_parse_number, "NUMBER", show=lambda value: f"{value:,g}")


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
    "home", ("RADT_HOME",), _PATH, Path("radt-data"), "Data folder.", default_text="./radt-data"
)
TRACKING_URI = Setting(
    "tracking-uri",
    ("RADT_TRACKING_URI", "MLFLOW_TRACKING_URI"),
    _URI,
    "",
    "MLflow's address.",
    default_text="mlflow.db in the data folder",
)
REPEAT = Setting(
    "repeat", ("RADT_REPEAT",), _COUNT, 1, "Run the whole experiment so many times over."
)
COOLDOWN = Setting("cooldown", ("RADT_COOLDOWN",), _SECONDS, 0.0, "Wait between workloads.")
MAX_TIME = Setting(
    "max-time", ("RADT_MAX_TIME",), _LIMIT_SECONDS, None, "End each run's with block after TIME."
)
MAX_EPOCH = Setting(
    "max-epoch",
    ("RADT_MAX_EPOCH",),
    _LIMIT_COUNT,
    None,
    "End each run's with block after N epochs.",
)
SYNC = Setting(
    "sync",
    ("RADT_SYNC",),
    _choice("start", "context"),
    "start",
    "Where a workload's runs wait for each other: as processes, or at their with block.",
)
FAIL_FAST = Setting(
    "fail-fast",
    ("RADT_FAIL_FAST",),
    _SWITCH,
    False,
    "Start no further workload after a run that failed.",
)
BUSY = Setting(
    "busy",
    ("RADT_BUSY",),
    _choice("wait", "fail", "ignore"),
    "wait",
    "What to do when somebody else's process is on a device.",
)
NOTIFY = Setting(
    "notify",
    ("RADT_NOTIFY",),
    _NOTIFY,
    "",
    "Command to run, or webhook to call, at the end or a failure.",
    default_text="nobody",
)
YES = Setting("yes", ("RADT_YES",), _SWITCH, False, "Ask nothing.")
QUIET = Setting("quiet", ("RADT_QUIET",), _SWITCH, False, "Do not show what the runs print.")

MODE = Setting("", ("RADT_MODE",), _TEXT, "", "off: radt.Run does nothing.", default_text="record")
RUNTIME_DIR = Setting(
    "",
    ("RADT_RUNTIME_DIR",),
    _PATH,
    Path(),
    "Sockets, locks and logs of the collector.",
    default_text="private to the user",
)
DASHBOARD_TOKEN = Setting(
    "",
    ("RADT_DASHBOARD_TOKEN",),
    _TEXT,
    "",
    "What the dashboard asks visitors for.",
    default_text="none",
    secret=True,
)
COLLECTOR_IDLE_S = Setting(
    "", ("RADT_COLLECTOR_IDLE_S",), _NUMBER, 10.0, "Seconds the collector stays with nothing to do."
)
FLUSH_S = Setting("", ("RADT_FLUSH_S",), _NUMBER, 1.0, "Seconds between its writes to radt.db.")
COLLECTOR_HANG_S = Setting(
    "", ("RADT_COLLECTOR_HANG_S",), _NUMBER, 10.0, "Seconds until a hanging listener is given up."
)
COLLECTOR_BUFFER = Setting(
    "", ("RADT_COLLECTOR_BUFFER",), _NUMBER, 250_000.0, "Points kept in memory of a run."
)
COLLECTOR_DELIVERY_S = Setting(
    "", ("RADT_COLLECTOR_DELIVERY_S",), _NUMBER, 120.0, "Seconds it waits for MLflow at its end."
)

#: Options of the command line that a variable or a settings file may set, too.
OPTIONS: tuple[Setting[Any], ...] = (
    HOME,
    TRACKING_URI,
    REPEAT,
    COOLDOWN,
    MAX_TIME,
    MAX_EPOCH,
    SYNC,
    FAIL_FAST,
    BUSY,
    NOTIFY,
    YES,
    QUIET,
)
#: Of the user and the machine, not of a project: variables only.
VARIABLES: tuple[Setting[Any], ...] = (
    MODE,
    RUNTIME_DIR,
    DASHBOARD_TOKEN,
    COLLECTOR_IDLE_S,
    FLUSH_S,
    COLLECTOR_HANG_S,
    COLLECTOR_BUFFER,
    COLLECTOR_DELIVERY_S,
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
        self._folder = folder or Path.cwd()

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
        found = self.find(setting)
        if found.problem is not None:
            raise found.problem
        return found.value

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
        found = self._parsed(setting, str(value), Level.FILE, place, file.path.parent)
        return replace(found, place=file.where)

    def _parsed(
        self, setting: Setting[T], text: str, level: Level, place: str, folder: Path | None = None
    ) -> Found[T]:
        try:
            value = setting.kind.parse(text, folder or self._folder)
        except UsageError as error:
            problem = UsageError(f"{place}: {error.message}", error.remedy)
            return Found(setting, self._default(setting), level, place, problem)
        return Found(setting, value, level, place)


def value_for_script(setting: Setting[T], warn: Callable[[str], None] | None) -> T:
    """What the settings file of the current folder says, else the default.

    Args:
        setting: The setting.
        warn: Told of a problem, which then leaves the default; raised if None.

    Raises:
        UsageError: The settings file cannot be read, or has no value of its kind there.
    """
    try:
        return Settings.of(Path.cwd(), environ={})[setting]
    except (UsageError, OSError) as error:
        if warn is None:
            raise
        warn(f"settings are not used: {error}")
        return Settings(None, environ={})[setting]
