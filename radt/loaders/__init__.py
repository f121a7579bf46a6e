"""Data loaders that share, resize and repeat data; they need PyTorch (``radt[torch]``).

Each wraps what a script has and is used in its place; docs/techniques says when each one helps.
"""

from typing import TYPE_CHECKING

from radt.lazy import names_with_torch

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

if not TYPE_CHECKING:  # a type checker would take every name for granted
    __getattr__, __dir__ = names_with_torch(__name__, _MODULES)
