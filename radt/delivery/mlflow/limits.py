"""Keep to MLflow's limits: accepted names, params and tags, and the size of requests."""

from __future__ import annotations

import hashlib
import logging
import re
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.store.records import RunRecord
from radt.tags import END_REASON, EXIT_CODE, METRIC_PREFIX, STATUS

#: Limits of MLflow's own validation (mlflow/utils/validation.py) and of its database columns.
MAX_KEY_LENGTH = 250
MAX_PARAM_LENGTH = 6000
MAX_TAG_LENGTH = 8000
MAX_RUN_NAME_LENGTH = 250
MAX_EXPERIMENT_NAME_LENGTH = 256

_FORBIDDEN = re.compile(r"[^/\w.\- :]")
_HASH_LENGTH = 8
_UNNAMED = re.compile(r"arg\d+")


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
    """``(workload letter) name``, or just the name for a run without a workload.

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
    if radt had already sent ``1e-3``. The script's own value wins. Until then they are all in the
    parameter ``Params``.
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
    except ValueError:  # unbalanced quotes; the names do not need them
        words = text.split()
    return frozenset(word.lstrip("-").partition("=")[0] for word in words)


def deliverable_tags(
    run: RunRecord, tags: Mapping[str, str], keys: Mapping[str, str]
) -> dict[str, str]:
    """Return the run's tags, its end, and the original names of series whose MLflow key differs."""
    tag_keys = unique_keys(tags)
    texts = {tag_keys[name]: value for name, value in tags.items()}
    for name, key in keys.items():
        if key != name:
            texts[f"{METRIC_PREFIX}{key}"[:MAX_KEY_LENGTH]] = name
    if run.status.ended:
        texts[STATUS] = run.status.value  # MLflow has fewer statuses
        if run.end_reason:
            texts[END_REASON] = run.end_reason
        if run.exit_code is not None:
            texts[EXIT_CODE] = str(run.exit_code)
    return {key: cut(value, MAX_TAG_LENGTH) for key, value in texts.items()}


log = logging.getLogger(__name__)

#: Items of a run that MLflow did not accept, in order and each once.
Notes = dict[str, None]

_Item = TypeVar("_Item")

#: No server's limit is lower: one that refuses so little for its size is misconfigured.
_SMALL_BYTES = 1000


class Sender:
    """Sends items in batches as large as the server accepts. Thread-safe.

    ``before_request`` is called before each request and may block until others are done.
    """

    def __init__(self, before_request: Callable[[], object]) -> None:
        self._before_request = before_request

    def send(
        self,
        items: Sequence[_Item],
        send: Callable[[Sequence[_Item]], None],
        notes: Notes,
        batch: BatchSize,
    ) -> None:
        """Send all items that MLflow accepts; halve a request that it refuses.

        `notes` collects the omitted items, `batch` adapts to the accepted size.

        Raises:
            DeliveryError: MLflow failed.
        """
        self._before_request()
        try:
            send(items)
        except DeliveryError as error:
            if error.slow:
                batch.slow(len(items))
            if error.kind is not ErrorKind.REFUSED:
                raise
            if error.too_large:
                batch.too_large(len(items))
            if len(items) == 1:
                if error.too_large and len(repr(items[0])) < _SMALL_BYTES:
                    batch.nonsense()
                    raise DeliveryError(
                        ErrorKind.BUSY, "the server refuses requests of any size as too large (413)"
                    ) from error
                log.warning("MLflow refused %.200r: %s", items[0], error.message)
                notes[f"refused: {items[0]!r:.200}"] = None
                return
            middle = len(items) // 2
            self.send(items[:middle], send, notes, batch)
            self.send(items[middle:], send, notes, batch)
        else:
            batch.worked(len(items))


class BatchSize:
    """The number of items for the next request, at most MLflow's own limit. Thread-safe.

    It is halved permanently after a request that was refused for its size, and temporarily after
    one that timed out.
    """

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._ceiling = most
        self._limit = most

    @property
    def limit(self) -> int:
        """Return the current number, at least 1."""
        return self._limit

    def too_large(self, count: int) -> None:
        """Record that this many items were refused for their size."""
        with self._lock:
            self._ceiling = min(self._ceiling, max(1, count // 2))
            self._limit = min(self._limit, self._ceiling)

    def nonsense(self) -> None:
        """Record that a request refused for its size was too small for that to be the reason."""
        with self._lock:
            self._ceiling = self._limit = self._most

    def slow(self, count: int) -> None:
        """Record that this many items timed out."""
        with self._lock:
            self._limit = min(self._limit, max(1, count // 2))

    def worked(self, count: int) -> None:
        """Record that this many items were accepted."""
        with self._lock:
            if count >= self._limit:
                self._limit = min(2 * self._limit, self._ceiling)
