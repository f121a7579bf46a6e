"""Shared parts of the integrations: guards around hooks, wrapped methods, and import hooks."""

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
Hook = Callable[..., None]


@contextmanager
def needs(package: str, module: str) -> Iterator[None]:
    """Import an integration's package within this context.

    Raises:
        MissingPackageError: The package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"{module} needs the package {package}: {error}", f"Run `pip install {package}`"
        ) from error


def guarded(function: Callable[Parameters, Result]) -> Callable[Parameters, Result | None]:
    """Make a hook report its first failure and return None, so that training goes on."""

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a tracker must never end training
            warn_once(f"not all of the training is recorded: {described(error)}. Training goes on")
            return None

    return call


def in_one_process(is_first: Callable[..., bool]) -> Callable[[Hook], Hook]:
    """Return a decorator that runs a callback's hook, `guarded`, only in the process that logs.

    Args:
        is_first: Returns True in that process, given the arguments of a hook after ``self``.
    """

    def decorate(function: Hook) -> Hook:
        on_first = guarded(function)

        @wraps(function)
        def call(callback: Any, *args: Any, **kwargs: Any) -> None:
            if is_first(*args, **kwargs):
                on_first(callback, *args, **kwargs)

        return call

    return decorate


def call_after(owner: type, name: str, action: Callable[..., object]) -> None:
    """Make a method of a class call an action with the same arguments on return. Once only."""
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
    """Runs actions after the import of the modules that they wait for."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Callable[[], object]]] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        actions = self.actions.pop(fullname, None)  # removed: the search below skips this finder
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
    """Call an action as soon as a module is imported, or now if it already is."""
    action = guarded(action)
    if module in sys.modules:
        action()
        return
    _watch.actions.setdefault(module, []).append(action)
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)
