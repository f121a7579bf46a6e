"""Finds the installed listeners, built-in ones and plug-ins, and checks their options."""

from __future__ import annotations

import functools
import importlib
import inspect
import site
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from radt.errors import UsageError, described
from radt.listeners.api import Listener, Metric, Profiler, Registry, Source, options_of


def check_options(kind: type[Source], texts: Iterable[str]) -> None:
    """Check the options that a user gave a listener or profiler.

    Raises:
        UsageError: It has no such option, or the value is invalid.
    """
    for word, value in options_of(texts).items():
        _check(kind, word, value)


def _check(kind: type[Source], word: str, value: str | None) -> None:
    forms = {form.partition("=")[0]: form for form in kind.accepts}
    if word not in forms:
        known = ", ".join(f"{kind.name}:{form}" for form in kind.accepts)
        raise UsageError(
            f"listener {kind.name} has no option {word!r}",
            f"It takes {known}" if known else f"Write {kind.name} alone",
        )
    remedy = f"Write {kind.name}:{forms[word]}"
    if ("=" in forms[word]) != (value is not None):
        problem = "needs a value" if value is None else "takes no value"
        raise UsageError(f"option {word!r} of {kind.name} {problem}", remedy)
    try:
        kind.check_option(word, value)
    except ValueError as error:
        raise UsageError(f"{word}={value} of {kind.name}: {error}", remedy) from error


#: Distributions add listeners by an entry point in this group for a `Listener` or `Profiler` class.
GROUP = "radt.listeners"
_OWN_PACKAGE = "radt.listeners."
#: Names in the original radT that have changed.
ALIASES = {"dcgmi": "dcgm"}


@functools.cache
def load() -> Registry:
    """Load the installed listeners; those that fail are listed with the reason instead."""
    sources: dict[str, type[Source]] = {}
    broken: dict[str, str] = {}
    # Built-in ones first, so that no plug-in can take the name of one and change what is recorded.
    for point in sorted(entry_points(group=GROUP), key=_built_in_first):
        try:
            source = _load(point)
        except Exception as error:  # noqa: BLE001 - third-party code may raise anything
            broken[point.name] = f"{point.value}: {described(error)}"
            continue
        if sources.setdefault(source.name, source) is not source:
            broken[point.value] = f"the name {source.name!r} is taken already"
    return Registry(
        {name: kind for name, kind in sources.items() if issubclass(kind, Listener)},
        {name: kind for name, kind in sources.items() if issubclass(kind, Profiler)},
        broken,
    )


def reload() -> Registry:
    """Load the listeners again, including those installed since this process began.

    Listeners that are already loaded do not change.
    """
    for folder in site.getsitepackages():
        if folder in sys.path:
            site.addsitedir(folder)  # packages that are installed as links have .pth files
    importlib.invalidate_caches()
    load.cache_clear()
    return load()


def _built_in_first(point: EntryPoint) -> tuple[bool, str, str]:
    return not point.value.startswith(_OWN_PACKAGE), point.name, point.value


def _load(point: EntryPoint) -> type[Source]:
    source = point.load()
    if not (isinstance(source, type) and issubclass(source, Listener | Profiler)):
        raise TypeError("it is a subclass neither of radt.listeners.api.Listener nor of Profiler")
    if inspect.isabstract(source):
        missing = ", ".join(sorted(source.__abstractmethods__))
        raise TypeError(f"it does not define {missing}")
    if getattr(source, "name", None) != point.name:
        raise ValueError(f"its name is not {point.name!r}, as its entry point says")
    if issubclass(source, Listener) and not source.metrics():
        raise TypeError("it has no metrics")
    if not all(isinstance(metric, Metric) for metric in source.metrics()):
        raise TypeError("metrics() returns values that are not a Metric")
    return source
