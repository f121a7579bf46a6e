"""A real Docker engine on this machine, with its own socket and data, as root.

Tests marked ``docker`` use the fixture ``docker`` of ``tests/conftest.py``. Its engine is one for
the whole test run, and has the images of ``tests/support/docker_images.py``, each from its first
use on. Containers meet on the engine's own bridge unless they are given another network: the
machine's (``--network host``) or one that a test creates; there is no way out, as in all tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from tests.support.daemon import Daemon, ServerError
from tests.support.docker_images import IMAGES, LIMIT_S, Image, making
from tests.support.privileges import may_mount
from tests.support.waiting import TIMEOUT_S

#: Debian's first: its client builds as its engine can, without a plugin.
_PATH = f"/usr/bin:/usr/sbin:/usr/local/bin:{os.defpath}"
_PROGRAMS = ("dockerd", "docker", "containerd", "runc", "iptables", "ip")
#: A module: with it, images are made.
_MAKE = "tests.support.docker --all"
#: Images take 1.5 GB, those of long tests 4 GB.
_PLENTY_BYTES = 8 << 30
#: Of the engines' bridges and of the networks that tests create.
_ADDRESSES = "10.213.0.0/16"


def why_none() -> str:
    """Why no engine can start here, as far as is known without trying; "" if one may."""
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]:
        return f"{', '.join(missing)} not installed (run as root: sh tests/system_packages.sh)"
    return "" if may_mount() else "only root outside of unprivileged containers can start an engine"


class DockerEngine:
    """One engine.

    Args:
        folder: Made if it does not exist; a short path, as its socket lies in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._daemon = Daemon("dockerd", self.folder)
        self._client = self.folder / "bin" / "docker"
        # `docker0` belongs to the machine's own engine: without a named bridge this one would use
        # it, with the bridge "none" it would delete it.
        self._bridge = f"radt-{hashlib.sha256(bytes(self.folder)).hexdigest()[:8]}"

    @property
    def environ(self) -> dict[str, str]:
        """Variables by which docker's client, found by its name, asks this engine."""
        return {
            "DOCKER_HOST": f"unix://{self.folder}/docker.sock",
            "DOCKER_BUILDKIT": "1",
            "PATH": f"{self._client.parent}:{os.environ.get('PATH', os.defpath)}",
        }

    @property
    def pid(self) -> int | None:
        """The daemon's number while it is alive."""
        return self._daemon.pid

    @property
    def answers(self) -> bool:
        """Whether it takes commands."""
        return self._client.exists() and self.ask("version").returncode == 0

    def run(self, *command: str, **variables: str) -> str:
        """Run docker's client and return what it prints, without white space around it.

        Args:
            command: Its arguments; the command must succeed.
            variables: Set for it, beside the usual ones.
        """
        done = self.ask(*command, **variables)
        assert done.returncode == 0, f"docker {' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def ask(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run docker's client, which may fail."""
        return subprocess.run(
            [self._client, *command],
            env={**os.environ, **self.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )

    def have(self, image: Image) -> str:
        """Load an image unless it is there, and return its name.

        Raises:
            ServerError: It has not been made on this machine.
        """
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.ask("image", "inspect", image.tag).returncode != 0:
                expect_made([image])
                image.file.touch()  # in use
                changes = [word for change in image.changes for word in ("--change", change)]
                self.run("import", *changes, str(image.file), image.tag)
        return image.tag

    # Its life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it unless it runs, and return when it answers.

        Raises:
            ServerError: It cannot start here.
        """
        if reason := why_none():
            raise ServerError(reason)
        if self.pid is not None and self.answers:
            return
        self._client.parent.mkdir(parents=True, exist_ok=True)
        self._client.unlink(missing_ok=True)
        self._client.symlink_to(str(shutil.which("docker", path=_PATH)))
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        if psutil.virtual_memory().available > _PLENTY_BYTES and not data.is_mount():
            # Ten thousands of files, in memory: on a busy disk they take minutes.
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", data], check=False, timeout=LIMIT_S)
        self._let_containers_meet("--insert")
        _on_machine("ip", "link", "add", self._bridge, "type", "bridge")
        self._daemon.start(
            [
                *("dockerd", "--host", self.environ["DOCKER_HOST"], "--group", "root"),
                *("--data-root", str(data), "--exec-root", f"{self.folder}/exec"),
                *("--pidfile", f"{self.folder}/docker.pid", "--log-level", "warn"),
                # Rules of an engine that the machine has already stay as they are.
                *("--bridge", self._bridge, "--ip-forward=false"),
                *("--iptables=false", "--ip6tables=false"),
                *("--default-address-pool", f"base={_ADDRESSES},size=24"),
                *("--shutdown-timeout", "1"),
            ],
            {"PATH": f"{_PATH}:/sbin"},
            self.folder,
        )
        self._daemon.wait_answers(self)

    def stop(self) -> None:
        """End it and all containers, and remove all that they leave on the machine."""
        if not self.folder.exists():
            return  # it never started, maybe for want of the programs below
        if self.pid is not None and self.answers:
            containers = self.run("ps", "--all", "--quiet").split()
            self.ask("rm", "--force", "--volumes", *containers)
        self._daemon.stop()
        while left := self._processes():  # of an engine that was killed
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    pass  # it has ended meanwhile
            psutil.wait_procs(left, timeout=TIMEOUT_S)
        bridges = [self._bridge]
        networks = self.folder / "data" / "network" / "files" / "local-kv.db"
        if networks.exists():
            found = set(re.findall(rb'"id":"([0-9a-f]{12})', networks.read_bytes()))
            bridges += [f"br-{number.decode()}" for number in found]
        for bridge in bridges:
            _on_machine("ip", "link", "delete", bridge)
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            if (target := line.split()[4]).startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", target], check=True, timeout=LIMIT_S)
        self._let_containers_meet("--delete")

    def _let_containers_meet(self, change: str) -> None:
        """Insert or delete a rule: another engine may have the kernel drop what is not its own."""
        rule = f"FORWARD --source {_ADDRESSES} --destination {_ADDRESSES} --jump ACCEPT"
        note = ("--match", "comment", "--comment", self.folder.parent.name)
        _on_machine("iptables", "--wait", change, *rule.split(), *note)

    def _processes(self) -> list[psutil.Process]:
        """Those that name the folder, which shims do, and their descendants."""
        named = f"{self.folder}/exec"
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if any(named in word for word in process.info["cmdline"] or ()):
                try:
                    found += [process, *process.children(recursive=True)]
                except psutil.NoSuchProcess:
                    pass  # it has just ended
        return found


def _on_machine(program: str, *arguments: str) -> None:
    """Run a program that changes the machine's network; what is so already makes it fail."""
    command = [str(shutil.which(program, path=_PATH)), *arguments]
    subprocess.run(command, check=False, capture_output=True, timeout=LIMIT_S)


def expect_made(images: Iterable[Image]) -> None:
    """See that this machine has images; wait for those that `make test` is still making.

    Raises:
        ServerError: One is missing.
    """
    with making(fcntl.LOCK_SH):
        for image in images:
            if not image.file.exists():
                raise ServerError(f"no image {image.tag}. Run as root: {sys.executable} -m {_MAKE}")


def ran(found: Iterable[object]) -> str:
    """A line for the end of a test run: whether the group ``docker`` ran; "" if none was chosen."""
    reports = [one for one in found if isinstance(one, pytest.TestReport)]
    ours = [report for report in reports if "docker" in report.keywords]
    skipped = [report for report in ours if report.skipped]
    if skipped:
        return f"Docker: tests not run: {str(skipped[0].longrepr[2]).removeprefix('Skipped: ')}"
    count = len({report.nodeid for report in ours})
    return f"Docker: {count} tests run on an engine" if ours else ""


def make_images(*, usual_only: bool) -> None:
    """Make the images that this machine lacks, unless no engine can start here."""
    wanted = [image for image in IMAGES if image.is_usual or not usual_only]
    with making(fcntl.LOCK_EX):
        missing = [image for image in wanted if not image.file.exists()]
        if not missing:
            return
        with tempfile.TemporaryDirectory(prefix="radt-servers-") as folder:
            engine = DockerEngine(Path(folder) / "docker")
            try:
                engine.start()
            finally:
                engine.stop()
        for image in missing:
            print(f"Making the image {image.tag}, once for this machine: {image.file}", flush=True)
            image.make()


if __name__ == "__main__":
    try:
        make_images(usual_only="--all" not in sys.argv)
    except (OSError, ServerError, AssertionError, subprocess.SubprocessError) as error:
        # The tests say at their end what was not run.
        print(f"No images for tests that need Docker: {error}")
