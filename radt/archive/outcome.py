"""What the process that writes archives says of each run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Outcome:
    """``problem`` is empty if the archive is up to date; ``final``: no later try will do better."""

    run_id: str
    problem: str = ""
    final: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, line: str) -> Self:
        """
        Raises:
            ValueError: It is something else.
        """
        try:
            return cls(**json.loads(line))
        except TypeError as error:
            raise ValueError(f"{line!r} is no outcome") from error
