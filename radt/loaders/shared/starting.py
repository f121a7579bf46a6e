"""A server's options, and its start by a consumer, in an environment without the consumer's run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from radt.errors import LoaderError
from radt.home import HOME_VARIABLE, RUN_ID_VARIABLE, RUNTIME_VARIABLE
from radt.loaders.shared.factory import Factory
from radt.processes import command, reap

#: Long enough for the consumer that starts a server to connect.
DEFAULT_LINGER_S = 0.2
#: Variables of the run, such as its share of a GPU. The server outlives the run that starts it.
_OF_THE_RUN = (
    *("RADT_", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT"),
    *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
)
_KEPT = frozenset({HOME_VARIABLE, RUNTIME_VARIABLE, "RADT_EXPERIMENT", "RADT_WORKLOAD"})


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a server, from the consumer that starts it.

    Args:
        name: Name of the loader.
        buffer: Number of batches that the fastest consumer may be ahead of the slowest.
        window_bytes: Memory for the first batches of an epoch, kept for late consumers.
        linger_s: How long it stays without consumers; forever if None.
        stall_timeout_s: Evict consumers that block others for this long; None to never evict.
    """

    name: str
    buffer: int = 2
    window_bytes: int = 0
    linger_s: float | None = DEFAULT_LINGER_S
    stall_timeout_s: float | None = None


def start_server(
    factory: Factory, options: ServerOptions, listening: socket.socket
) -> threading.Thread:
    """Start a server that takes over a listening socket. Return a thread that ends with it.

    Raises:
        LoaderError: It cannot be started.
    """
    where = f"{factory.file}:{factory.function}"
    serve = command("radt.loaders.serve", where, "--name", options.name)
    given = {"factory": factory.to_json(), "options": asdict(options), "cpus": _cpus()}
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            [*serve, "--listener", str(listening.fileno())],
            stdin=read_end,
            env={
                name: value
                for name, value in os.environ.items()
                if name in _KEPT or not name.startswith(_OF_THE_RUN)
            },
            pass_fds=[listening.fileno()],
            start_new_session=True,
        )
        os.write(write_end, json.dumps(given).encode())
    except OSError as error:
        raise LoaderError(
            f"the server of the shared loader {options.name!r} cannot be started: {error}",
            "Start it yourself with `python -m radt.loaders.serve`",
        ) from error
    finally:
        os.close(read_end)
        os.close(write_end)
        listening.close()
    return reap(process)


def _cpus() -> list[int]:
    """Return the CPUs for a server: not those of a row, but of the radt that started the row."""
    if RUN_ID_VARIABLE in os.environ:  # a row leads a session, whose parent is radt's process
        with suppress(OSError):
            stat = Path(f"/proc/{os.getsid(0)}/stat").read_text(encoding="utf-8", errors="replace")
            return sorted(os.sched_getaffinity(int(stat.rpartition(")")[2].split()[1])))
    return sorted(os.sched_getaffinity(0))
