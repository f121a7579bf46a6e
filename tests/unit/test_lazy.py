"""Lazy imports: PyTorch with the first use of a name, and modules without their package."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import radt.loaders
import radt.training
from radt import lazy
from radt.errors import MissingPackageError

PACKAGES = pytest.mark.parametrize("package", [radt.loaders, radt.training])


@PACKAGES
def test_each_name_is_there_and_no_other(package: ModuleType) -> None:
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
        assert vars(package)[name] is getattr(package, name)  # found once
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute"):
        _ = package.nothing


@PACKAGES
def test_without_torch_the_error_says_what_to_install(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy, "find_spec", lambda _: None)
    name = package.__all__[0]
    monkeypatch.delitem(vars(package), name, raising=False)
    with pytest.raises(MissingPackageError, match=rf"{package.__name__} needs PyTorch"):
        getattr(package, name)


@PACKAGES
def test_the_package_alone_does_not_import_torch(package: ModuleType) -> None:
    code = f"import sys, {package.__name__}; dir({package.__name__}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_modules_of_a_package_are_imported_without_its_init(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "heavy" / "below"
    below.mkdir(parents=True)
    (tmp_path / "heavy" / "__init__.py").touch()
    (below / "__init__.py").write_text("raise ImportError('not to be run')")
    (below / "light.py").write_text("VALUE = 1")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        lazy.skip_init("heavy.below")
        assert importlib.import_module("heavy.below.light").VALUE == 1
        assert find_spec("heavy.below") is not None
        imported = sys.modules["heavy.below"]
        lazy.skip_init("heavy.below")
        assert sys.modules["heavy.below"] is imported
    finally:
        for name in ("heavy", "heavy.below", "heavy.below.light"):
            sys.modules.pop(name, None)
    lazy.skip_init("missing.package")
    assert "missing.package" not in sys.modules
