"""Virtual environments of the peers, created once under ``.venv-bench`` and reused."""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".venv-bench"


def peer_python(name: str, requirements: Sequence[str]) -> Path:
    """Return the interpreter of a peer's own environment, installed on the first call.

    Raises:
        subprocess.CalledProcessError: The installation failed; pip's output says why.
    """
    folder = FOLDER / name
    python = folder / "bin" / "python"
    stamp = folder / "requirements.txt"
    wanted = "\n".join(requirements)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {name} into {FOLDER.name}/{name} …", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return python
