"""What an Environment cell asks for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class EnvironmentKind(StrEnum):
    """What makes the environment."""

    LOCAL = "local"
    UV = "uv"
    CONDA = "conda"
    DOCKER = "docker"


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """An environment that a run asks for; equal ones are built once.

    ``source`` is the absolute path of the file that describes it (uv, conda); ``image`` is
    docker's; ``data`` are folders that a container must see (absolute). ``volumes`` (as for
    ``docker run --volume``) and ``variables`` (a value of None: as it is outside) come from
    MLproject files.
    """

    kind: EnvironmentKind = EnvironmentKind.LOCAL
    source: Path | None = None
    image: str = ""
    data: tuple[Path, ...] = ()
    volumes: tuple[str, ...] = ()
    variables: tuple[tuple[str, str | None], ...] = ()

    def __str__(self) -> str:
        match self.kind:
            case EnvironmentKind.DOCKER:
                return f"docker:{self.image}"
            case EnvironmentKind.UV | EnvironmentKind.CONDA:
                return f"{self.kind}:{self.source.name}" if self.source else str(self.kind)
        return str(self.kind)


LOCAL = EnvironmentSpec()
