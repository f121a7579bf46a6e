"""Files as only somebody with bad intentions writes them, and mutations of real ones."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from wandb.proto import wandb_internal_pb2


def wandb_file(path: Path, rows: Sequence[Mapping[str, str]], config: str = "") -> None:
    """Write a run of W&B with rows of history, whose values are JSON, and the config key ``c``."""
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
