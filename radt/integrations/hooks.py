"""What integrations share: guards around their hooks, wrapped methods, and waiting for imports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from radt.errors import MissingPackageError, described
from radt.run.notices import warn_once

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@contextmanager
def needs(package: str, module: str) -> Iterator[None]:
    """Import the package of an integration within this.

    Raises:
        MissingPackageError: It is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"{module} needs the package {package}: {error}", f"Run `pip install {package}`"
        ) from error


def guarded(function: Callable[Parameters, Result]) -> Callable[Parameters, Result | None]:
    """Have a hook say once what goes wrong in it, and return None then: training goes on."""

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a tracker must never end training
            warn_once(f"not all of the training is recorded: {described(error)}. Training goes on")
            return None

    return call


def call_after(owner: type, name: str, action: Callable[..., object]) -> None:
    """Have a method of a class call an action with its own arguments when it has returned, once."""
    original = getattr(owner, name)
    if action in getattr(original, "radt_actions", ()):
        return
    guarded_action = guarded(action)

    @wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        guarded_action(*args, **kwargs)
        return result

    method.__dict__["radt_actions"] = (*getattr(original, "radt_actions", ()), action)
    setattr(owner, name, method)


class _ImportWatch(MetaPathFinder):
    """Calls actions once the modules that they wait for have been imported."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Callable[[], object]]] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        actions = self.actions.pop(fullname, None)  # others find it now, without this one
        if actions is None:
            return None
        spec = find_spec(fullname)
        loader: Any = None if spec is None else spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            self.actions[fullname] = actions
            return None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for action in actions:
                action()

        loader.exec_module = exec_module
        return spec


_watch = _ImportWatch()


def when_imported(module: str, action: Callable[[], object]) -> None:
    """Call an action as soon as a module has been imported; now if it has been."""
    action = guarded(action)
    if module in sys.modules:
        action()
        return
    _watch.actions.setdefault(module, []).append(action)
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)
