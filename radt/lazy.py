"""Lazy imports for packages: a module is imported on first use of one of its names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from radt.errors import MissingPackageError


def names_with_torch(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package that needs PyTorch.

    Args:
        package: ``__name__`` of the package.
        modules: The module of each name.
    """

    def value_of(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if find_spec("torch") is None:
            raise MissingPackageError(
                f"{package} needs PyTorch, which is not installed", "pip install 'radt[torch]'"
            )
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return value_of, names
