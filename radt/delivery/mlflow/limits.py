"""Enforce MLflow's limits: valid names, params and tags, and the size of requests."""

from __future__ import annotations

import hashlib
import logging
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.store.records import RunRecord
from radt.tags import END_REASON, EXIT_CODE, METRIC_PREFIX, STATUS

#: Limits of MLflow's own validation (mlflow/utils/validation.py) and of its database columns.
MAX_KEY_LENGTH = 250
MAX_PARAM_LENGTH = 6000
MAX_TAG_LENGTH = 8000
MAX_RUN_NAME_LENGTH = 250
MAX_EXPERIMENT_NAME_LENGTH = 256
#: Maximum number of points, and of params or tags, in one request: MLflow's own limits.
MAX_POINTS = 1000
MAX_TEXTS = 100

_FORBIDDEN = re.compile(r"[^/\w.\- :]")
_HASH_LENGTH = 8
_UNNAMED = re.compile(r"arg\d+")


def pages(search: Callable[..., Any]) -> Iterator[Any]:
    """Yield all pages of a search by MLflow's client, which returns one page per call.

    Args:
        search: Called with ``page_token``.
    """
    token = None
    while True:
        page = search(page_token=token)
        yield page
        if not (token := page.token):
            return


def mlflow_key(name: str) -> str:
    """Return the closest valid MLflow name of a metric, param or tag.

    MLflow allows letters and digits of any script, ``_ - . : /`` and spaces, and names must not
    change when read as a path.

    >>> mlflow_key("top-1 (val) %"), mlflow_key("/a//b/../c"), mlflow_key("")
    ('top-1 _val_ _', 'a/b/__/c', '_')
    """
    parts = [
        "_" * len(part) if part in (".", "..") else part
        for part in _FORBIDDEN.sub("_", name).split("/")
        if part
    ]
    key = "/".join(parts) or "_"
    if key.startswith(".."):
        key = f"_{key}"
    return shortened(key, MAX_KEY_LENGTH)


def unique_keys(names: Iterable[str]) -> dict[str, str]:
    """Return the MLflow key of each name; later names with the same key get a number.

    The result depends only on the order, and earlier names keep their keys as names are added, so
    that a later process computes the same keys.

    >>> unique_keys(["loss", "a?", "a!", "loss"])
    {'loss': 'loss', 'a?': 'a_', 'a!': 'a_-2'}
    """
    keys: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        if name in keys:
            continue
        key = plain = mlflow_key(name)
        number = 1
        while key in taken:
            number += 1
            suffix = f"-{number}"
            key = plain[: MAX_KEY_LENGTH - len(suffix)] + suffix
        keys[name] = key
        taken.add(key)
    return keys


def clean_text(text: str) -> str:
    """Remove characters that databases refuse: NUL and lone surrogates (undecodable bytes)."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def cut(text: str, limit: int) -> str:
    """Return at most ``limit`` characters, with an ellipsis if the text was cut.

    >>> cut("abcdef", 4), cut("abcd", 4)
    ('abc…', 'abcd')
    """
    text = clean_text(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shortened(name: str, limit: int) -> str:
    """Return at most ``limit`` characters; different long names stay different."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:_HASH_LENGTH]
    return f"{name[: limit - _HASH_LENGTH - 1]}-{digest}"


def one_line(text: str) -> str:
    """Replace line breaks and other control characters by spaces, for tables."""
    return " ".join(clean_text(text).split())


def workload_name(label: str) -> str:
    """Return the name of a workload's parent run."""
    return cut(one_line(f"workload {label}"), MAX_RUN_NAME_LENGTH)


def run_name(workload: str, letter: str, name: str) -> str:
    """Return ``(workload letter) name``, or just the name for a run without a workload.

    >>> run_name("2", "a", "resnet"), run_name("", "a", "resnet")
    ('(2 a) resnet', 'resnet')
    """
    text = f"({workload} {letter}) {name}" if workload else name
    return cut(one_line(text), MAX_RUN_NAME_LENGTH) or "run"


def experiment_name(name: str) -> str:
    """Return a valid MLflow name for an experiment; ``Default`` if nothing printable is left."""
    return shortened(one_line(name), MAX_EXPERIMENT_NAME_LENGTH) or "Default"


