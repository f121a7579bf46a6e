"""A powercap folder of plain files, as the kernel's: two packages with memory and cores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

UJ = 1_000_000
RANGE_UJ = 262_143 * UJ
SERVER = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "dram",
    "intel-rapl:1": "package-1",
    "intel-rapl:1:0": "dram",
    "intel-rapl:2": "psys",
    "intel-rapl-mmio:0": "package-0",
}


@dataclass(frozen=True)
class Powercap:
    """The folder; energies are set in joules."""

    root: Path

    @classmethod
    def with_zones(cls, root: Path, zones: dict[str, str], energy_j: float = 100.0) -> Powercap:
        (root / "intel-rapl").mkdir(parents=True)  # the control type: no energy of its own
        (root / "intel-rapl" / "enabled").write_text("1\n")
        powercap = cls(root)
        for folder, name in zones.items():
            (root / folder).mkdir()
            (root / folder / "name").write_text(f"{name}\n")
            (root / folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
            powercap.set(folder, energy_j)
        return powercap

    def set(self, folder: str, energy_j: float) -> None:
        (self.root / folder / "energy_uj").write_text(f"{round(energy_j * UJ)}\n")

    def vanish(self, folder: str) -> None:
        for file in (self.root / folder).iterdir():
            file.unlink()
        (self.root / folder).rmdir()
