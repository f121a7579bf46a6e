"""Placeholders in commands (``{Model}``, ``{Letter}``, ``{AnyColumn}``), and commands of models.

Placeholders are filled after splitting into words, so that a value with blanks stays one word. A
name in braces must be a column; braces around anything else are left alone, such as JSON,
``{1,2}``, ``{epoch:02d}`` and ``${…}``. ``{{Model}}`` is the text ``{Model}``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from radt.errors import UsageError
from radt.experiment.columns import NEAR_MISS, WRITTEN, Column, did_you_mean
from radt.setting_values import SETTINGS_NAME, SettingsFile, find_settings

#: In the commands of ``[models]``, stands for each word of the row's Params.
PARAMS_PLACEHOLDER = Column.PARAMS
LETTER_PLACEHOLDER = "Letter"
NODE_PLACEHOLDER, NODES_PLACEHOLDER, MASTER_PLACEHOLDER = "Node", Column.NODES, "Master"
#: Known only when the row starts (`radt.runner.multinode.placed`), and unchanged until then.
AT_START = (NODE_PLACEHOLDER, NODES_PLACEHOLDER, MASTER_PLACEHOLDER)
#: Columns that change with every start, and Params, which is being filled itself.
BARRED = WRITTEN | {Column.PARAMS}

_PLACEHOLDER = re.compile(r"\{\{(?P<kept>[^{}]*)\}\}|(?<!\$)\{(?P<name>[^{}]*)\}")
_BRACES = re.compile(r"(?<!\$)\{[^{}]*\}")
#: Replaces spaces within braces during splitting; no argument can contain it.
_SPACE = "\0"
#: A single word in braces must be a column.
_WORD = re.compile(r"[^\W\d_]\w*")
#: A possible name of a column; `{"a": 1}` and `{1,2}` are not.
_NAME = re.compile(r"[^\W\d_][\w .()/%-]*")


@dataclass(frozen=True, slots=True)
class Placeholders:
    """The values of a row's placeholders: texts by the names of columns, in any case.

    ``barred`` columns may not be used. ``source`` describes the text being filled if it is not a
    cell of the row itself, for messages.
    """

    values: Mapping[str, str]
    barred: frozenset[Column] = BARRED
    source: str = ""
    _lower: Mapping[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        lower = {name.lower(): value for name, value in self.values.items()}
        object.__setattr__(self, "_lower", lower)

    def fill(self, word: str, params: str | None = None) -> str:
        """Return the word with its placeholders filled.

        Args:
            word: Any text.
            params: The value of ``{Params}``, None if it is not allowed.

        Raises:
            UsageError: The column of a placeholder is missing or empty.
        """

        def filled(match: re.Match[str]) -> str:
            kept = match["kept"]
            if kept is not None and kept.lower() in map(str.lower, AT_START):
                return match[0]
            if kept is not None:
                return f"{{{kept}}}" if self._means_a_column(kept) else match[0]
            name = match["name"]
            if params is not None and name.lower() == PARAMS_PLACEHOLDER.lower():
                return params
            value = self._value(name)
            return match[0] if value is None else value

        return _PLACEHOLDER.sub(filled, word)

    def escaped(self, text: str) -> str:
        """Return the word that `fill` converts to this text."""

        def kept(match: re.Match[str]) -> str:
            return f"{{{match[0]}}}" if self._means_a_column(match[0][1:-1]) else match[0]

        return _BRACES.sub(kept, text)

    def split(self, text: str) -> list[str]:
        """Split a command line as a shell would, without filling placeholders.

        ``{Batch Size}`` stays one word, even without quotes.

        Raises:
            ValueError: A quote is not closed.
        """

        def kept(match: re.Match[str]) -> str:
            name = match["kept"] if match["kept"] is not None else match["name"]
            return match[0].replace(" ", _SPACE) if self._means_a_column(name) else match[0]

        return [word.replace(_SPACE, " ") for word in shlex.split(_PLACEHOLDER.sub(kept, text))]

    def expand(self, words: Sequence[str], params: Sequence[str]) -> list[str]:
        """Return the words of a command from ``[models]`` with placeholders filled.

        A word with ``{Params}`` is repeated for each of the row's parameters; if no word has it,
        the parameters are appended.

        Raises:
            UsageError: See `fill`.
        """
        command: list[str] = []
        used = False
        for word in words:
            if has_params(word):
                used = True
                command += [self.fill(word, params=param) for param in params]
            else:
                command.append(self.fill(word))
        return command if used else [*command, *params]

    def _value(self, name: str) -> str | None:
        """Return the value of a placeholder; None if it is not one."""
        where = f" in {self.source}" if self.source else ""
        literal = f"Write {{{{{name}}}}} for the text {{{name}}}"
        column = Column.named(name) if name == name.strip() else None
        if column is not None and column in self.barred:
            raise UsageError(f"{{{name}}}{where} cannot be filled in", literal)
        value = self._lower.get(name.lower())
        if value:
            return value
        if value is not None:
            raise UsageError(
                f"{{{name}}}{where} is empty in this row", f"Fill the row's {name} cell"
            )
        if column is not None:
            raise UsageError(f"{{{name}}}{where}: there is no such column", f"Add it. {literal}")
        if hint := self._near(name):
            raise UsageError(f"{{{name}}}{where} is not a column", f"{hint} {literal}")
        if _WORD.fullmatch(name):
            raise UsageError(f"{{{name}}}{where} is not a column", f"Add the column. {literal}")
        return None

    def _near(self, name: str) -> str:
        if _NAME.fullmatch(name) is None:
            return ""
        return did_you_mean(name, [*self.values, *Column], cutoff=NEAR_MISS)

    def _means_a_column(self, name: str) -> bool:
        return (
            name.lower() in self._lower
            or Column.named(name) is not None
            or _WORD.fullmatch(name) is not None
            or bool(self._near(name))
        )


def has_params(word: str) -> bool:
    """Return whether the word is repeated for each parameter."""
    return any(
        match["name"] is not None and match["name"].lower() == PARAMS_PLACEHOLDER.lower()
        for match in _PLACEHOLDER.finditer(word)
    )


MODELS_TABLE = "models"
ENVIRONMENTS_TABLE = "environments"


@dataclass(frozen=True, slots=True)
class ModelCommand:
    """The command of a model: ``program`` is like a File cell, ``arguments`` follow.

    Placeholders are not filled. ``source`` is where it is defined, for messages.
    """

    program: str
    arguments: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Mappings:
    """The two tables of the nearest settings file; ``file`` is None if there is none."""

    file: SettingsFile | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Mappings:
        """Return the tables that apply to experiments in this folder.

        Raises:
            UsageError: The file cannot be read, or a table is invalid.
        """
        file = find_settings(folder)
        if file is None:
            return cls()
        return cls(file, _texts(file, MODELS_TABLE), _texts(file, ENVIRONMENTS_TABLE))

    @property
    def folder(self) -> Path | None:
        """Return the folder that relative paths of the settings file refer to."""
        return None if self.file is None else self.file.path.parent

    def command(self, model: str, split: Callable[[str], list[str]] = shlex.split) -> ModelCommand:
        """Return the command for a model: by its exact name, else by the first matching pattern.

        Args:
            model: The row's Model.
            split: Splits a command line into words.

        Raises:
            UsageError: There is no command, or it is invalid.
        """
        key = model if model in self.models else None
        if key is None:
            key = next((pattern for pattern in self.models if fnmatchcase(model, pattern)), None)
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
                f"no script is known for the model {model!r}",
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
    """Return a model's name that TOML read as nested tables: ``timm.resnet26`` without quotes."""
    while table:
        inner, value = next(iter(table.items()))
        key = f"{key}.{inner}"
        table = value if isinstance(value, dict) else {}
    return key
