"""Options behind a listener's name (``top:cores``): whether it takes them."""

from __future__ import annotations

from collections.abc import Iterable

from radt.errors import UsageError
from radt.listeners.api import Source, options_of


def check_options(kind: type[Source], texts: Iterable[str]) -> None:
    """Look at all options that a user gave a listener or profiler.

    Raises:
        UsageError: It has no such option, or the value makes no sense.
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
    right = f"Write {kind.name}:{forms[word]}"
    if ("=" in forms[word]) != (value is not None):
        lack = "needs a value" if value is None else "takes no value"
        raise UsageError(f"option {word!r} of {kind.name} {lack}", right)
    try:
        kind.check_option(word, value)
    except ValueError as error:
        raise UsageError(f"{word}={value} of {kind.name}: {error}", right) from error
