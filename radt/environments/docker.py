"""Environments that are docker images: each run is a container that sees only necessary files.

A container shares the machine's namespaces, so that radt can measure and communicate:

- ``--pid host``: process ids in journals, in NVML and in ``/proc`` are the machine's, so the
  collector attributes load and memory to the run as usual, and MPS clients can be found.
- ``--ipc host``: shared memory beyond docker's 64 MB, which workers of a DataLoader need, and the
  memory that MPS shares between its clients and its daemon.
- ``--network host``: a tracking server, or other ranks, at 127.0.0.1 are reachable as from local
  runs.

There is no ``--init``: processes in the machine's PID namespace have the usual signal handling, and
docker's shim waits for orphans. A container is never root, unless docker itself runs as the user
(rootless), whose root is the user. Secrets stay hidden: the command only names variables, and
docker takes their values from its own environment.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pwd
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from radt import units
from radt.environments.cache import (
    HOOK,
    CachedContent,
    cache_folder,
    importable_folder,
    obtain,
    outside_links,
    package_folder,
    warn_if_old,
)
from radt.environments.spec import BuiltEnvironment, EnvironmentSpec, Launch, ProgramEnd
from radt.environments.tool import BuildReport, run_tool
from radt.errors import EnvironmentBuildError
from radt.home import OWN_TOTALS_VARIABLE, RUN_ID_VARIABLE
from radt.packages import LIST_PACKAGES
from radt.paths import may_exist, sqlite_file

#: Path of radt in a container.
IMPORT_FOLDER = Path("/opt/radt")
_NOBODY = 65534
#: Variables that mean the same inside. Others describe the machine's own software (PATH, HOME,
#: LD_LIBRARY_PATH, CONDA_PREFIX …), for which the image has its own values.
_PASSED = (
    *("RADT_", "MLFLOW_", "CUDA_", "NCCL_", "CUBLAS_", "CUDNN_", "TORCH", "PYTORCH_", "XLA_"),
    # TensorFlow's. TF_ alone would include Terraform's and OpenTofu's, which may be secret.
    *("TF_AUTOTUNE_", "TF_CONFIG", "TF_CPP_", "TF_CUBLAS_", "TF_CUDA", "TF_CUDNN_", "TF_GPU_"),
    *("TF_DETERMINISTIC_", "TF_DISABLE_", "TF_ENABLE_", "TF_FORCE_GPU_", "TF_FORCE_UNIFIED_"),
    *("TF_KERAS", "TF_NUM_", "TF_PROFILER_", "TF_TRT_", "TF_USE_", "TF_XLA_", "TF2_"),
    *("JAX_", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "KMP_", "HF_", "WANDB_", "AWS_", "TZ"),
    *("PYTHONUNBUFFERED", "PYTHONHASHSEED", "MASTER_", "WORLD_SIZE", "RANK", "LOCAL_RANK"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
#: Folders, or folders of files, that runs write to besides their own.
_MPS_FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
_BARRIER = "RADT_BARRIER"  # the socket of --sync context, in a separate folder
_MLFLOW = "MLFLOW_TRACKING_URI"
#: Permission bits for others in the mode of a file.
_READ, _WRITE, _SEARCH = 0o4, 0o2, 0o1


@dataclass(frozen=True, slots=True)
class ContainerIdentity:
    """The user and groups of a container's processes."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @property
    def user(self) -> str:
        """Return the argument of ``--user``."""
        return f"{self.uid}:{self.gid}"

    @property
    def name(self) -> str:
        """Return a user name for libraries: the image's passwd file lacks the user."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"user{self.uid}"

    def may(self, permissions: int, path: Path) -> bool:
        """Return whether the mode of a file gives this user the permissions."""
        status = path.stat()
        shift = 3 if status.st_gid in (self.gid, *self.groups) else 0
        shift = 6 if status.st_uid == self.uid else shift
        return self.uid == 0 or (status.st_mode >> shift) & permissions == permissions

    @classmethod
    def choose(
        cls, folder: Path | None, *, rootless: bool, environ: Mapping[str, str] = os.environ
    ) -> ContainerIdentity:
        """Return the calling user; for root, the caller of sudo, or else the owner of the folder.

        If that is also root, use nobody. With rootless docker, use root, which is the calling user
        there.
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
        """Return the argument of ``--mount``, which docker parses as a line of CSV."""
        text = io.StringIO()
        fields = ["type=bind", f"source={self.source}", f"target={self.target}"]
        csv.writer(text, lineterminator="").writerow(
            fields if self.writable else [*fields, "readonly"]
        )
        return text.getvalue()


