"""The passwords of a stack: made up once, kept in a file that only its owner may read.

The file has the form that Docker Compose takes as ``.env``: ``NAME=value``, one a line. What is in
it stays, in its place and order; what is missing is added.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from radt.errors import StackError
from radt.stack.daemon import write_private

_LINE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$")
#: Whoever could read the file might have read it.
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Secrets:
    """All of them. Each field is a line of the file, in capital letters."""

    #: Of Postgres' superuser, ``postgres``, and of the roles (`radt.stack.services.Role`).
    stack_postgres_password: str
    stack_owner_password: str
    stack_mlflow_password: str
    stack_writer_password: str
    stack_reader_password: str
    #: Of the only user of the S3 server.
    stack_s3_secret_key: str
    #: Of MLflow's administrator, and what MLflow's forms are signed with.
    stack_mlflow_admin_password: str
    stack_mlflow_form_key: str
    #: What the dashboard asks visitors for.
    radt_dashboard_token: str

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The lines' names."""
        return tuple(field.name.upper() for field in fields(cls))

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Secrets:
        """From lines or variables.

        Raises:
            StackError: One is missing.
        """
        missing = [name for name in cls.names() if not values.get(name)]
        if missing:
            raise StackError(f"{', '.join(missing)}: not set", "`radt init-stack` makes them up")
        return cls(*(values[name] for name in cls.names()))


def keep_secrets(path: Path, more: Mapping[str, str] | None = None) -> Secrets:
    """Read the file; make up and add what is missing in it; nothing there is changed.

    Args:
        path: The file; its folder must be there.
        more: Other lines to add if there are none of these names, with values that are no secrets.

    Raises:
        StackError: The file cannot be read or written, or belongs to somebody else.
    """
    try:
        text = _read_own(path)
        values = read_values(text)
        added = {name: secrets.token_urlsafe(24) for name in Secrets.names() if name not in values}
        added |= {name: value for name, value in (more or {}).items() if name not in values}
        if added:
            gap = "" if not text or text.endswith("\n") else "\n"
            lines = "".join(f"{name}={value}\n" for name, value in added.items())
            write_private(path, text + gap + lines)
    except OSError as error:
        raise StackError(f"{path} cannot be used: {error.strerror}") from error
    return Secrets.of({**values, **added})


def read_values(text: str) -> dict[str, str]:
    """The lines of such a file; one in quotes stands without them."""
    found = {}
    for line in text.splitlines():
        if match := _LINE.match(line):
            name, value = match.groups()
            if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
                value = value[1:-1]
            found[name] = value
    return found


def _read_own(path: Path) -> str:
    try:
        status = path.stat()
    except FileNotFoundError:
        return ""
    if status.st_uid != os.geteuid() and os.geteuid() != 0:
        raise StackError(f"{path} belongs to another user", "Choose another folder")
    if status.st_mode & _OTHERS:
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return path.read_text(encoding="utf-8")
