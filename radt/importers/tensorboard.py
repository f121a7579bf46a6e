"""TensorBoard's event files, decoded with TensorBoard's messages: a folder of event files is a run.

Folders that writers create for one training are combined into one run:

* ``SummaryWriter.add_hparams`` writes into a separate folder below the run's,
* ``SummaryWriter.add_scalars`` into one for each curve, ``loss_train`` for curve ``train`` of
  ``loss``,
* Keras into ``train`` and ``validation``, without files in the folder above.

Scalars become metrics, hyper-parameters parameters, images and texts artifacts. As in TensorBoard,
reading a file stops at the first damage; the rest of the file is lost.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.util import tensor_util

from radt.errors import UsageError
from radt.importers.below import SourceFile, find_files
from radt.importers.files import (
    PARAMS,
    FileRun,
    FileSource,
    ImportedPoint,
    RecordFile,
    file_run,
    guarded,
    params_in,
    read_params,
    time_ns,
)
from radt.importers.source import Media, RunFacts, SourceSeries
from radt.model import RunStatus

#: Part of the file name by which TensorBoard finds event files.
_MARK = "tfevents"
#: Suffix of its profiler's files, which contain no events.
_PROFILE_SUFFIX = ".profile-empty"
_KERAS = frozenset({"validation", "val", "test", "eval"})
_KERAS_TRAIN = "train"
_HPARAMS = "hparams"
_FAILURE = int(api_pb2.Status.Value("STATUS_FAILURE"))
#: Number of events of a file to read in order to classify its folder.
_FIRST_EVENTS = 20
#: A record: length, its checksum, the event, its checksum.
_HEAD, _FOOT = struct.Struct("<QI"), struct.Struct("<I")
#: Images are the largest records that are imported; a graph's record may be larger.
_MAX_RECORD_BYTES = 2**26
_AROUND_BYTES = 16
_PNG, _GIF = b"\x89PNG", b"GIF8"


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder with event files, and how its metrics are named in the run.

    ``prefix`` and ``suffix`` go around their tags.
    """

    files: tuple[SourceFile, ...]
    prefix: str = ""
    suffix: str = ""

    def metric(self, tag: str) -> str:
        # Many scripts already use tags such as hparam/….
        prefix = "" if tag.startswith(self.prefix.rstrip("s/") or "\0") else self.prefix
        return f"{prefix}{tag}{self.suffix}"


def source(place: Path) -> FileSource:
    """Return the event files of a folder, or one file, as a source.

    Raises:
        UsageError: There are none.
    """
    found = find_files(place, f"*{_MARK}*")
    files: dict[Path, list[SourceFile]] = {}
    for file in found.files:
        if not file.full.name.endswith(_PROFILE_SUFFIX):
            files.setdefault(file.full.parent, []).append(file)
    if not files:
        raise UsageError(
            f"no event files in {place}",
            f"Give a folder with files that have {_MARK} in their name",
        )
    root = found.files[0].root
    folders = _runs({folder: tuple(of_folder) for folder, of_folder in files.items()})
    runs: list[FileRun] = []
    parts: dict[str, Sequence[_Folder]] = {}
    for home, of_run in folders.items():
        run = file_run(
            f"tensorboard:{home}",
            root.name or "tensorboard",
            home.relative_to(root).as_posix() if home not in (root, *root.parents) else home.name,
            [*(file for part in of_run for file in part.files), *params_in(home, root)],
        )
        runs.append(run)
        parts[run.run_id] = of_run

    def read(run: FileRun, facts: RunFacts) -> Iterator[ImportedPoint | Media]:
        for file in run.files:
            if file.full.name == PARAMS:
                read_params(file, facts)
        for part in parts[run.run_id]:
            reading = _Reading(part, facts)
            for file in part.files:
                events = _Events(file).parts(reading.values, facts, at_rest=run.at_rest)
                yield from guarded(str(file), events, facts)

    return FileSource(str(place), runs, read, found.left_out)