class Mounts:
    """The mounts of a container. A folder that is visible through an earlier mount is skipped."""

    def __init__(self) -> None:
        self.all: list[Mount] = []

    def covers(self, path: Path) -> bool:
        """Return whether a path is the same file inside as on the machine."""
        return any(path.is_relative_to(mount.target) for mount in self.all)

    def add(self, path: Path, *, writable: bool = False) -> None:
        """Mount a folder at its own path; for a link also its target, which other links may name.

        Raises:
            EnvironmentBuildError: The folder does not exist.
        """
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise EnvironmentBuildError(
                f"docker cannot mount {path}: {getattr(error, 'strerror', error)}",
                "Check the row's Data and File",
            ) from error
        for target in (real, path):
            if not self.covers(target):
                self.all.append(Mount(real, target, writable))

    def add_radt(self) -> None:
        """Mount radt's package, so that scripts and MLflow's plug-in loader can import it."""
        self.all.append(Mount(importable_folder(cache_folder()) / HOOK, IMPORT_FOLDER / HOOK))
        package, target = package_folder(), IMPORT_FOLDER / "radt"
        self.all.append(Mount(package, target))
        for name, real in outside_links(package).items():
            # It is a link inside, too: its target must exist at the same path.
            link = Path(os.path.normpath(target / (package / name).readlink()))
            self.all.append(Mount(real, link))


def container_mounts(launch: Launch, data: Iterable[Path]) -> Mounts:
    """Return mounts of everything that a run reads and writes on this machine.

    The run's spool, its working folder and the folder of a local MLflow database are writable. Data
    are read-only, unless they are in the working folder.
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
        if os.access(path, os.F_OK):
            mounts.add(path, writable=True)
    for path in data:
        mounts.add(path)
    mounts.add_radt()
    return mounts


def _local_folder(tracking_uri: str) -> Path | None:
    """Return the folder of MLflow's data if it is not on a server."""
    if file := sqlite_file(tracking_uri):
        return file.parent if file.is_absolute() else None
    parts = urlsplit(tracking_uri)
    path = Path(unquote(parts.path))
    return path if parts.scheme in ("", "file") and path.is_absolute() else None


def passed_variables(launch: Launch, mounts: Mounts) -> list[str]:
    """Return the names of variables to pass into a container.

    Variables with paths that are not visible inside are excluded.
    """
    return sorted(
        name
        for name, text in launch.variables.items()
        if name.startswith(_PASSED) and name != RUN_ID_VARIABLE and not _leads_out(text, mounts)
    )


def _leads_out(text: str, mounts: Mounts) -> bool:
    path = Path(text)
    return path.is_absolute() and not mounts.covers(path) and may_exist(path)


def hand_over(launch: Launch, identity: ContainerIdentity) -> None:
    """Make the container's user the owner of files that radt, as root, has created for the run.

    A data folder in a folder of that user becomes the user's, with MLflow's local database.

    Raises:
        EnvironmentBuildError: The container could still not read the script, or import radt.
    """
    if os.getuid() != 0 or identity.uid == 0:
        return
    home, barrier = launch.home, launch.variables.get(_BARRIER)
    own = [launch.run_dir, *launch.run_dir.rglob("*")]
    if barrier:
        own += [Path(barrier), Path(barrier).parent]
    if home.parent.stat().st_uid == identity.uid:
        own += [home, *home.iterdir()]
        if run := launch.variables.get("MLFLOW_RUN_ID"):
            artifacts = home / "artifacts" / run / "artifacts"  # before the uploader creates it
            artifacts.mkdir(parents=True, exist_ok=True)
            own += [artifacts.parent, artifacts]
    else:
        # Others may only pass through; each run's folder is private to its user.
        launch.run_dir.parent.chmod(launch.run_dir.parent.stat().st_mode | 0o011)
    for path in {*own} - {launch.run_dir / "output.log"}:
        with suppress(FileNotFoundError):  # SQLite may have removed its journal meanwhile
            os.chown(path, identity.uid, identity.gid, follow_symlinks=False)
    for folder in (launch.folder, package_folder()):
        if not identity.may(_READ | _SEARCH, folder):
            raise EnvironmentBuildError(
                f"user {identity.uid} cannot read {folder}; the container runs as that user "
                "because radt runs as root",
                "Run radt as the owner of the folder, or let others read it",
            )


