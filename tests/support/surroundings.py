"""What tests see of the machine that they run on: as much as every machine has.

A developer's machine has Docker, conda, a GPU, a configuration of Git, a locale, a time zone and
credentials; a shell of a cluster's job has dozens of variables by which radt would join that job.
With `hide_machine`, none of it reaches a test or a process that a test starts: the environment has
only the variables below, HOME is an empty folder, and programs that radt uses where they are
installed are not on PATH. Tests that are about one of these put a stand-in there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

#: Variables that stay: where programs and libraries are found, who the user is, and what was said
#: to the test run itself.
_KEPT = frozenset(
    {
        *("PATH", "LD_LIBRARY_PATH", "TMPDIR", "USER", "LOGNAME", "SHELL"),
        *("PYTHONDONTWRITEBYTECODE", "RADT_PEER_EXAMPLES", "SEED"),
    }
)
#: Prefixes of more of them; OpenBLAS's name the processor where it recognises the wrong one.
_KEPT_PREFIXES = ("HYPOTHESIS_", "NVPL_", "OPENBLAS_", "PYTEST_", "RADT_TEST_")
#: The same on every machine. PyTorch computes with one thread: tiny models are no faster with more,
#: which spin while they wait for each other, and sums depend on the number of threads.
_FIXED = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "TERM": "xterm",
    "TZ": "UTC",
}
#: Programs that radt uses if they are installed. uv is a package of the tests: theirs counts.
_OPTIONAL = (
    *("docker", "podman", "conda", "mamba", "micromamba", "uv", "radt", "mlflow"),
    *("nvidia-smi", "nvidia-cuda-mps-control", "dcgmi", "nv-hostengine", "nsys", "ncu"),
)
#: Libraries of a GPU's driver: an empty file of this name, found first, is "not installed".
_DRIVERS = ("libnvidia-ml.so.1", "libcuda.so.1")


def hide_machine(folder: Path) -> None:
    """Leave this process, and all that it starts, no more of the machine than tests may see.

    Drivers stay visible to this process itself, which has read ``LD_LIBRARY_PATH`` long ago.

    Args:
        folder: Gets HOME and the views of PATH.
    """
    for name in list(os.environ):
        if name not in _KEPT and not name.startswith(_KEPT_PREFIXES):
            del os.environ[name]
    home, drivers = folder / "home", folder / "drivers"
    for made in (home, drivers):
        made.mkdir()
    for name in _DRIVERS:
        (drivers / name).touch()
    libraries = os.environ.get("LD_LIBRARY_PATH")
    os.environ |= _FIXED | {
        "HOME": str(home),
        "LD_LIBRARY_PATH": f"{drivers}:{libraries}" if libraries else str(drivers),
        "PATH": path_without(_OPTIONAL, os.environ.get("PATH", os.defpath), folder / "path"),
    }
    os.umask(0o022)
    time.tzset()


def path_without(hidden: tuple[str, ...], path: str, views: Path) -> str:
    """Return PATH without some programs and without this interpreter's own folder.

    A folder that has one of them is replaced by a view of it: a folder in ``views`` with links to
    all the others.
    """
    own = Path(sys.executable).parent
    kept: list[str] = []
    for entry in dict.fromkeys(path.split(os.pathsep)):
        folder = Path(entry)
        if not folder.is_absolute() or not folder.is_dir() or folder == own:
            continue
        if any((folder / name).exists() for name in hidden):
            view = views / str(len(kept))
            view.mkdir(parents=True)
            for program in folder.iterdir():
                if program.name not in hidden:
                    (view / program.name).symlink_to(program)
            folder = view
        kept.append(str(folder))
    return os.pathsep.join(kept)
