"""The reference of errors and the exit codes that they end commands with."""

from __future__ import annotations

from collections.abc import Iterator

from docs.generator import markdown
from radt import errors


def errors_reference() -> str:
    """Every error of radt, with what it means and the exit code of the command that met it."""
    return markdown.table(
        ("error", "is a", "what happened", "exit code"),
        [
            (
                f'<span id="{kind.__name__.lower()}"></span>{markdown.code(kind.__name__)}',
                markdown.code(kind.__base__.__name__ if kind.__base__ else ""),
                markdown.prose((kind.__doc__ or "").partition("\n\n")[0]),
                str(kind.exit_code),
            )
            for kind in _tree(errors.RadtError)
        ],
    )


def _tree(kind: type[errors.RadtError]) -> Iterator[type[errors.RadtError]]:
    yield kind
    for one in kind.__subclasses__():
        if one.__module__ == errors.__name__:
            yield from _tree(one)
