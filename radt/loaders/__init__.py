"""Data loaders that share, resize and repeat data; they need PyTorch (``radt[torch]``).

Each wraps what a script has and is used in its place; docs/techniques says when each one helps.
"""

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

from radt.errors import MissingPackageError

if TYPE_CHECKING:
    from radt.loaders.echo.loader import EchoLoader
    from radt.loaders.echo.plateau import Plateau
    from radt.loaders.progressive.loader import ProgressiveLoader
    from radt.loaders.progressive.rescale import BatchScaledLR
    from radt.loaders.protocol import Loader
    from radt.loaders.shared.client import SharedLoader

__all__ = [
    "BatchScaledLR",
    "EchoLoader",
    "Loader",
    "Plateau",
    "ProgressiveLoader",
    "SharedLoader",
]

#: The module of each name; torch is imported with its first use.
_MODULES = {
    "BatchScaledLR": "radt.loaders.progressive.rescale",
    "EchoLoader": "radt.loaders.echo.loader",
    "Loader": "radt.loaders.protocol",
    "Plateau": "radt.loaders.echo.plateau",
    "ProgressiveLoader": "radt.loaders.progressive.loader",
    "SharedLoader": "radt.loaders.shared.client",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if find_spec("torch") is None:
            raise MissingPackageError(
                "radt.loaders needs PyTorch, which is not installed",
                "pip install 'radt[torch]'",
            )
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
