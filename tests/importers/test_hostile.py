"""A hostile file is named, takes little memory, and does not keep others from being imported."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto import event_pb2
from torch.utils.tensorboard import SummaryWriter

from radt.cli import main
from radt.importers import tensorboard, wandb
from radt.importers.below import SourceFile
from tests.importers.hostile import Importer, event_record, wandb_file, wandb_record
from tests.importers.wandb_support import Folder

GOOD = "good"


@pytest.fixture(scope="module")
def importer() -> Iterator[Importer]:
    with Importer() as process:
        yield process


def event(tag: str = "ok", wall_time: float = 1.8e9) -> event_pb2.Event:
    made = event_pb2.Event(wall_time=wall_time, step=1)
    made.summary.value.add(tag=tag, simple_value=1.0)
    return made


def tensor_bomb() -> event_pb2.Event:
    """A tensor that has one value and claims to be large."""
    made = event("bomb")
    value = made.summary.value[0]
    value.metadata.plugin_data.plugin_name = "scalars"
    value.tensor.dtype = 1
    value.tensor.float_val.append(1.0)
    value.tensor.tensor_shape.dim.add(size=2**36)
    return made


def text_event(tag: str) -> event_pb2.Event:
    made = event(tag)
    made.summary.value[0].metadata.plugin_data.plugin_name = "text"
    made.summary.value[0].tensor.string_val.append(b"x")
    return made


EVENTS: dict[str, bytes] = {
    "NUL in a tag": event_record(event("a\0b").SerializeToString()),
    "NUL in the tag of a text": event_record(text_event("a\0b").SerializeToString()),
    "a long tag of a text": event_record(text_event("a" * 5000).SerializeToString()),
    "no time": event_record(event(wall_time=math.nan).SerializeToString()),
    "a time that is too large": event_record(event(wall_time=1e300).SerializeToString()),
    "a large tensor": event_record(tensor_bomb().SerializeToString()),
    "no event": event_record(b"\xff" * 50),
    **{
        f"a length of {size}": event_record(b"x", length=size) for size in (2**36, 2**63, 2**64 - 1)
    },
}


@pytest.mark.parametrize("records", EVENTS.values(), ids=EVENTS)
def test_event_files(records: bytes, importer: Importer, tmp_path: Path) -> None:
    before = event_record(event("before").SerializeToString())
    path = tmp_path / "bad" / "events.tfevents"
    path.parent.mkdir()
    path.write_bytes(before + records + before)
    _check_good(importer, "tensorboard", tmp_path, path, runs=["bad"])


def test_a_whole_record_that_is_too_large_is_passed_over(
    importer: Importer, tmp_path: Path
) -> None:
    size = 2**36
    path = tmp_path / "bad" / "events.tfevents"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.write(event_record(b"", length=size)[:12])
        file.seek(size + 4, os.SEEK_CUR)  # a hole, which takes no room on the disk
        file.write(event_record(event("after").SerializeToString()))
    _check_good(importer, "tensorboard", tmp_path, path, runs=["bad"])


LEVELS = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 20))
MERGES = "".join(f"m{n}: &m{n}\n  <<: [{', '.join([f'*m{n - 1}'] * 9)}]\n" for n in range(1, 20))
YAMLS = {
    "recursive mapping": "a: &a {b: *a}\n",
    "recursive list": "a: &a [*a]\n",
    "exploding lists": f"l0: &l0 [x]\n{LEVELS}",
    "exploding merges": f"m0: &m0 {{x: 1}}\n{MERGES}",
    "a long text often": f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 10_000)}]\n",
    "deep": f"a: {'[' * 100_000}\n",
    "large": f"a: {'x' * 2**20}\n",
    "a number of many digits": f"a: {'9' * 5000}\n",
    "a date that is none": "a: 2026-99-99\n",
    "an object": "a: !!python/object/apply:os.system [ls]\n",
    "NUL": "a: \0\n",
}


@pytest.mark.parametrize("text", YAMLS.values(), ids=YAMLS)
def test_parameters(text: str, importer: Importer, tmp_path: Path) -> None:
    path = tmp_path / "bad" / "hparams.yaml"
    path.parent.mkdir()
    path.write_text(text)
    (path.parent / "metrics.csv").write_text("step,loss\n0,1\n")
    _check_good(importer, "csv", tmp_path, path, runs=["bad"])


def test_aliases_are_fine_where_they_stand_for_little(tmp_path: Path) -> None:
    """As PyYAML writes an object that is there twice."""
    (tmp_path / "hparams.yaml").write_text("a: &id001 {x: [1, 2]}\nb: *id001\nc: {<<: *id001}\n")
    (tmp_path / "metrics.csv").write_text("step,loss\n0,1\n")
    with pytest.raises(SystemExit) as caught:
        main(["import", f"csv:{tmp_path}", "--home", str(tmp_path / "data")])
    assert caught.value.code == 0


DEEP = "[" * 100_000
NESTED = '{"a":' * 500 + "1" + "}" * 500
ROWS: dict[str, dict[str, str]] = {
    "deep": {"x": DEEP},
    "nested": {"x": NESTED},
    "no time": {"_timestamp": "NaN", "x": "1"},
    "a large time": {"_timestamp": "1e300", "x": "1"},
    "a large step": {"_step": "1e300", "x": "1"},
    "an undecoded byte": {"a\ufffd": "1"},
    "NUL": {"a\0b": "1"},
    "NUL in a path": {"x": json.dumps({"_type": "image-file", "path": "a\0b"})},
    "a long path": {"x": json.dumps({"_type": "image-file", "path": "a" * 5000})},
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_runs_of_wandb(row: dict[str, str], importer: Importer, tmp_path: Path) -> None:
    path = tmp_path / "run-bad.wandb"
    (tmp_path / "files").mkdir()
    wandb_file(path, [{"loss": "1.0"}, row, {"loss": "0.5"}])
    _check_good(importer, "wandb", tmp_path, path, runs=["bad"])


def test_configuration_of_wandb(importer: Importer, tmp_path: Path) -> None:
    path = tmp_path / "run-bad.wandb"
    wandb_file(path, [{"loss": "1.0"}], config=DEEP)
    _check_good(importer, "wandb", tmp_path, path, runs=["bad"])


def test_the_command_names_the_file_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _good_run("tensorboard", tmp_path / "runs")
    bad = tmp_path / "runs" / "bad" / "events.tfevents"
    bad.parent.mkdir()
    bad.write_bytes(EVENTS["NUL in a tag"])
    with pytest.raises(SystemExit) as caught:
        main(["import", f"tensorboard:{tmp_path / 'runs'}", "--home", str(tmp_path / "data")])
    assert caught.value.code == 1
    printed = capsys.readouterr()
    assert "imported 1 run" in printed.out
    assert f"{bad}: 'a\\x00b': the name is not text; left out" in printed.err


@pytest.mark.long
def test_a_million_bad_records_are_not_a_million_messages(
    importer: Importer, tmp_path: Path
) -> None:
    path = tmp_path / "bad" / "events.tfevents"
    path.parent.mkdir()
    path.write_bytes(EVENTS["no event"] * 1000)
    _good_run("tensorboard", tmp_path)
    answer = importer.run("tensorboard", tmp_path)
    assert answer["runs"] == [GOOD]
    assert answer["failed"][0].count("left out") == 201


def _good_run(kind: str, place: Path) -> None:
    """Write a sound run, which is imported after the others or before them."""
    if kind == "tensorboard":
        with SummaryWriter(str(place / GOOD)) as writer:
            writer.add_scalar("loss", 1.0, 1)
    elif kind == "wandb":
        wandb_file(place / f"run-{GOOD}.wandb", [{"loss": "1.0"}])
    else:
        (place / f"{GOOD}.csv").write_text("step,loss\n0,1\n")


def _check_good(
    importer: Importer, kind: str, place: Path, bad: Path | None = None, runs: Sequence[str] = ()
) -> None:
    """Check that a sound run is imported beside others, and the bad file named."""
    _good_run(kind, place)
    answer = importer.run(kind, place)
    assert answer["error"] == ""
    assert {GOOD, *runs} <= set(answer["runs"]), answer
    assert answer["again"] == [0, 0]
    if bad is not None:
        problems = [*answer["failed"], *answer["damaged"]]
        assert problems and all(str(bad) in problem for problem in problems), problems


# -- mutations of real files ----------------------------------------------------------------------

#: Bytes that mean something to one of the readers.
_PARTS = st.binary(max_size=9) | st.sampled_from(
    [
        *(b"", b"\0", b"\n", b'"', b",", b";", b"#", b"-", b"[" * 50, b"&a [*a]", b"1e999"),
        *(b"\xff\xfe", b"\xff" * 8, b"\x80\x80\x80\x80\x10", b"../../", b"\xed\xa0\x80"),
        struct.pack("<Q", 2**36),
    ]
)
#: Where, how many bytes go, and what comes instead.
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([0, 0, 1, 1, 4, 50, 10**9]), _PARTS), max_size=6
)
_FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def edited(content: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    for where, count, part in edits:
        at = int(where * len(content))
        content = content[:at] + part + content[at + count :]
    return content


def _fresh(place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return place


CSV_LOGS = (
    b"epoch,step,train_loss,val_loss\n0,9,0.5,\n0,9,,0.7\n1,19,0.25,\n",
    b"epoch;loss;val_loss\r\n0;0,72;NA\r\n1;0,63;0,5\r\n",
    b'#{"t_start": 1795873694.5, "env_id": "C"}\nr,l,t,note\r\n1.0,2,0.25,"a\r\nb"\r\n1,3,0.5,x\n',
    "Wall time\tStep\tValue\r\n1800000000.5\t0\t0,5\r\n".encode("utf-16"),
)


@_FUZZ
@given(st.sampled_from(CSV_LOGS), EDITS, EDITS)
def test_csv_logs(
    importer: Importer, tmp_path: Path, content: bytes, edits: object, more: object
) -> None:
    place = _fresh(tmp_path / "logs")
    (place / "a.csv").write_bytes(edited(content, edits))
    (place / "hparams.yaml").write_bytes(edited(b"lr: 0.1\nopt: &a {b: [1]}\nc: *a\n", more))
    _check_good(importer, "csv", place)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The records of a real file of everything that an import takes."""
    folder = tmp_path_factory.mktemp("events")
    with SummaryWriter(str(folder)) as writer:
        writer.add_scalar("loss/train", 0.5, 1)
        writer.add_scalar("new", 2.5, 1, new_style=True)
        writer.add_text("note", "hello", 7)
        writer.add_image("some", np.zeros((3, 4, 4), dtype=np.uint8), 1)
        writer.add_hparams({"lr": 0.1, "name": "adam"}, {"best": 0.25}, run_name=".")
    return [
        record
        for path in sorted(folder.glob("*tfevents*"))
        for _, record in tensorboard._Events(SourceFile(folder, path.name))
    ]