def _unwritable(launch: Launch, identity: ContainerIdentity) -> list[Path]:
    """Return places where a script expects to write but the container's user cannot."""
    uri = launch.variables.get(_MLFLOW, "")
    places = (launch.folder, sqlite_file(uri) or _local_folder(uri))
    present = [place for place in places if place is not None and os.access(place, os.F_OK)]
    return [place for place in present if not identity.may(_WRITE, place)]


#: Labels that identify radt's containers, for `docker ps --filter`.
LABEL_RUN = "radt.run"
LABEL_HOME = "radt.home"
_INSTALL = "https://docs.docker.com/engine/install/"
_SIGNALLED = 128
#: Exit code of docker itself, if it could not start the container.
_NOT_STARTED = 125
#: Where docker's client writes the container's id, in the run's folder.
_ID_FILE = "container"
_FACTS = "facts.json"
_MARK = "radt-python:"
#: Prints the version of the image's Python, then runs a program in it.
_PROBE = (
    'python="$(command -v python || command -v python3)"; '
    f'echo "{_MARK}$python"; [ -z "$python" ] || exec "$python" -c "$1"'
)


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Facts about an image, from starting it once.

    ``python`` is empty if it has none. ``reset_entrypoint``: its entry point does not start the
    given command (``ENTRYPOINT ["python"]``) and must be overridden.
    """

    python: str = ""
    packages: str = ""
    reset_entrypoint: bool = False


@dataclass(frozen=True, slots=True)
class DockerEnvironment(BuiltEnvironment):
    """An image on this machine. ``image_id`` is the id of the name at the time of its look-up."""

    spec: EnvironmentSpec
    packages: str
    interpreter: Path | None  # None: not on this machine
    docker: str
    image_id: str
    facts: ImageFacts
    search_path: str
    rootless: bool
    remapped: bool

    def prepare(self, launch: Launch, say: Callable[[str], None]) -> None:
        identity = self._identity(launch)
        (launch.run_dir / _ID_FILE).unlink(missing_ok=True)  # docker refuses to overwrite it
        hand_over(launch, identity)
        if places := " and ".join(map(str, _unwritable(launch, identity))):
            say(
                f"the container runs as user {identity.uid}, who cannot write to {places}: "
                "let that user write there, or run radt as the owner"
            )

    def command(self, launch: Launch) -> list[str]:
        if launch.needs_python and not self.facts.python:
            raise EnvironmentBuildError(
                f"{self.spec.image} has no Python to run {launch.arguments[0]} with",
                "Choose an image that has one, such as docker:python:3.12",
            )
        identity = self._identity(launch)
        mounts = container_mounts(launch, self.spec.data)
        python_path = f"{IMPORT_FOLDER}{':' if self.search_path else ''}{self.search_path}"
        return [
            *(self.docker, "run", "--rm", "--pull", "never", "--name", container_name(launch)),
            *("--label", f"{LABEL_RUN}={launch.run_id}", "--label", f"{LABEL_HOME}={launch.home}"),
            *("--cidfile", str(launch.run_dir / _ID_FILE)),
            *("--user", identity.user),
            *(f"--group-add={group}" for group in identity.groups),
            *("--pid", "host", "--ipc", "host", "--network", "host"),
            # The machine's namespaces cannot be combined with remapped user ids.
            *(("--userns", "host") if self.remapped else ()),
            *("--workdir", str(launch.folder)),
            *(word for mount in mounts.all for word in ("--mount", mount.argument)),
            *(word for volume in self.spec.volumes for word in ("--volume", volume)),
            *(word for name in passed_variables(launch, mounts) for word in ("--env", name)),
            # Caches of libraries need a folder: the image has no home for this user.
            *("--env", "HOME=/tmp", "--env", f"USER={identity.name}"),
            *("--env", f"{RUN_ID_VARIABLE}={launch.run_id}", "--env", f"{OWN_TOTALS_VARIABLE}=1"),
            *("--env", f"LOGNAME={identity.name}", "--env", f"PYTHONPATH={python_path}"),
            *(word for setting in self._settings() for word in ("--env", setting)),
            *self._resources(launch),
            *(("--entrypoint", "") if self.facts.reset_entrypoint else ()),
            self.image_id,
            *((self.facts.python,) if launch.needs_python else ()),
            *launch.arguments,
        ]

    def variables(self, launch: Launch) -> dict[str, str]:
        """Return variables for docker's client, which passes them on.

        Inside, only the chosen GPUs exist, numbered from 0. The client itself is not one of the
        run's processes and therefore lacks the run's id.
        """
        uuids = launch.gpu_uuids
        inside = uuids if all("-" in uuid for uuid in uuids) else map(str, range(len(uuids)))
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(inside)} if uuids else {}
        return {RUN_ID_VARIABLE: "", **gpus}

    def container(self, launch: Launch) -> str:
        return container_name(launch)

    def kill_command(self, launch: Launch) -> list[str] | None:
        """Return a command that removes the container, even one that docker was about to start."""
        return [self.docker, "rm", "--force", container_name(launch)]

    def ended(self, launch: Launch, code: int) -> ProgramEnd:
        """Translate the client's exit code, which is 128 + signal if a signal ended the program.

        125 is the client's own: the container could not be started.
        https://docs.docker.com/engine/containers/run/#exit-status
        """
        is_signal = _SIGNALLED < code <= _SIGNALLED + signal.NSIG
        try:
            container = (launch.run_dir / _ID_FILE).read_text(encoding="ascii").strip()
        except OSError:  # the container was not created
            container = ""
        return ProgramEnd(_SIGNALLED - code if is_signal else code, container)

    def _identity(self, launch: Launch) -> ContainerIdentity:
        return ContainerIdentity.choose(launch.folder, rootless=self.rootless)

    def _settings(self) -> list[str]:
        """Return ``docker_env.environment`` of an MLproject file; its values are not secret."""
        return [name if text is None else f"{name}={text}" for name, text in self.spec.variables]

    def _resources(self, launch: Launch) -> list[str]:
        cpus = ",".join(map(str, sorted(launch.cpus))) if launch.cpus is not None else ""
        own = ["--cpuset-cpus", cpus] if cpus else []
        if (limit := launch.memory_bytes) is not None:  # no swap: it would distort measurements
            own += [f"--memory={limit}", f"--memory-swap={limit}"]
        if launch.gpu_uuids:
            # Quoted, because docker parses it as a line of CSV, where a comma begins an option.
            return [*own, "--gpus", f'"device={",".join(launch.gpu_uuids)}"']
        # Images may request all GPUs, which NVIDIA's runtime grants if it is the default.
        return [*own, "--env", "NVIDIA_VISIBLE_DEVICES=void"]


def container_name(launch: Launch) -> str:
    """Return the name of a run's container."""
    return f"radt-{launch.run_id}"


