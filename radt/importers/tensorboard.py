"""TensorBoard's event files, read by TensorBoard: a folder with event files is a run.

What writers spread over several folders for one training comes together in one run:

* ``SummaryWriter.add_hparams`` writes into a folder of its own below the run's,
* ``SummaryWriter.add_scalars`` into one for each curve, ``loss_train`` for curve ``train`` of
  ``loss``,
* Keras into ``train`` and ``validation``, with nothing beside them.

Scalars are metrics, hyper-parameters parameters, images and texts artifacts. TensorBoard's reader
stops at damage; what follows it in the file is lost to everybody who reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.util import tensor_util

from radt.errors import UsageError
from radt.importers.files import (
    NS_PER_S,
    FileRun,
    FileSource,
    Point,
    file_run,
    params_in,
    read_params,
)
from radt.importers.source import Media, RunFacts, SourceSeries
from radt.model import RunStatus

#: As TensorBoard finds them.
_MARK = "tfevents"
#: Files of its profiler: they hold no events.
_PROFILE_SUFFIX = ".profile-empty"
_KERAS = frozenset({"validation", "val", "test", "eval"})
_KERAS_TRAIN = "train"
_HPARAMS = "hparams"
_FAILURE = int(api_pb2.Status.Value("STATUS_FAILURE"))
#: Events of a file that are looked at to learn what its folder is.
_FIRST_EVENTS = 20
#: A record: length, its checksum, the event, its checksum.
_HEAD = struct.Struct("<QI")
_AROUND_BYTES = 16
_PNG, _GIF = b"\x89PNG", b"GIF8"


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder with event files, and what its metrics are called in the run.

    ``prefix`` and ``suffix`` go around their tags.
    """

    files: tuple[Path, ...]
    prefix: str = ""
    suffix: str = ""

    def metric(self, tag: str) -> str:
        # Many have called theirs hparam/… already.
        prefix = "" if tag.startswith(self.prefix.rstrip("s/") or "\0") else self.prefix
        return f"{prefix}{tag}{self.suffix}"


def source(place: Path) -> FileSource:
    """Return the event files of a folder, or one file, as a source.

    Raises:
        UsageError: There are none.
    """
    root = (place.parent if place.is_file() else place).absolute()
    paths = [place.absolute()] if place.is_file() else sorted(root.rglob(f"*{_MARK}*"))
    files: dict[Path, list[Path]] = {}
    for file in paths:
        if file.is_file() and not file.name.endswith(_PROFILE_SUFFIX):
            files.setdefault(file.parent, []).append(file)
    if not files:
        raise UsageError(
            f"no event files in {place}",
            f"Give a folder with files that have {_MARK} in their name",
        )
    folders = _runs({folder: tuple(of_folder) for folder, of_folder in files.items()})
    runs: list[FileRun] = []
    parts: dict[str, Sequence[_Folder]] = {}
    for home, of_run in folders.items():
        run = file_run(
            f"tensorboard:{home}",
            root.name or "tensorboard",
            home.relative_to(root).as_posix() if home not in (root, *root.parents) else home.name,
            [*(path for part in of_run for path in part.files), *params_in(home)],
        )
        runs.append(run)
        parts[run.run_id] = of_run

    def read(run: FileRun, facts: RunFacts) -> Iterator[Point | Media]:
        for path in run.files:
            if _MARK not in path.name:
                read_params(path, facts)
        for part in parts[run.run_id]:
            yield from _read_folder(part, facts, at_rest=run.at_rest)

    return FileSource(str(place), runs, read)


def _runs(files: Mapping[Path, tuple[Path, ...]]) -> dict[Path, list[_Folder]]:
    """Return the folders of each run, by the run's own."""
    runs: dict[Path, list[_Folder]] = {}
    for folder, of_folder in sorted(files.items()):
        parent, name = folder.parent, folder.name
        if parent in files:
            part = _part_of_parent(name, of_folder)
            home = folder if part is None else parent
            runs.setdefault(home, []).append(part or _Folder(of_folder))
        elif (name == _KERAS_TRAIN and any(parent / other in files for other in _KERAS)) or (
            name in _KERAS and parent / _KERAS_TRAIN in files
        ):
            runs.setdefault(parent, []).append(_Folder(of_folder, prefix=f"{name}/"))
        else:
            runs.setdefault(folder, []).append(_Folder(of_folder))
    return runs


