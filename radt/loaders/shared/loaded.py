"""What a server asks a loader of anybody's, beside its batches."""

from __future__ import annotations

from typing import Any


def set_epoch(loader: object, epoch: int) -> None:
    """Tell a loader and its samplers the number of the next epoch, as far as they want to know."""
    for owner in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        if callable(method := getattr(owner, "set_epoch", None)):
            method(epoch)


def sizes(loader: object) -> dict[str, Any]:
    """Return the numbers of batches and samples of the epoch that comes next or is under way."""
    return {"batches": _length(loader), "rows": _rows(loader)}


def _length(loader: object) -> int | None:
    """Return the number of batches of an epoch; None if the loader does not know."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


def _rows(loader: object) -> int | None:
    """Return the number of samples of an epoch of a DataLoader; None if it is not known."""
    batches, sampler = _length(loader), getattr(loader, "sampler", None)
    batch_size = getattr(loader, "batch_size", None)
    if batches is None or batch_size is None:
        return None
    if getattr(loader, "drop_last", False):
        return batches * int(batch_size)
    return _length(sampler)
