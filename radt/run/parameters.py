"""Read a script's configuration as parameters: text by name.

A configuration is a dictionary, a list of pairs, a data class, a named tuple, a namespace
(argparse), any object or class with attributes, a pydantic model, an attrs class, a configuration
of OmegaConf (Hydra) or ml_collections, or absl's ``FLAGS``. Classes are recognised by their
attributes, so that no library is imported.

- Names of nested values are joined by dots: ``{"opt": {"lr": 0.1}}`` has the parameter ``opt.lr``.
- A list is one parameter, unless an item is nested: then each item is one, ``layers.0.size``.
- Objects without fields have their public attributes and the constants of their class, but not
  properties. A nested object whose class defines its text (``__repr__``) is one parameter.
- A member of an enum is recorded by name; if it is a string or a number, by value.

A warning names what cannot be read, and the script continues.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import MemberDescriptorType, SimpleNamespace
from typing import Any

from radt.errors import RadtError, UsageError, described
from radt.journal.values import checked_name
from radt.run.notices import warn_once

#: Limits for objects that refer to large parts of the program.
_MAX_DEPTH = 20
_MAX_PARAMETERS = 10_000
#: Maximum number of problems of one configuration with a warning each.
_MAX_WARNINGS = 20
#: Types that are never nested. A shortcut for the items of long lists.
_SINGLE = frozenset({bool, bytes, complex, float, int, str, type(None)})

#: Functions that return a container's values, by key.
_Members = dict[Any, Callable[[], object]]


def read_parameters(config: object) -> dict[str, str]:
    """Return the parameters of a configuration as text; none for None. Never raises."""
    reader = _Reader()
    for name, value in reader.first_level(config):
        reader.add(name, value, (config,))
    return reader.texts


def first_level(config: object) -> dict[str, Any]:
    """Return the values of a configuration's first level as they are. Never raises."""
    return dict(_Reader().first_level(config))