def _part_of_parent(name: str, files: tuple[Path, ...]) -> _Folder | None:
    """Return the part that a folder is of the run above it; None for a run of its own."""
    for _, event in zip(range(_FIRST_EVENTS), _Events(files[0]), strict=False):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == _HPARAMS:
                return _Folder(files, prefix="hparams/")
            curve = f"{value.tag.replace('/', '_')}_"
            if name.startswith(curve):
                return _Folder(files, suffix=f"/{name.removeprefix(curve)}")
    return None


class _Events:
    """The events of a file. After them, ``problem`` says what the file ends with."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def __iter__(self) -> Iterator[Any]:
        self._path.stat()  # an OSError, and none of TensorBoard's
        for record in RawEventFileLoader(str(self._path)).Load():
            self._read_bytes += len(record) + _AROUND_BYTES
            yield event_pb2.Event.FromString(record)

    def problem(self, *, at_rest: bool) -> str:
        """Return why not all of the file was read; empty if it was, or may yet be written."""
        with self._path.open("rb") as file:
            size_bytes = file.seek(0, 2)
            file.seek(self._read_bytes)
            head = file.read(_HEAD.size)
        if not head:
            return ""
        length = 0
        if len(head) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            if (
                masked_crc32c(head[:8]) != checksum
                or self._read_bytes + length + _AROUND_BYTES <= size_bytes
            ):
                left = size_bytes - self._read_bytes
                return (
                    f"{self._path} is damaged at byte {self._read_bytes:,}; "
                    f"{left:,} bytes are left out"
                )
        if at_rest:
            return f"{self._path} ends within a record; what is before it was imported"
        return ""  # being written


def _read_folder(part: _Folder, facts: RunFacts, *, at_rest: bool) -> Iterator[Point | Media]:
    # Only the first value of a tag has its plugin.
    plugins: dict[str, str] = {}
    series: dict[str, SourceSeries] = {}
    for path in part.files:
        events = _Events(path)
        for event in events:
            for value in event.summary.value:
                tag = value.tag
                if value.HasField("metadata"):
                    plugins.setdefault(tag, value.metadata.plugin_data.plugin_name)
                if tag not in series:
                    series[tag] = SourceSeries(part.metric(tag))
                plugin = plugins.get(tag, "")
                if plugin == _HPARAMS:
                    _read_hparams(value.metadata.plugin_data.content, facts)
                elif (number := _number(value, plugin)) is not None:
                    time_ns = int(event.wall_time * NS_PER_S)
                    yield Point(series[tag], time_ns, number, event.step)
                else:
                    yield from _media(part, value, plugin, event.step)
        if problem := events.problem(at_rest=at_rest):
            facts.problems.append(problem)


def _number(value: Any, plugin: str) -> float | None:
    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    if plugin == "scalars" and value.HasField("tensor"):
        array = tensor_util.make_ndarray(value.tensor)
        return float(array.item()) if array.size == 1 else None
    return None


def _media(part: _Folder, value: Any, plugin: str, step: int) -> Iterator[Media]:
    """Yield images and texts."""
    place = f"artifacts/tensorboard/{part.metric(value.tag)}/{step}"
    kind = value.WhichOneof("value")
    if kind == "image":
        yield from _pictures(place, [value.image.encoded_image_string])
    elif kind == "tensor" and plugin == "images":
        # Width and height come first.
        yield from _pictures(place, value.tensor.string_val[2:])
    elif kind == "tensor" and plugin == "text":
        yield Media(f"{place}.txt", b"\n".join(value.tensor.string_val))


def _pictures(place: str, pictures: Sequence[bytes]) -> Iterator[Media]:
    for number, content in enumerate(pictures):
        suffix = {_PNG: "png", _GIF: "gif"}.get(content[:4], "jpg")
        yield Media(f"{place}-{number}.{suffix}" if number else f"{place}.{suffix}", content)


def _read_hparams(content: bytes, facts: RunFacts) -> None:
    data = plugin_data_pb2.HParamsPluginData.FromString(content)
    for name, value in data.session_start_info.hparams.items():
        kind = value.WhichOneof("kind")
        given = getattr(value, kind) if kind else ""
        # Whole numbers come as floats.
        whole = isinstance(given, float) and given.is_integer() and abs(given) < 2**53
        facts.params[name] = str(int(given) if whole else given)
    if data.session_end_info.status == _FAILURE:
        facts.status = RunStatus.FAILED
