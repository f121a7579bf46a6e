"""``radt init-stack``: the files of ``compose.yaml``'s stack in a folder, passwords made up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from radt import __version__
from radt.errors import StackError
from radt.stack.daemon import write_private
from radt.stack.secrets_file import Secrets, keep_secrets

#: Where the files lie in a checkout, as compose.yaml has it, and where elsewhere.
_IN_CHECKOUT = "radt/stack/files/"
_BESIDE = "stack/"
#: What the image is built from is the checkout, elsewhere the files alone.
_PLACES = (
    (f"context: .\n    dockerfile: {_IN_CHECKOUT}Dockerfile", "context: stack"),
    (_IN_CHECKOUT, _BESIDE),
)
_SOURCE = Path(__file__).with_name("files")
_COMPOSE = "compose.yaml"
_WITH_IT = ("Dockerfile", "Caddyfile", "direct.yaml", "mlflow_auth.ini")
ENV_FILE = ".env"
_IGNORED = (ENV_FILE, f"{ENV_FILE}.part")

_HEAD = """\
# Passwords of the servers in compose.yaml, made up by `radt init-stack`. Keep a copy in a safe
# place, and this file out of version control. Settings that may be added here:
#   RADT_BIND=127.0.0.1        address that MLflow and the dashboard listen on
#   STACK_HOST=localhost       name that other machines know this one by
#   STACK_MLFLOW_PORT=5000     STACK_DASHBOARD_PORT=8050
#   STACK_TLS=internal         or an e-mail address, for Let's Encrypt (--profile tls)
#   COMPOSE_FILE=compose.yaml:{files}direct.yaml
"""


@dataclass(frozen=True, slots=True)
class Initialised:
    """What was done: files written, files left as they were, and the passwords."""

    written: tuple[Path, ...]
    kept: tuple[Path, ...]
    secrets: Secrets


def init_stack(folder: Path) -> Initialised:
    """Write what is missing: ``compose.yaml`` with its files, and ``.env``.

    Nothing that is there is overwritten; in ``.env`` missing lines are added.

    Raises:
        StackError: A file cannot be written.
    """
    written: list[Path] = []
    kept: list[Path] = []
    env = folder / ENV_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        compose = folder / _COMPOSE
        is_checkout = (folder / _IN_CHECKOUT / "Dockerfile").exists()
        files = _IN_CHECKOUT if is_checkout else _BESIDE
        if not is_checkout:
            _copy(_COMPOSE, compose, written, kept)
            (folder / _BESIDE).mkdir(exist_ok=True)
            for name in _WITH_IT:
                _copy(name, folder / _BESIDE / name, written, kept)
        before = env.read_text(encoding="utf-8") if env.exists() else None
        if before is None:
            write_private(env, _HEAD.format(files=files))
        secrets = keep_secrets(env, {"STACK_RADT_VERSION": __version__})
        changed = before != env.read_text(encoding="utf-8")
        (written if changed else kept).append(env)
        _ignore(folder)
    except OSError as error:
        raise StackError(
            f"{error.filename or folder} cannot be written: {error.strerror}"
        ) from error
    return Initialised(tuple(written), tuple(kept), secrets)


def _copy(name: str, target: Path, written: list[Path], kept: list[Path]) -> None:
    if target.exists():
        kept.append(target)
        return
    text = (_SOURCE / name).read_text(encoding="utf-8")
    for in_checkout, beside in _PLACES:
        text = text.replace(in_checkout, beside)
    target.write_text(text, encoding="utf-8")
    written.append(target)


def _ignore(folder: Path) -> None:
    """Keep the passwords out of git."""
    file = folder / ".gitignore"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    missing = [line for line in _IGNORED if line not in text.splitlines()]
    if missing:
        gap = "" if not text or text.endswith("\n") else "\n"
        file.write_text(text + gap + "".join(f"{line}\n" for line in missing), encoding="utf-8")