def build_docker(spec: EnvironmentSpec, report: BuildReport) -> DockerEnvironment:
    """Return the environment of an image, pulling it if necessary.

    Raises:
        EnvironmentBuildError: Docker is missing or not permitted, or the image does not exist.
    """
    docker = shutil.which("docker")
    if docker is None:
        raise EnvironmentBuildError("docker is not installed", f"See {_INSTALL}", str(report.log))
    security = _security(docker, report)
    image = _inspect(docker, spec.image, report) or _pull(docker, spec.image, report)
    image_id, config = str(image["Id"]), image.get("Config") or {}
    rootless = "name=rootless" in security
    content = CachedContent("docker image")
    content.add(image_id)
    folder = obtain(
        content.key(),
        lambda folder, _: _probe(
            docker,
            image_id,
            ContainerIdentity.choose(None, rootless=rootless),
            folder / _FACTS,
            report,
        ),
        report,
    )
    facts = ImageFacts(**json.loads((folder / _FACTS).read_text(encoding="utf-8")))
    warn_if_old(facts.packages, report)
    settings = dict(str(entry).partition("=")[::2] for entry in config.get("Env") or [])
    return DockerEnvironment(
        spec=spec,
        packages=facts.packages,
        interpreter=None,
        docker=docker,
        image_id=image_id,
        facts=facts,
        search_path=settings.get("PYTHONPATH", ""),
        rootless=rootless,
        remapped="name=userns" in security,
    )


