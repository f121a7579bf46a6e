"""The tables ``[cluster]`` and ``[cluster.NAME]`` of a settings file, and the names for ``--on``.

``[cluster]`` has the settings of every cluster; ``[cluster.NAME]`` those that differ for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from radt.errors import UsageError
from radt.experiment.columns import did_you_mean
from radt.experiment.resources import parse_time
from radt.setting_values import (
    COUNT,
    MEMORY,
    PATH,
    SECONDS,
    SETTINGS_NAME,
    SWITCH,
    TEXT,
    SettingKind,
    SettingsFile,
    choice,
)
from radt.settings import ON, Settings

CLUSTER_TABLE = "cluster"
GPUS_TABLE = "gpus"
SLURM = "slurm"
#: The value of ``--on`` for this machine, also its default.
LOCAL = "local"
_GRES = re.compile(r"(?:gpu:)?([A-Za-z][\w.+-]*)", re.ASCII)
_NAME = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
_PARTITION = re.compile(r"\w[\w.,-]*", re.ASCII)


class RecordMode(StrEnum):
    """The way records of nodes get to the submit host's stores."""

    FOLDER = "folder"  # through the shared folder
    DIRECT = "direct"  # nodes upload to Postgres and MLflow themselves


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """A key of ``[cluster]``: the field that it sets, the format of its value, and its meaning.

    With ``is_list``, the value is a list of values in this format.
    """

    kind: SettingKind[Any]
    help: str
    default_text: str = "the cluster's default"
    is_list: bool = False
    field: str = ""


def _key(default: Any, *described: Any) -> Any:
    return field(default=default, metadata={"key": ClusterKey(*described)})


_TIME = SettingKind(lambda text, _folder: parse_time(text), "TIME", (int, float))
_RECORDING = choice(*RecordMode)
_RECORD = replace(_RECORDING, parse=lambda text, folder: RecordMode(_RECORDING.parse(text, folder)))


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The settings of one cluster; ``None`` and "" leave it to the cluster.

    Args:
        name: Its name for ``--on``: ``slurm``, or NAME of ``[cluster.NAME]``.
        source: Where the settings come from, for messages.
        gpus: The gres type (``a100_3g.20gb``) of each MIG profile.
    """

    name: str = SLURM
    source: str = f"[{CLUSTER_TABLE}] of {SETTINGS_NAME}"
    folder: Path | None = _key(  # noqa: RUF009 - a field
        *(None, PATH),
        "Folder that the login node and all nodes see under this path; submissions lie in it.",
        "the data folder",
    )
    partition: str = _key("", TEXT, "Partition of rows without one.")
    account: str = _key("", TEXT, "Account that jobs are charged to.")
    qos: str = _key("", TEXT, "Quality of service of jobs.")
    constraint: str = _key("", TEXT, "Features that nodes must have, as for sbatch.")
    time_s: float | None = _key(
        *(None, _TIME), "Time limit of one repeat of a workload without Time and Timeout."
    )
    memory_bytes: int | None = _key(
        *(None, MEMORY), "Memory of a job whose rows say nothing: 64GB."
    )
    exclusive: bool = _key(
        *(False, SWITCH), "Keep other jobs off the nodes, where rows say nothing.", "false"
    )
    bundle_s: float = _key(
        *(0.0, SECONDS),
        "Workloads that together take at most this long share a job, by Time or Timeout.",
        "a job each",
    )
    same_node: bool = _key(False, SWITCH, "Run all workloads of a file on one node.", "false")
    max_jobs: int | None = _key(
        *(None, COUNT), "Jobs of a submission in the queue at a time.", "no limit"
    )
    setup: tuple[str, ...] = _key(
        *((), TEXT), "Lines for bash that come before radt on the node.", "none", True
    )
    sbatch: tuple[str, ...] = _key(
        *((), TEXT), "Further options, passed to sbatch unchanged.", "none", True
    )
    record: RecordMode = _key(  # noqa: RUF009 - a field
        *(RecordMode.FOLDER, _RECORD),
        "folder: what nodes measure comes through the shared folder; direct: nodes upload it to "
        "MLflow and Postgres themselves.",
        "folder",
    )
    gpus: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> tuple[str, ...]:
        """Return the options that every sbatch of this cluster gets besides a shape."""
        named = {"account": self.account, "qos": self.qos, "constraint": self.constraint}
        return (*(f"--{key}={value}" for key, value in named.items() if value), *self.sbatch)

    def submissions(self, home: Path) -> Path:
        """Return the folder of submissions, given the data folder of the submit host."""
        return (home if self.folder is None else self.folder) / "submissions"

    @property
    def gpus_source(self) -> str:
        """Return where `gpus` is set, for messages."""
        return self.source.replace("]", f".{GPUS_TABLE}]", 1)

    @classmethod
    def chosen(cls, values: Settings) -> ClusterSettings | None:
        """Return the settings of the cluster that ``on`` names; None for this machine.

        Raises:
            UsageError: There is no such cluster, or a setting is not valid.
        """
        return cls.named(values[ON], values.file)

    @classmethod
    def named(cls, on: str, file: SettingsFile | None) -> ClusterSettings | None:
        """Return the settings of a cluster; None for this machine.

        Args:
            on: ``slurm``, ``slurm:PARTITION``, NAME or NAME:PARTITION; ``local`` or empty.
            file: The settings file, if there is one.

        Raises:
            UsageError: There is no such cluster, or a setting is not valid.
        """
        name, colon, partition = (part.strip() for part in on.partition(":"))
        if name in ("", LOCAL) and not colon:
            return None
        if colon and _PARTITION.fullmatch(partition) is None:
            raise UsageError(f"--on {on}: {partition!r} is not a partition", "Write slurm:gpu")
        tables = {} if file is None else _tables(file)
        if name != SLURM and name not in tables:
            raise _unknown_cluster(name, tables, file)
        settings = cls(name=name)
        if file is not None and CLUSTER_TABLE in file.table:
            settings = _with(settings, file, (CLUSTER_TABLE,), file.table[CLUSTER_TABLE])
        if file is not None and name in tables:
            settings = _with(settings, file, (CLUSTER_TABLE, name), tables[name])
        return replace(settings, partition=partition) if partition else settings


def all_clusters(file: SettingsFile | None) -> Iterable[ClusterSettings]:
    """Return the settings of every cluster that ``--on`` may name.

    Raises:
        UsageError: A setting is not valid.
    """
    found = (ClusterSettings.named(name, file) for name in _names(file))
    return [cluster for cluster in found if cluster is not None]


def cluster_problems(file: SettingsFile | None) -> Iterable[UsageError]:
    """Return the problems of a settings file's clusters: one for each."""
    found: dict[str, UsageError] = {}
    try:
        names = _names(file)
    except UsageError as error:
        names, found = [], {str(error): error}
    for name in names:
        try:
            ClusterSettings.named(name, file)
        except UsageError as error:  # one of [cluster] itself concerns every cluster
            found.setdefault(str(error), error)
    return list(found.values())


