"""A file of users with hashed passwords: a line each, ``NAME:HASH``.

Hashes are Werkzeug's, by default scrypt with a salt of its own
(https://werkzeug.palletsprojects.com/en/stable/utils/#module-werkzeug.security). The file is read
again when it changes, so that somebody who is taken out of it is out.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import stat
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from werkzeug.security import check_password_hash, generate_password_hash

from radt.errors import UsageError

MIN_PASSWORD_LENGTH = 8
_MAX_PASSWORD_LENGTH = 1024
_METHODS = ("scrypt:", "pbkdf2:")
_MAX_REMEMBERED = 256
_REMEDY = "radt dashboard --users FILE --add-user NAME adds somebody, and asks for the password"
_LOG = logging.getLogger(__name__)


class Users:
    """Checks names and passwords. Thread-safe.

    A right password is remembered by a keyed digest for as long as the file stays: browsers send
    it with each request, and a scrypt each would be a tenth of a second.

    Raises:
        UsageError: The file cannot be read, others may change it, or a line is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._version = _version(path)
        self._hashes: Mapping[str, str] = read_users(path)
        # Unknown names take as long as known ones.
        self._nobody = generate_password_hash(secrets.token_hex(16))

    def __len__(self) -> int:
        return len(self._hashes)

    def accept(self, name: str, password: str) -> bool:
        """Whether the password is that user's."""
        if len(password) > _MAX_PASSWORD_LENGTH:
            return False
        if self.knows(name, password):
            return True
        with self._lock:
            expected = self._hashes.get(name)
        matches = check_password_hash(expected or self._nobody, password)
        if expected is None or not matches:
            return False
        with self._lock:
            if self._hashes.get(name) != expected:  # changed meanwhile
                return False
            self._right[self._digest(name, password)] = None
            while len(self._right) > _MAX_REMEMBERED:
                self._right.popitem(last=False)
        return True

    def knows(self, name: str, password: str) -> bool:
        """Whether it was right before and still is; costs microseconds."""
        self._look_again()
        with self._lock:
            return self._digest(name, password) in self._right

    def _digest(self, name: str, password: str) -> bytes:
        told = f"{len(name)}:{name}{password}".encode()
        return hmac.new(self._key, told, hashlib.sha256).digest()

    def _look_again(self) -> None:
        """Read the file again if it has changed; one that is broken lets nobody in."""
        version = _version(self.path)
        with self._lock:
            if version == self._version:
                return
            self._version = version
            self._right.clear()
            try:
                self._hashes = read_users(self.path)
            except UsageError as error:
                self._hashes = {}
                _LOG.warning("nobody is let in: %s. %s", error.message, error.remedy)


def read_users(path: Path) -> dict[str, str]:
    """Hashes by name.

    Raises:
        UsageError: It cannot be read, others may change it, or a line is none.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"the users in {path} cannot be read: {reason}", _REMEDY) from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"others may write {path}, and so let anybody in", f"chmod 600 {path}")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, hashed = line.strip().partition(":")
        if not (name and colon and hashed.startswith(_METHODS)):
            raise UsageError(
                f"line {number} of {path} is no NAME:HASH with a hash of Werkzeug's", _REMEDY
            )
        found[name] = hashed
    if not found:
        raise UsageError(f"there is nobody in {path}", _REMEDY)
    return found


def add_user(path: Path, name: str, password: str) -> bool:
    """Write a user, or another password of one; returns whether the name is new.

    Raises:
        UsageError: Name or password cannot be used, or the file cannot be read or written.
    """
    if not name or ":" in name or not name.isprintable() or name.startswith("#"):
        raise UsageError(
            f"{name!r} cannot be a name", "Use letters and digits, without a colon in it"
        )
    if not MIN_PASSWORD_LENGTH <= len(password) <= _MAX_PASSWORD_LENGTH:
        raise UsageError(
            f"the password has fewer than {MIN_PASSWORD_LENGTH} characters"
            if len(password) < MIN_PASSWORD_LENGTH
            else f"the password has more than {_MAX_PASSWORD_LENGTH} characters",
            "Take a longer one" if len(password) < MIN_PASSWORD_LENGTH else "Take a shorter one",
        )
    users = read_users(path) if path.exists() else {}
    is_new = name not in users
    users[name] = generate_password_hash(password)
    text = "".join(f"{one}:{hashed}\n" for one, hashed in users.items())
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.touch(0o600, exist_ok=False)
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", "Name another file with --users"
        ) from error
    return is_new


def _version(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)
