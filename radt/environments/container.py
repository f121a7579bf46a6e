"""The user, folders and variables of a container."""

from __future__ import annotations

import csv
import io
import os
import pwd
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from radt.environments.prefix import outside_links, package_folder
from radt.environments.spec import Launch
from radt.errors import EnvironmentBuildError

#: Where a container finds radt.
IMPORT_FOLDER = Path("/opt/radt")
_NOBODY = 65534
#: Variables that mean the same inside. Others describe the machine's own software (PATH, HOME,
#: LD_LIBRARY_PATH, CONDA_PREFIX …), for which the image has its own.
_PASSED = (
    *(
        "RADT_",
        "MLFLOW_",
        "CUDA_",
        "NCCL_",
        "CUBLAS_",
        "CUDNN_",
        "TORCH",
        "PYTORCH_",
        "TF_",
        "XLA_",
    ),
    *("JAX_", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "KMP_", "HF_", "WANDB_", "AWS_", "TZ"),
    *("PYTHONUNBUFFERED", "PYTHONHASHSEED", "MASTER_", "WORLD_SIZE", "RANK", "LOCAL_RANK"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
#: Folders, or files in them, that runs write to besides their own.
_MPS_FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
_BARRIER = "RADT_BARRIER"  # the socket of --sync context, in a folder of its own
_MLFLOW = "MLFLOW_TRACKING_URI"


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and groups of a container's processes."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @property
    def user(self) -> str:
        """For ``--user``."""
        return f"{self.uid}:{self.gid}"

    @property
    def name(self) -> str:
        """Its name, for libraries: the image's passwd file does not have the user."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"user{self.uid}"

    @classmethod
    def choose(
        cls, folder: Path | None, *, rootless: bool, environ: Mapping[str, str] = os.environ
    ) -> Identity:
        """Return the calling user; for root the caller of sudo, else the owner of the folder.

        Where that is root, too, it is nobody. With rootless docker it is root, as which the
        calling user appears there.
        """
        if rootless:
            return cls(0, 0)
        if os.getuid() != 0:
            gid = os.getgid()
            return cls(os.getuid(), gid, tuple(sorted({*os.getgroups()} - {gid})))
        sudo = environ.get("SUDO_UID", ""), environ.get("SUDO_GID", "")
        if all(text.isdigit() and int(text) for text in sudo):
            return cls(int(sudo[0]), int(sudo[1]))
        if folder is not None and (owner := folder.stat()).st_uid != 0:
            return cls(owner.st_uid, owner.st_gid)
        return cls(_NOBODY, _NOBODY)


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the machine inside a container."""

    source: Path
    target: Path
    writable: bool = False

    @property
    def argument(self) -> str:
        """For ``--mount``, which reads it as a line of CSV."""
        text = io.StringIO()
        fields = ["type=bind", f"source={self.source}", f"target={self.target}"]
        csv.writer(text, lineterminator="").writerow(
            fields if self.writable else [*fields, "readonly"]
        )
        return text.getvalue()


class Mounts:
    """The mounts of a container. A folder that is visible through an earlier one is not added."""

    def __init__(self) -> None:
        self.all: list[Mount] = []

    def covers(self, path: Path) -> bool:
        """Return whether a path of the machine is the same file inside."""
        return any(path.is_relative_to(mount.target) for mount in self.all)

    def add(self, path: Path, *, writable: bool = False) -> None:
        """Mount a folder at its own path; a link also at its target, as other links lead there.

        Raises:
            EnvironmentBuildError: It is not there.
        """
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise EnvironmentBuildError(
                f"docker cannot mount {path}: there is no such folder",
                "Check the row's Data and File",
            ) from error
        for target in (real, path):
            if not self.covers(target):
                self.all.append(Mount(real, target, writable))

    def add_radt(self) -> None:
        """Mount radt's package, so that scripts can import it."""
        package = package_folder()
        target = IMPORT_FOLDER / "radt"
        self.all.append(Mount(package, target))
        for name, real in outside_links(package).items():
            # A link inside, too: what it leads to must stand where it leads.
            link = Path(os.path.normpath(target / (package / name).readlink()))
            self.all.append(Mount(real, link))


def container_mounts(launch: Launch, data: Iterable[Path]) -> Mounts:
    """Return mounts of all that a run reads and writes on this machine.

    Written are the run's spool, the folder it works in and, only if the run's MLflow is a database
    there rather than a server, the folder of that. Data are read only, unless they are part of
    the folder it works in.
    """
    mounts = Mounts()
    mounts.add(launch.folder, writable=True)
    mounts.add(launch.run_dir, writable=True)
    written = [
        *(Path(text) for name in _MPS_FOLDERS if (text := launch.variables.get(name))),
        *([Path(text).parent] if (text := launch.variables.get(_BARRIER)) else []),
        *([local] if (local := _local_folder(launch.variables.get(_MLFLOW, ""))) else []),
    ]
    for path in written:
        if path.exists():
            mounts.add(path, writable=True)
    for path in data:
        mounts.add(path)
    mounts.add_radt()
    return mounts


def _local_folder(tracking_uri: str) -> Path | None:
    """Return the folder of MLflow's data if it is not on a server."""
    parts = urlsplit(tracking_uri)
    path = Path(unquote(parts.path))
    if parts.scheme == "sqlite":  # sqlite:///relative, sqlite:////absolute
        path = Path(unquote(parts.path)[1:])
        return path.parent if path.is_absolute() else None
    return path if parts.scheme in ("", "file") and path.is_absolute() else None


def passed_variables(launch: Launch, mounts: Mounts) -> list[str]:
    """Return the names of variables that a container gets from outside.

    Those that lead to something of the machine that is not visible inside stay outside.
    """
    return sorted(
        name
        for name, text in launch.variables.items()
        if name.startswith(_PASSED) and not _leads_out(text, mounts)
    )


def _leads_out(text: str, mounts: Mounts) -> bool:
    path = Path(text)
    return path.is_absolute() and not mounts.covers(path) and path.exists()


def hand_over(launch: Launch, identity: Identity) -> None:
    """Make the container's user the owner of what radt, as root, has made for the run.

    Raises:
        EnvironmentBuildError: The container could not read the script all the same.
    """
    if os.getuid() != 0 or identity.uid == 0:
        return
    barrier = launch.variables.get(_BARRIER)
    own = [
        launch.run_dir,
        *launch.run_dir.rglob("*"),
        *([Path(barrier), Path(barrier).parent] if barrier else []),
    ]
    for path in own:
        if path.exists() and path != launch.run_dir / "output.log":
            os.chown(path, identity.uid, identity.gid, follow_symlinks=False)
    status = launch.folder.stat()
    needed = 0o500 if status.st_uid == identity.uid else 0o005
    if status.st_gid == identity.gid and status.st_uid != identity.uid:
        needed = 0o050
    if status.st_mode & needed != needed:
        raise EnvironmentBuildError(
            f"user {identity.uid} cannot read {launch.folder}; the container runs as that user "
            "because radt runs as root",
            "Run radt as the owner of the folder, or let others read it",
        )
