"""What stands beside experiments in ``radt.toml``: commands of models, names of environments.

::

    [models]
    "timm.resnet26" = "resnet.py --data {Data} --{Params}"
    "timm.*" = "train.py --model {Model} --data {Data} --{Params}"

    [environments]
    pytorch = "conda:pytorch.yaml"
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from radt.errors import UsageError
from radt.experiment.cells import did_you_mean
from radt.settings_file import SETTINGS_NAME, SettingsFile, find_settings

MODELS_TABLE = "models"
ENVIRONMENTS_TABLE = "environments"


@dataclass(frozen=True, slots=True)
class ModelCommand:
    """The command of a model: ``program`` is what a File cell would say, ``arguments`` follow.

    Blanks are not filled. ``source`` is where it stands, for messages.
    """

    program: str
    arguments: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Mappings:
    """The two tables of the nearest settings file; ``file`` is None where there is none."""

    file: SettingsFile | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Mappings:
        """What holds for experiments in this folder.

        Raises:
            UsageError: The file cannot be read, or a table is not what it should be.
        """
        file = find_settings(folder)
        if file is None:
            return cls()
        return cls(file, _texts(file, MODELS_TABLE), _texts(file, ENVIRONMENTS_TABLE))

    @property
    def folder(self) -> Path | None:
        """Where paths in it start."""
        return None if self.file is None else self.file.path.parent

    def command(self, model: str, split: Callable[[str], list[str]] = shlex.split) -> ModelCommand:
        """The command of a model: the entry of its name, else the first pattern that matches.

        Args:
            model: The row's Model.
            split: Makes words of a command line.

        Raises:
            UsageError: There is none, or it is none.
        """
        key = model if model in self.models else None
        if key is None:
            key = next((one for one in self.models if fnmatchcase(model, one)), None)
        if key is None or self.file is None:
            raise self._unmapped(model)
        source = f"{self.file.path.name} {self.file.key(MODELS_TABLE)} {key!r}"
        try:
            words = split(self.models[key])
        except ValueError as error:
            raise UsageError(f"{source}: {str(error).lower()}", "Quote it as in a shell") from error
        if words[:1] == ["-m"] and len(words) > 1:
            words[:2] = [f"-m {words[1]}"]
        if not words:
            raise UsageError(f"{source} is empty", 'Write a command: "train.py --model {Model}"')
        return ModelCommand(words[0], tuple(words[1:]), source)

    def _unmapped(self, model: str) -> UsageError:
        entry = f'"{model}" = "train.py --model {{Model}} {{Params}}"'
        if self.file is None:
            return UsageError(
                f"nothing says which script trains {model!r}",
                f"Fill File, or put [{MODELS_TABLE}] {entry} into {SETTINGS_NAME} beside this file",
            )
        return UsageError(
            f"{self.file.key(MODELS_TABLE)} of {self.file.path} has no command for {model!r}",
            did_you_mean(model, self.models, cutoff=0.8) or f"Add {entry}, or fill File",
        )


def _texts(file: SettingsFile, name: str) -> dict[str, str]:
    table = file.table.get(name, {})
    where = f"{file.key(name)} of {file.path}"
    if not isinstance(table, dict):
        raise UsageError(f"{where} is not a table", f"Write {file.key(name)} on its own line")
    for key, value in table.items():
        if isinstance(value, dict):
            raise UsageError(
                f"{where}: {key} is a table", f'Put the name in quotes: "{_dotted(key, value)}" = …'
            )
        if not isinstance(value, str):
            raise UsageError(f"{where}: {key} is not a text", f'Write "{key}" = "…"')
    return table


def _dotted(key: str, table: Mapping[str, Any]) -> str:
    """The name that TOML took for a path of tables: ``timm.resnet26`` without quotes."""
    while table:
        inner, value = next(iter(table.items()))
        key = f"{key}.{inner}"
        table = value if isinstance(value, dict) else {}
    return key
