"""Cheaper imports: on first use, without a package's ``__init__``, without garbage collection."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

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


def skip_init(package: str) -> None:
    """Import another distribution's package without running its ``__init__``.

    Its modules can be imported afterwards, without what the ``__init__`` imports for others. Does
    nothing if the distribution is not installed, or the package is already imported.
    """
    top, *below = package.split(".")
    spec = find_spec(top)
    if spec is not None and package not in sys.modules:
        module = ModuleType(package)
        module.__spec__ = ModuleSpec(package, None, is_package=True)
        folders = spec.submodule_search_locations or ()
        module.__path__ = [str(Path(folder, *below)) for folder in folders]
        sys.modules[package] = module


@contextmanager
def large_import() -> Iterator[None]:
    """Import what a process needs without collecting garbage, now and in later collections.

    Imports create none, and looking for it takes a tenth of their CPU time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