def _security(docker: str, report: BuildReport) -> frozenset[str]:
    """Return the daemon's security options, which also checks this user's access."""
    answer = run_tool([docker, "info", "--format", "{{json .SecurityOptions}}"], report)
    try:
        options = json.loads(answer.output) or []
    except ValueError:
        options = None
    if answer.code == 0 and isinstance(options, list):
        return frozenset(part for option in options for part in str(option).split(","))
    if "permission denied" in answer.complaint:
        raise report.failed(
            f"this user may not use docker: {answer.complaint}",
            "Run `sudo usermod -aG docker $USER` and log in again, or use rootless docker",
        )
    raise report.failed(
        f"the docker daemon does not answer: {answer.complaint}",
        "Start it: `sudo systemctl start docker`",
    )


def _inspect(docker: str, image: str, report: BuildReport) -> dict[str, Any] | None:
    """Return docker's description of a local image; None if there is none."""
    answer = run_tool([docker, "image", "inspect", "--format", "{{json .}}", image], report)
    if answer.code != 0:
        return None
    description = json.loads(answer.output)
    return description if isinstance(description, dict) else None


def _pull(docker: str, image: str, report: BuildReport) -> dict[str, Any]:
    started_s = time.monotonic()
    report.say(f"pulling {image}")
    answer = run_tool([docker, "pull", image], report)
    if answer.code != 0:
        full = "no space left" in answer.complaint.lower()
        raise report.failed(
            f"{image} could not be pulled:\n{answer.complaint}",
            "Free space where docker keeps its images (`docker system df`)"
            if full
            else "Check its name, and `docker login` if it is private",
        )
    description = _inspect(docker, image, report)
    if description is None:
        raise report.failed(f"docker reported success, but has no image {image}")
    report.say(f"pulled {image} in {units.duration(time.monotonic() - started_s)}")
    return description


def _probe(
    docker: str, image: str, identity: ContainerIdentity, file: Path, report: BuildReport
) -> None:
    """Start the image to read its facts: first through its entry point, then without.

    An entry point that starts the given command is kept: some images only then have their Python on
    PATH.
    """
    facts = ImageFacts(reset_entrypoint=True)
    for reset in (False, True):
        answer = run_tool(
            [
                *(docker, "run", "--rm", "--pull", "never", "--network", "none"),
                *("--user", identity.user, "--env", "NVIDIA_VISIBLE_DEVICES=void"),
                *(("--entrypoint", "") if reset else ()),
                *(image, "sh", "-c", _PROBE, "probe", LIST_PACKAGES),
            ],
            report,
        )
        _, mark, rest = answer.output.partition(_MARK)
        python, _, packages = rest.partition("\n")
        if mark and answer.code == 0:
            facts = ImageFacts(python.strip(), packages.strip() + "\n" if packages else "", reset)
            break
    else:
        if answer.code == _NOT_STARTED:  # the next start tries again
            raise report.failed(f"docker could not start the image: {answer.complaint}")
    file.write_text(json.dumps(asdict(facts)), encoding="utf-8")