@_FUZZ
@given(st.lists(EDITS, min_size=1, max_size=8), EDITS)
def test_events(
    importer: Importer, events: list[bytes], tmp_path: Path, records: object, raw: object
) -> None:
    """Records with valid checksums, and the file as a whole."""
    place = _fresh(tmp_path / "runs")
    (place / "bad").mkdir()
    content = b"".join(map(event_record, _records(events, records)))
    (place / "bad" / "events.tfevents").write_bytes(edited(content, raw))
    _check_good(importer, "tensorboard", place)


@_FUZZ
@given(st.lists(EDITS, min_size=1, max_size=8), EDITS)
def test_wandb(
    importer: Importer, recorded: Folder, tmp_path: Path, records: object, raw: object
) -> None:
    place = _fresh(tmp_path / "wandb")
    path = recorded.files("resnet-1")[0]
    real = [data for _, data in wandb._Records(SourceFile(path.parent, path.name))]
    content = bytearray(path.read_bytes()[:7])
    for record in _records([*real[:12], *real[-12:]], records):
        wandb_record(content, record)
    (place / "run-bad.wandb").write_bytes(edited(bytes(content), raw))
    _check_good(importer, "wandb", place)


def _records(real: list[bytes], edits: object) -> Iterator[bytes]:
    """Yield records of which some are changed, evenly."""
    assert isinstance(edits, list)
    for number, record in enumerate(real):
        change = edits[number * len(edits) // len(real)] if number % 2 else []
        yield edited(record, change)
