"""The function that makes a shared loader: described in one process, called in another."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from radt.errors import LoaderError

#: Maximum size of arguments, which are sent in one message.
_MOST_ARGUMENTS = 40_000
#: Names of the main script; the second one is used in processes spawned by multiprocessing.
_STARTED = ("__main__", "__mp_main__")
_REMEDY = (
    "Define it at the top level of a file or module, as `def make_loader():`, and pass its options "
    "as arguments={…}"
)


@dataclass(frozen=True, slots=True)
class Factory:
    """The location of a function, and its arguments.

    Args:
        file: The file that defines it.
        function: Its name in the file's module.
        arguments: JSON values by name.
        code: Digest of the file.
        module: Name to import it by; empty for the main script.
        path: ``sys.path`` to import it with.
    """

    file: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    module: str = ""
    path: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, function: Callable[..., Iterable[Any]], arguments: Mapping[str, Any] | None
    ) -> Factory:
        """Describe a function of this process.

        Raises:
            LoaderError: Another process cannot find it, or the arguments are not JSON values.
        """
        name = getattr(function, "__qualname__", "")
        module = sys.modules.get(getattr(function, "__module__", None) or "")
        if not name or module is None or "<" in name:
            raise LoaderError(
                f"another process cannot find the loader's factory {name or function!r}", _REMEDY
            )
        file = getattr(module, "__file__", None)
        if file is None:
            raise LoaderError(
                f"the loader's factory {name} is not in a file that another process can import",
                _REMEDY,
            )
        try:
            plain = json.loads(json.dumps(dict(arguments or {}), sort_keys=True))
        except (TypeError, ValueError) as error:
            raise LoaderError(
                f"the arguments of the loader's factory {name} are not JSON values: {error}",
                "Pass strings, numbers, booleans, None, lists and dicts",
            ) from error
        if len(json.dumps(plain)) > _MOST_ARGUMENTS:
            raise LoaderError(
                f"the arguments of the loader's factory {name} have more than {_MOST_ARGUMENTS:,} "
                "characters",
                "Write them to a file, and pass its path",
            )
        known_as = module.__name__
        if known_as in _STARTED:
            known_as = module.__spec__.name if module.__spec__ else ""
        return cls._in_file(file, name, plain, known_as)

    @classmethod
    def named(cls, text: str, arguments: Mapping[str, Any]) -> Factory:
        """Describe a function given as ``FILE.py:function`` or ``package.module:function``.

        Raises:
            LoaderError: There is no such file or module.
        """
        place, colon, function = text.rpartition(":")
        if not colon or not place or not function:
            raise LoaderError(
                f"expected FILE.py:function or module:function, found {text!r}",
                "Name the function that makes the loader, such as train.py:make_loader",
            )
        if place.endswith(".py"):
            file, module = place, ""
        else:
            try:
                spec = importlib.util.find_spec(place)
            except ModuleNotFoundError:
                spec = None
            if spec is None or spec.origin is None:
                raise LoaderError(f"there is no module {place!r}", "Set PYTHONPATH to its folder")
            file, module = spec.origin, place
        if not Path(file).is_file():
            raise LoaderError(f"there is no file {file}", "Name the script that has the factory")
        return cls._in_file(file, function, dict(arguments), module)

    @classmethod
    def _in_file(
        cls, file: str, function: str, arguments: Mapping[str, Any], module: str
    ) -> Factory:
        code = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        path = tuple(str(Path(entry).absolute()) for entry in sys.path)
        return cls(os.path.realpath(file), function, arguments, code, module, path)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in sorted(self.arguments.items()))
        return f"{self.function}({options}) of {self.file}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Factory:
        return cls(**{**values, "path": tuple(values["path"])})

    def same_as(self, other: Factory) -> bool:
        """Return True if both make the same loader: by file, function, arguments and code."""
        return (self.file, self.function, self.arguments, self.code) == (
            *(other.file, other.function, other.arguments, other.code),
        )

    def refusal(self, name: str, other: Factory, user: str) -> LoaderError:
        """Return the error of a script or service that wants another loader of the same name."""
        served = f"the shared loader {name!r} is served by {other}"
        if (self.file, self.function, self.arguments) == (
            *(other.file, other.function, other.arguments),
        ):
            return LoaderError(
                f"{served}, whose file has changed since",
                "Wait until its other consumers have ended, or choose another name",
            )
        return LoaderError(
            f"{served}, and this {user} wants {self}",
            "Give them different names, or the same factory with the same arguments",
        )

    def __call__(self) -> Iterable[Any]:
        """Import the function and call it. Its exceptions are raised unchanged.

        Raises:
            LoaderError: There is no such function, or its result is not iterable.
        """
        sys.path[:] = self.path
        module = importlib.import_module(self.module) if self.module else _script(Path(self.file))
        function: Any = module
        for part in self.function.split("."):
            function = getattr(function, part, None)
        if not callable(function):
            raise LoaderError(f"there is no function {self.function} in {self.file}", _REMEDY)
        loader = function(**self.arguments)
        if not isinstance(loader, Iterable):
            raise LoaderError(
                f"{self} returned a {type(loader).__name__}, which is not a loader",
                "Return a DataLoader, or another object that gives batches in a for loop",
            )
        return loader


def _script(file: Path) -> ModuleType:
    """Import a script under its own name, so that spawned workers find its classes, too."""
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module
