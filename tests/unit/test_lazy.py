"""`radt.loaders` and `radt.training` import PyTorch with the first use of a name."""

from __future__ import annotations

import subprocess
import sys
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