def _runs(files: Mapping[Path, tuple[SourceFile, ...]]) -> dict[Path, list[_Folder]]:
    """Return the folders of each run, by the run's own folder."""
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


def _part_of_parent(name: str, files: tuple[SourceFile, ...]) -> _Folder | None:
    """Return a folder as a part of the run above it; None if it is a run of its own."""
    # Unreadable parts are reported when the run is imported.
    for value in guarded(str(files[0]), _first_values(files[0]), RunFacts()):
        if value.metadata.plugin_data.plugin_name == _HPARAMS:
            return _Folder(files, prefix="hparams/")
        curve = f"{value.tag.replace('/', '_')}_"
        if name.startswith(curve):
            return _Folder(files, suffix=f"/{name.removeprefix(curve)}")
    return None


def _first_values(file: SourceFile) -> Iterator[Any]:
    for _, record in islice(_Events(file), _FIRST_EVENTS):
        yield from event_pb2.Event.FromString(record).summary.value


class _Events(RecordFile):
    """The reader of TensorBoard's package would allocate whatever length a record declares."""

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        with self._file.open() as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            while head := stream.read(_HEAD.size):
                at = stream.tell() - len(head)
                if len(head) < _HEAD.size:
                    self.is_cut = True
                    return
                length, checksum = _HEAD.unpack(head)
                if masked_crc32c(head[:8]) != checksum:
                    return self._damaged(at, size_bytes - at)
                is_whole = at + length + _AROUND_BYTES <= size_bytes
                if length > _MAX_RECORD_BYTES:
                    if not is_whole:
                        return self._damaged(at, size_bytes - at)
                    self.problems.append(
                        f"{self._file}, byte {at:,}: a record of {length:,} bytes; left out"
                    )
                    stream.seek(length + _FOOT.size, os.SEEK_CUR)
                    continue
                if not is_whole:
                    self.is_cut = True
                    return
                record = stream.read(length)
                if masked_crc32c(record) != _FOOT.unpack(stream.read(_FOOT.size))[0]:
                    return self._damaged(at, size_bytes - at)
                yield f"byte {at:,}", record


@dataclass(slots=True)
class _Reading:
    """State of reading a folder."""

    part: _Folder
    facts: RunFacts
    # Only the first value of a tag names its plugin.
    plugins: dict[str, str] = field(default_factory=dict)
    series: dict[str, SourceSeries] = field(default_factory=dict)

    def values(self, record: bytes) -> Iterator[ImportedPoint | Media]:
        event = event_pb2.Event.FromString(record)
        for value in event.summary.value:
            tag = value.tag
            if value.HasField("metadata"):
                self.plugins.setdefault(tag, value.metadata.plugin_data.plugin_name)
            if tag not in self.series:
                self.series[tag] = SourceSeries(self.part.metric(tag))
            plugin = self.plugins.get(tag, "")
            if plugin == _HPARAMS:
                _read_hparams(value.metadata.plugin_data.content, self.facts)
            elif (number := _number(value, plugin)) is not None:
                yield ImportedPoint(self.series[tag], time_ns(event.wall_time), number, event.step)
            else:
                yield from _media(self.part, value, plugin, event.step)


def _number(value: Any, plugin: str) -> float | None:
    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    if plugin == "scalars" and value.HasField("tensor"):
        shape = [axis.size for axis in value.tensor.tensor_shape.dim]
        if any(size != 1 for size in shape):  # TensorBoard would allocate an array of this size
            raise ValueError(f"expected a scalar, got a tensor of the shape {shape}")
        return float(tensor_util.make_ndarray(value.tensor).item())
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
        # Whole numbers are stored as floats.
        whole = isinstance(given, float) and given.is_integer() and abs(given) < 2**53
        facts.params[name] = str(int(given) if whole else given)
    if data.session_end_info.status == _FAILURE:
        facts.status = RunStatus.FAILED