@dataclass(slots=True)
class _Reader:
    """The parameters read from a configuration so far, and the number of problems."""

    texts: dict[str, str] = field(default_factory=dict)
    problems: int = 0

    def first_level(self, config: object) -> list[tuple[str, Any]]:
        with self._leaving_out("parameters are"):
            return list(self._values(_whole(config), ""))
        return []

    def add(self, name: str, value: object, within: tuple[object, ...]) -> None:
        """Read a value and, recursively, its members."""
        if len(self.texts) + self.problems >= _MAX_PARAMETERS:
            warn_once(f"only the first {_MAX_PARAMETERS:,} parameters of an object are recorded")
            return
        with self._leaving_out(f"the parameter {name!r:.80} is"):
            members = _nested(value)
            if members is None:
                self._add_text(checked_name(name, "parameter"), str(_plain(value)))
                return
            if any(outer is value for outer in within):
                raise UsageError("it contains itself")
            if len(within) > _MAX_DEPTH:
                raise UsageError(f"it is nested more than {_MAX_DEPTH} levels deep")
            for part, single in self._values(members, f"{name}."):
                self.add(part, single, (*within, value))

    def _add_text(self, name: str, text: str) -> None:
        earlier = self.texts.get(name, text)
        self.texts[name] = text
        if earlier != text:
            self._warn(f"the parameter {name!r:.80} has two values: {text!r:.80} is recorded")

    def _values(self, members: _Members, prefix: str) -> Iterator[tuple[str, Any]]:
        for part, read in members.items():
            name = f"{prefix}{part}"
            with self._leaving_out(f"the parameter {name!r:.80} is"):
                yield name, read()

    @contextmanager
    def _leaving_out(self, subject: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - runs code of the script and its libraries
            text = str(error) if isinstance(error, RadtError) else described(error)
            self._warn(f"{subject} not recorded: {text.splitlines()[0]}")

    def _warn(self, problem: str) -> None:
        self.problems += 1
        if self.problems <= _MAX_WARNINGS:
            warn_once(problem)
        else:
            warn_once("more parameters are not recorded than are named here")


def _whole(config: Any) -> _Members:
    """Return the members of a configuration.

    Raises:
        UsageError: ``config`` is not a configuration.
    """
    if config is None:
        return {}
    members = _declared(config)
    if members is None and not (members := _attributes(config)):
        items = list(config) if isinstance(config, Iterable) else [config]
        if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
            raise UsageError(
                f"expected a dictionary or an object with attributes, got {config!r:.80}"
            )
        members = _declared(dict(items))
    return members or {}


def _nested(value: Any) -> _Members | None:
    """Return the members of a nested value; None if it is one parameter."""
    kind: Any = type(value)
    is_single = kind in _SINGLE or hasattr(kind, "__array__")  # pandas objects have keys, too
    members = None if is_single else _declared(value)
    if members is None and _is_list(value):
        if any(type(item) not in _SINGLE and _nested(item) is not None for item in value):
            return {index: partial(value.__getitem__, index) for index in range(len(value))}
    elif members is None and (kind.__repr__, kind.__str__) == (object.__repr__, object.__str__):
        members = _attributes(value)
    return members or None


def _declared(value: Any) -> _Members | None:
    """Return the members that a value's class declares; None if it declares none."""
    kind: Any = type(value)
    if isinstance(value, Mapping) or (hasattr(kind, "keys") and hasattr(kind, "__getitem__")):
        return {name: partial(value.__getitem__, name) for name in list(value.keys())}
    if hasattr(kind, "flags_by_module_dict"):
        return _flags(value)
    namespace = getattr(sys.modules.get("argparse"), "Namespace", SimpleNamespace)
    if is_dataclass(kind):
        names: Iterable[str] = [each.name for each in fields(kind)]
    elif hasattr(kind, "__attrs_attrs__"):
        names = [each.name for each in kind.__attrs_attrs__]
    elif isinstance(value, tuple) and hasattr(kind, "_fields"):
        names = kind._fields
    elif hasattr(kind, "model_fields") or hasattr(kind, "__fields__"):  # pydantic 2 and 1
        names = getattr(value, "__pydantic_extra__", None) or ()
    elif isinstance(value, SimpleNamespace | namespace):
        names = ()
    else:
        return None
    own = [name for name in getattr(value, "__dict__", ()) if not name.startswith("_")]
    return {name: partial(getattr, value, name) for name in [*own, *names]}


def _flags(flags: Any) -> _Members:
    """Return the flags that the program and its modules define, without absl's own."""
    if not flags.is_parsed():
        raise UsageError("absl has not parsed the flags yet", "Use FLAGS in absl.app.run(main)")
    modules = flags.flags_by_module_dict().items()
    own = [flag for module, some in modules if not module.startswith("absl.") for flag in some]
    return {flag.name: partial(getattr, flag, "value") for flag in own}


def _attributes(value: Any) -> _Members:
    """Return an object's public attributes: slots, class constants, instance attributes."""
    is_class = isinstance(value, type)
    constants = [
        name
        for kind in reversed(value.__mro__ if is_class else type(value).__mro__)
        for name, member in vars(kind).items()
        if not hasattr(type(member), "__get__")
        or (isinstance(member, MemberDescriptorType) and not is_class)
    ]
    names = [*constants, *({} if is_class else getattr(value, "__dict__", {}))]
    return {name: partial(getattr, value, name) for name in names if not name.startswith("_")}


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple | MutableSequence)  # OmegaConf's are the last


def _plain(value: Any) -> object:
    """Return a value whose text people can read, with enums and paths in lists as plain values."""
    if isinstance(value, Enum):
        return value.value if isinstance(value, str | int | float) else value.name
    if isinstance(value, PurePath):
        return str(value)
    if _is_list(value):
        items = [item if type(item) in _SINGLE else _plain(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value
