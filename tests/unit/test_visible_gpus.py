"""The GPUs that CUDA offers a process, by its variable and the kernel's device files."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.devices.visible import visible_gpus

DRIVER = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null")


@pytest.mark.parametrize(
    ("files", "variable", "gpus"),
    [
        (DRIVER, None, ("0", "1")),
        (DRIVER, "1", ("1",)),
        (DRIVER, " GPU-5f , MIG-2a", ("GPU-5f", "MIG-2a")),
        (DRIVER, "1,-1,0", ("1",)),
        (DRIVER, "1,,0", ("1",)),
        (DRIVER, "", ()),
        (("dxg",), "0", ("0",)),  # Windows
        (("null",), "0", ()),
        (("null",), None, ()),
    ],
)
def test_visible_gpus(
    tmp_path: Path, files: tuple[str, ...], variable: str | None, gpus: tuple[str, ...]
) -> None:
    for name in files:
        (tmp_path / name).touch()
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible_gpus(environ, tmp_path) == gpus
    assert visible_gpus(environ, tmp_path / "absent") == ()
