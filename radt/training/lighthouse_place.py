"""Where a group's replicas on one machine meet: a file, and locks on it that say who is there.

The file is in the runtime folder. The kernel frees the locks with their processes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import struct
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum

from radt.home import HOME_VARIABLE, runtime_dir

_POLL_S = 0.05
_MOST_BYTES = 1024
#: A workload's rows meet at one lighthouse, those of another workload do not.
_SCOPE_VARIABLES = (HOME_VARIABLE, "RADT_EXPERIMENT", "RADT_WORKLOAD")


class _Byte(IntEnum):
    """Which byte of the file is locked."""

    SERVING = 0  # by the lighthouse
    USED = 1  # shared by replicas
    WANTED = 2  # by a service row, which takes the place of what a replica has started


@dataclass(frozen=True, slots=True)
class Known:
    """What the file says.

    Attributes:
        host: Where the lighthouse listens, or did before it was killed; as in URLs.
        port: Its port there.
        is_service: It was started by a row or by hand, not by a replica.
    """

    host: str
    port: int
    is_service: bool

    @property
    def address(self) -> str:
        """``http://HOST:PORT``."""
        return f"http://{self.host}:{self.port}"


class Place:
    """A group's file, open, with this process's locks on it until `close`.

    Args:
        group: The group.
        descriptor: Of the file, from the process that started this one; it has its locks.
    """

    def __init__(self, group: str, descriptor: int | None = None) -> None:
        scope = [group, *(os.environ.get(variable, "") for variable in _SCOPE_VARIABLES)]
        name = hashlib.sha256(json.dumps(scope).encode()).hexdigest()[:16]
        self._path = runtime_dir() / f"lighthouse-{name}"
        self.descriptor = self._open() if descriptor is None else descriptor
        _open_places.add(self)

    def use(self) -> None:
        """Keep the lighthouse from ending."""
        while not self._lock(_Byte.USED, fcntl.F_RDLCK):
            time.sleep(_POLL_S)  # one that nobody used is ending

    def is_unused(self) -> bool:
        """Return whether no other process uses it; if so, none can begin to."""
        return self._lock(_Byte.USED, fcntl.F_WRLCK)

    def serve(self) -> bool:
        """Return whether the lighthouse may be this process, or one that gets the descriptor."""
        return self._lock(_Byte.SERVING, fcntl.F_WRLCK)

    def want(self) -> bool:
        """Have a lighthouse that a replica started make room; False if another process does."""
        return self._lock(_Byte.WANTED, fcntl.F_WRLCK)

    def is_wanted(self) -> bool:
        """Return whether another process wants to serve."""
        asked = fcntl.fcntl(self.descriptor, fcntl.F_OFD_GETLK, _request(_Byte.WANTED))
        return bool(_REQUEST.unpack(asked)[0] != fcntl.F_UNLCK)

    def known(self) -> Known | None:
        """Return what the file says, if anything."""
        with suppress(ValueError, TypeError):
            return Known(**json.loads(os.pread(self.descriptor, _MOST_BYTES, 0)))
        return None

    def tell(self, known: Known | None) -> None:
        """Have the file say this; only for who may serve."""
        os.ftruncate(self.descriptor, 0)
        if known is not None:
            os.pwrite(self.descriptor, json.dumps(asdict(known)).encode(), 0)

    def remove(self) -> None:
        """Remove the file; only for who may serve, once it is unused."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file, which gives the locks back."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _lock(self, byte: _Byte, kind: int) -> bool:
        while True:
            try:
                fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, _request(byte, kind))
            except BlockingIOError:
                return False
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self.descriptor), self._path.stat()):
                    return True
            self.close()  # the file was removed before we had the lock
            self.descriptor = self._open()


def own_secret() -> str:
    """Return a secret that all processes of this user on this machine can read, and nobody else."""
    path = runtime_dir() / "replicas-secret"
    if not path.exists():
        temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        temporary.write_text(secrets.token_hex(32), encoding="ascii")
        with suppress(FileExistsError):  # another process was first
            temporary.chmod(0o600)
            os.link(temporary, path)
        temporary.unlink()
    return path.read_text(encoding="ascii")


_REQUEST = struct.Struct("hhqqi")  # struct flock of 64-bit Linux


def _request(byte: _Byte, kind: int = fcntl.F_WRLCK) -> bytes:
    return _REQUEST.pack(kind, os.SEEK_SET, byte, 1, 0)


_open_places: weakref.WeakSet[Place] = weakref.WeakSet()


def _close_all() -> None:
    for place in list(_open_places):
        place.close()


# A forked process, such as a data loader's worker, would keep the locks.
os.register_at_fork(after_in_child=_close_all)
