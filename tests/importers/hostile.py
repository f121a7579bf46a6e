"""Files as only somebody with bad intentions writes them, and a process of little memory.

``python -m tests.importers.hostile`` reads places as lines of JSON, imports each into a store of
its own, and writes what came of it.
"""

from __future__ import annotations

import json
import os
import resource
import select
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from radt.importers import csv_logs, tensorboard, wandb
from radt.importers.importing import Import
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter

#: Memory of an import besides what the interpreter and its packages have.
MEMORY_BYTES = 500 * 2**20
#: For a few small files, however slow the machine is.
_TIMEOUT_S = 120
SOURCES = {"csv": csv_logs.source, "tensorboard": tensorboard.source, "wandb": wandb.source}


class Importer:
    """A process that imports under a limit of memory, and of time."""

    def __enter__(self) -> Self:
        environ = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.importers.hostile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            cwd=Path(__file__).parents[2],
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, kind: str, place: Path) -> dict[str, Any]:
        """Import a folder, and return names of runs, ``failed``, ``damaged`` and ``error``."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([kind, str(place)]) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], _TIMEOUT_S)
        assert ready, f"no answer after {_TIMEOUT_S} s"
        line = self._process.stdout.readline()
        assert line, f"the process ended: {self._process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    """Import until standard input ends."""
    import_module("wandb.proto.wandb_internal_pb2")  # takes no part of the memory
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + MEMORY_BYTES,) * 2)
    for line in sys.stdin:
        kind, place = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            answer = _import(kind, Path(place), Path(folder) / "radt.db")
        print(json.dumps(answer), flush=True)


def _import(kind: str, place: Path, store: Path) -> dict[str, object]:
    answer: dict[str, object] = {"runs": [], "failed": [], "damaged": [], "error": ""}
    try:
        with StoreWriter(store) as writer:
            result = Import(SOURCES[kind](place), writer).run()
            again = Import(SOURCES[kind](place), writer).run()
        answer["failed"] = [f"{where}: {error}" for where, error in result.failed]
        answer["damaged"] = result.damaged
        answer["again"] = [again.imported, again.updated]
        with StoreReader(store) as reader:
            answer["runs"] = [run.name for run in reader.runs()]
    except Exception as error:  # noqa: BLE001 - the test shows it
        answer["error"] = repr(error)
    return answer


def wandb_file(path: Path, rows: Sequence[Mapping[str, str]], config: str = "") -> None:
    """Write a run of W&B with rows of history, whose values are JSON, and the config key ``c``."""
    from wandb.proto import wandb_internal_pb2  # takes long

    records = [wandb_internal_pb2.Record()]
    records[0].run.run_id = path.stem.removeprefix("run-")
    records[0].run.start_time.seconds = 1_800_000_000
    if config:
        records[0].run.config.update.add(key="c", value_json=config)
    for number, row in enumerate(rows):
        record = wandb_internal_pb2.Record()
        for key, value in {"_step": str(number), **row}.items():
            record.history.item.add(key=key, value_json=value)
        records.append(record)
    records.append(wandb_internal_pb2.Record())
    records[-1].exit.exit_code = 0
    content = bytearray(struct.pack("<4sHB", b":W&B", 0xBEE1, 0))
    for record in records:
        wandb_record(content, record.SerializeToString())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def wandb_record(content: bytearray, data: bytes) -> None:
    """Append a record in fragments, as LevelDB's logs have them."""
    first = True
    while first or data:
        room = 32768 - len(content) % 32768
        if room < 7:
            content += bytes(room)
            continue
        part, data = data[: room - 7], data[room - 7 :]
        kind = (1 if first else 4) if not data else (2 if first else 3)
        content += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
        first = False


def event_record(data: bytes, length: int | None = None) -> bytes:
    """Return a record of TensorBoard; ``length`` is what it claims, with a valid checksum."""
    head = struct.pack("<Q", len(data) if length is None else length)
    crcs = [struct.pack("<I", masked_crc32c(part)) for part in (head, data)]
    return head + crcs[0] + data + crcs[1]


if __name__ == "__main__":
    main()