def _names(file: SettingsFile | None) -> list[str]:
    return list(dict.fromkeys((SLURM, *(() if file is None else _tables(file)))))


def _source(file: SettingsFile, *names: str) -> str:
    return f"{file.key(*names)} of {file.path}"


def _unknown_cluster(name: str, tables: Mapping[str, Any], file: SettingsFile | None) -> UsageError:
    known = [*dict.fromkeys((SLURM, *tables)), LOCAL]
    where = SETTINGS_NAME if file is None else str(file.path)
    return UsageError(
        f"--on {name}: expected {', '.join(known[:-1])} or {LOCAL}, got {name!r}",
        did_you_mean(name, known) or f"Add [{CLUSTER_TABLE}.{name}] to {where}",
    )


def _tables(file: SettingsFile) -> Mapping[str, Any]:
    """Return the tables of individual clusters by name."""
    table = _table(file, (CLUSTER_TABLE,), file.table.get(CLUSTER_TABLE, {}))
    return {
        name: value
        for name, value in table.items()
        if isinstance(value, dict) and name != GPUS_TABLE
    }


def _table(file: SettingsFile, names: tuple[str, ...], value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(
            f"{_source(file, *names)} is not a table",
            f"Write {file.key(*names)} on a line of its own",
        )
    return value


#: The keys of ``[cluster]`` and ``[cluster.NAME]``, besides the table `GPUS_TABLE`. Values in the
#: file have units: the key of ``time_s`` is ``time``.
CLUSTER_KEYS: Mapping[str, ClusterKey] = {
    re.sub(r"_(s|bytes)$", "", name).replace("_", "-"): replace(key, field=name)
    for name, key in ((item.name, item.metadata.get("key")) for item in fields(ClusterSettings))
    if key is not None
}
#: Options of sbatch that radt sets itself, and what to use instead.
_OWN_OPTIONS = {
    **{f"--{key}": key for key in ("partition", "account", "qos", "constraint", "time")},
    **dict.fromkeys(("--mem", "--mem-per-cpu", "--mem-per-gpu"), "memory"),
    "--exclusive": "exclusive",
    "-p": "partition",
    "-A": "account",
    "-q": "qos",
    "-C": "constraint",
    "-t": "time",
    **dict.fromkeys(("--nodes", "-N"), "the column Nodes"),
    **dict.fromkeys(("--cpus-per-task", "-c"), "the column Cpus"),
    **dict.fromkeys(("--gres", "--gpus", "-G", "--gpus-per-node"), "the column Gpus"),
    **dict.fromkeys(("--array", "-a", "--ntasks", "-n", "--ntasks-per-node"), ""),
    **dict.fromkeys(("--job-name", "-J", "--comment", "--output", "-o", "--error", "-e"), ""),
    **dict.fromkeys(("--signal", "--parsable", "--test-only", "--wrap", "--wait", "-W"), ""),
}


def _with(
    settings: ClusterSettings, file: SettingsFile, names: tuple[str, ...], table: object
) -> ClusterSettings:
    """Return the settings, updated from a table."""
    values: dict[str, Any] = {"source": _source(file, *names)}
    is_whole = len(names) == 1
    for key, value in _table(file, names, table).items():
        if key == GPUS_TABLE:
            values["gpus"] = {**settings.gpus, **_gpus(file, (*names, key), value)}
        elif key in CLUSTER_KEYS:
            values[CLUSTER_KEYS[key].field] = _value(file, names, key, value)
        elif not (is_whole and isinstance(value, dict)):
            raise _unknown_key(file, names, key, value)
        elif _NAME.fullmatch(key) is None or key == LOCAL:
            raise UsageError(
                f"{_source(file, *names, key)}: {key!r} is not a name for a cluster",
                "Write letters and digits, and not local",
            )
    return replace(settings, **values)


def _unknown_key(file: SettingsFile, names: tuple[str, ...], key: str, value: object) -> UsageError:
    known = [GPUS_TABLE] if isinstance(value, dict) else [*CLUSTER_KEYS, GPUS_TABLE]
    return UsageError(
        f"{_source(file, *names)}: unknown setting {key!r}",
        did_you_mean(key.replace("_", "-"), known) or f"Choose from {', '.join(known)}",
    )


def _value(file: SettingsFile, names: tuple[str, ...], key: str, value: object) -> Any:
    entry = CLUSTER_KEYS[key]
    place = f"{_source(file, *names)}: {key}"
    folder = file.path.parent
    if not entry.is_list:
        return _parsed(entry, value, place, folder)
    if not isinstance(value, list):
        raise UsageError(
            f"{place}: expected a list, got {value!r}", f'Write {key} = ["…"], one line each'
        )
    lines = tuple(_parsed(entry, line, place, folder) for line in value)
    if key == "sbatch":
        for option in lines:
            _check_option(option, place)
    return lines


def _parsed(key: ClusterKey, value: object, place: str, folder: Path) -> Any:
    parsed = key.kind.read(value, folder, place, key.help)
    if parsed in ("", None):
        raise UsageError(f"{place} is empty", "Fill it in, or remove the line")
    return parsed


def _check_option(option: str, place: str) -> None:
    """Check that it is an option of sbatch, and not one that radt sets."""
    if not option.startswith("-"):
        raise UsageError(
            f"{place}: {option!r} is not an option of sbatch",
            'Write such as "--reservation=thesis"',
        )
    name = re.split(r"[=\s]", option, maxsplit=1)[0]
    if name in _OWN_OPTIONS:
        instead = _OWN_OPTIONS[name]
        raise UsageError(
            f"{place}: {name} is radt's to give",
            f"Use {instead}" if instead else "Remove it",
        )


def _gpus(file: SettingsFile, names: tuple[str, ...], table: object) -> dict[str, str]:
    """Return the gres types by MIG profile, in lower case and without ``gpu:``."""
    where = _source(file, *names)
    types: dict[str, str] = {}
    for profile, gres in _table(file, names, table).items():
        match = _GRES.fullmatch(gres) if isinstance(gres, str) else None
        if match is None:
            raise UsageError(
                f"{where}: {profile}: {gres!r} is not a type of GPU",
                f'Write "{profile}" = "gpu:TYPE"; sinfo -o %G shows the types',
            )
        types[profile.lower()] = match[1]
    return types