def deliverable_params(params: Mapping[str, str], *, ended: bool) -> dict[str, str]:
    """Return the parameters to send now.

    Parameters from the command line (``--lr 1e-3``) wait until the run has ended: MLflow never
    changes a parameter, so a script's own ``mlflow.log_params(vars(args))`` would fail on ``0.001``
    if radt had already sent ``1e-3``. The script's own value wins. Until then, only the parameter
    ``Params`` has them all.
    """
    keys = unique_keys(params)
    waiting = frozenset[str]() if ended else command_line_names(params.get("Params", ""))
    return {
        keys[name]: cut(value, MAX_PARAM_LENGTH)
        for name, value in params.items()
        if ended or not (name in waiting or _UNNAMED.fullmatch(name))
    }


def command_line_names(text: str) -> frozenset[str]:
    """Return the option names in a command line: ``--lr 1 size=3`` has ``lr`` and ``size``."""
    try:
        words = shlex.split(text)
    except ValueError:  # unbalanced quotes, which do not affect the names
        words = text.split()
    return frozenset(word.lstrip("-").partition("=")[0] for word in words)


def deliverable_tags(
    run: RunRecord, tags: Mapping[str, str], keys: Mapping[str, str]
) -> dict[str, str]:
    """Return the run's tags, its outcome, and the names of series whose MLflow key differs."""
    tag_keys = unique_keys(tags)
    texts = {tag_keys[name]: value for name, value in tags.items()}
    for name, key in keys.items():
        if key != name:
            texts[shortened(f"{METRIC_PREFIX}{key}", MAX_KEY_LENGTH)] = name
    if run.status.ended:
        texts[STATUS] = run.status.value  # MLflow has fewer statuses
        if run.end_reason:
            texts[END_REASON] = run.end_reason
        if run.exit_code is not None:
            texts[EXIT_CODE] = str(run.exit_code)
    return {key: cut(value, MAX_TAG_LENGTH) for key, value in texts.items()}


log = logging.getLogger(__name__)

#: Descriptions of items that MLflow did not accept, in order and without duplicates.
Notes = dict[str, None]

_Item = TypeVar("_Item")

#: No server has a lower limit: one that refuses so little for its size is misconfigured.
_SMALL_BYTES = 1000


class BatchSender:
    """Sends items in requests as large as the server accepts. Thread-safe.

    A request has at most ``most`` items, MLflow's own limit. That number is halved permanently
    after a request that was refused for its size, and temporarily after the second one in a row
    that timed out or broke off: the first one may just have used a connection that the server had
    closed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ceiling = most
        self._slow_requests = 0
        self.limit = most

    def send(
        self, items: Sequence[_Item], send: Callable[[Sequence[_Item]], None], notes: Notes
    ) -> None:
        """Send all items that MLflow accepts; `notes` collects the others.

        Raises:
            DeliveryError: MLflow failed.
        """
        while items:
            part, items = items[: self.limit], items[self.limit :]
            self._send(part, send, notes)

    def _send(
        self, items: Sequence[_Item], send: Callable[[Sequence[_Item]], None], notes: Notes
    ) -> None:
        try:
            send(items)
        except DeliveryError as error:
            self._learn(error, len(items))
            if error.kind is not ErrorKind.REFUSED:
                raise
            if len(items) == 1:
                self._leave_out(items[0], error, notes)
                return
            middle = len(items) // 2
            self._send(items[:middle], send, notes)
            self._send(items[middle:], send, notes)
        else:
            self._slow_requests = 0
            if len(items) >= self.limit:
                self.limit = min(2 * self.limit, self._ceiling)

    def _learn(self, error: DeliveryError, count: int) -> None:
        half = max(1, count // 2)
        if error.too_large:
            self._ceiling = min(self._ceiling, half)
        self._slow_requests = self._slow_requests + 1 if error.slow else 0
        if error.too_large or self._slow_requests > 1:
            self.limit = min(self.limit, half)

    def _leave_out(self, item: object, error: DeliveryError, notes: Notes) -> None:
        if error.too_large and len(repr(item)) < _SMALL_BYTES:
            self.limit = self._ceiling = self._most  # its size cannot be the reason
            raise DeliveryError(
                ErrorKind.BUSY, "the server refuses requests of any size as too large (413)"
            ) from error
        log.warning("MLflow refused %.200r: %s", item, error.message)
        notes[f"refused: {item!r:.200}"] = None
