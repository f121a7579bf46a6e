"""The reference of the Python API, from signatures and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import radt
from docs.generator import docstrings, markdown
from radt import integrations
from radt.listeners import api as listener_api
from radt.runner.options import StartOptions

#: In the order of a reader; the rest of ``radt.__all__`` follows.
_FIRST = (
    "Run",
    "load",
    "run_experiment",
    "active_run",
    "log_metric",
    "log_metrics",
    "shutdown",
)
_COMMENTED = re.compile(r"((?:^ *#:.*\n)+)^ *(\w+): *([^\n=]+)", re.MULTILINE)


def api_reference() -> str:
    """Everything in ``radt.__all__``, and the options of `radt.run_experiment`."""
    names = [name for name in radt.__all__ if not name.startswith("__")]
    names.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    parts: list[str] = []
    for name in names:
        found = getattr(radt, name)
        if not isinstance(found, ModuleType):
            described = found if callable(found) else type(found)  # `radt.config` is an object
            parts.extend(_object(described, f"radt.{name}", 2))
    parts.extend(_object(StartOptions, "radt.runner.options.StartOptions", 2))
    parts.extend(_integrations())
    return "\n\n".join(parts)


def _integrations() -> Iterator[str]:
    """Classes of `radt.integrations`, from their source: their libraries may not be installed.

    Their methods are hooks, which the libraries describe.
    """
    for path in sorted(Path(integrations.__path__[0]).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if not isinstance(node, ast.ClassDef) or node.name not in _all_of(tree):
                continue
            name = f"radt.integrations.{path.stem}.{node.name}"
            arguments = next(
                (
                    ast.unparse(ast.arguments(**(vars(one.args) | {"args": one.args.args[1:]})))
                    for one in node.body
                    if isinstance(one, ast.FunctionDef) and one.name == "__init__"
                ),
                "…",
            )
            yield markdown.heading(2, name, name)
            yield markdown.fenced(f"class {node.name}({arguments})", "python")
            yield docstrings.as_markdown(ast.get_docstring(node) or "")


def _all_of(module: ast.Module) -> list[str]:
    """Return a module's ``__all__``."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def listener_api_reference() -> str:
    """What a listener or profiler of one's own is made of."""
    names = [
        *("Listener", "Profiler", "Source", "Metric", "Target", "Reading", "Occurrence"),
        *("Availability", "ProfiledRun"),
    ]
    return "\n\n".join(
        part for name in names for part in _object(getattr(listener_api, name), name, 2)
    )


def _object(found: Any, name: str, level: int) -> Iterator[str]:
    yield markdown.heading(level, name, name)
    yield markdown.fenced(_signature(found, name), "python")
    yield docstrings.as_markdown(found.__doc__ or "")
    if inspect.isclass(found):
        yield from _fields(found)
        yield from _members(found, name, level + 1)


def _fields(found: type) -> Iterator[str]:
    """Attributes of a dataclass that its docstring has no table of, with their defaults."""
    if not dataclasses.is_dataclass(found):
        return
    rows = [
        (
            markdown.code(one.name),
            markdown.code(str(one.type)),
            "" if one.default is dataclasses.MISSING else markdown.code(_value(one.default)),
        )
        for one in dataclasses.fields(found)
        if not one.name.startswith("_")
    ]
    yield markdown.table(("field", "type", "default"), rows)


def _members(found: type, name: str, level: int) -> Iterator[str]:
    # `radt.Run` consists of several classes, of which it alone is public.
    for kind in found.__mro__:
        if kind is not found and not kind.__module__.startswith("radt.run."):
            continue
        for attribute, annotation, comment in _commented(kind):
            yield markdown.heading(level, f"{name}.{attribute}", f"{name}.{attribute}")
            yield markdown.fenced(f"{attribute}: {annotation}", "python")
            yield docstrings.as_markdown(comment)
        for attribute, member in vars(kind).items():
            if attribute.startswith("_") or not (member := _described(member)).__doc__:
                continue
            yield from _object(member, f"{name}.{attribute}", level)


def _described(member: object) -> Any:
    """A property, or the function behind a method; something without docstring for all else."""
    if isinstance(member, classmethod | staticmethod):
        return member.__func__
    return member if isinstance(member, FunctionType | property) else _NOTHING


class _Nothing:
    __doc__ = None


_NOTHING = _Nothing()


def _commented(found: type) -> Iterable[tuple[str, str, str]]:
    """Attributes that are described by comments (``#:``) before them."""
    for match in _COMMENTED.finditer(inspect.getsource(found)):
        lines = [line.strip().removeprefix("#:") for line in match[1].splitlines()]
        yield match[2], match[3].strip(), textwrap.dedent("\n".join(lines))


def _signature(found: Any, name: str) -> str:
    own = name.rpartition(".")[2]
    if isinstance(found, property):
        returns = inspect.signature(found.fget).return_annotation if found.fget else ""
        return f"{own}: {returns}".replace("'", "")
    if inspect.isclass(found):
        if inspect.isabstract(found) or dataclasses.is_dataclass(found):
            return f"class {own}"
        signature = inspect.signature(found).replace(return_annotation=inspect.Signature.empty)
        return f"class {_call(own, signature)}"
    return f"def {_call(own, inspect.signature(found))}"


def _call(name: str, signature: inspect.Signature) -> str:
    """As written by hand: on one line if it fits, else a line each."""
    given = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    text = str(signature.replace(parameters=given)).replace("'", "")
    if len(name) + len(text) <= 88 or not given:
        return name + text
    one_a_line = []
    keyword_only = False
    for parameter in given:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            one_a_line.append("    *,")
            keyword_only = True
        one_a_line.append(f"    {str(parameter).replace(chr(39), '')},")
    returns = signature.return_annotation
    arrow = "" if returns is signature.empty else f" -> {str(returns).strip(chr(39))}"
    return "\n".join([f"{name}(", *one_a_line, f"){arrow}"])


def _value(default: object) -> str:
    """As a call would write it; members of enums by their text, which is accepted, too."""
    return repr(str(default)) if isinstance(default, str) else repr(default)
