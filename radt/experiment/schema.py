"""The columns as ``schemas/experiment.schema.json`` has them, and the checks that stand there.

It is a Table Schema (https://datapackage.org/standard/table-schema/), so that other tools can read
it. What it cannot say, such as which listeners there are, `radt.experiment.cells` and the parsers
of single columns check.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from radt.errors import UsageError

SCHEMA_NAME = "experiment.schema.json"


@dataclass(frozen=True, slots=True)
class Field:
    """What the schema says of one column.

    ``title`` is what one value of it is called; ``if_empty`` what an empty cell means, as an absent
    column does; ``missing`` are the texts that count as empty; ``max_length`` counts characters.
    """

    name: str
    title: str
    description: str
    if_empty: str
    example: str
    missing: frozenset[str]
    pattern: re.Pattern[str] | None = None
    max_length: int | None = None

    def is_missing(self, text: str) -> bool:
        """Whether a cell with this text counts as empty."""
        return text.strip().lower() in self.missing

    def check(self, text: str) -> None:
        """Hold a cell that is not empty against the constraints.

        Raises:
            UsageError: It breaks one of them.
        """
        value = text.strip()
        if self.max_length is not None and len(value) > self.max_length:
            raise UsageError(
                f"{len(value):,} characters are too many for the {self.title}",
                f"Write at most {self.max_length:,}",
            )
        if self.pattern is not None and self.pattern.fullmatch(value) is None:
            raise UsageError(f"{value!r} is no {self.title}", f"Write it like {self.example}")


@functools.cache
def fields() -> Mapping[str, Field]:
    """Every column's field by its name, in the schema's order; read once."""
    text = (resources.files("radt.schemas") / SCHEMA_NAME).read_text(encoding="utf-8")
    schema = json.loads(text)
    everywhere = schema["missingValues"]
    return {one["name"]: _field(one, everywhere) for one in schema["fields"]}


def _field(descriptor: Mapping[str, Any], missing_everywhere: list[str]) -> Field:
    constraints = descriptor.get("constraints", {})
    pattern = constraints.get("pattern")
    return Field(
        name=descriptor["name"],
        title=descriptor["title"],
        description=descriptor["description"],
        if_empty=descriptor["ifEmpty"],
        example=descriptor["example"],
        missing=frozenset(descriptor.get("missingValues", missing_everywhere)),
        pattern=None if pattern is None else re.compile(pattern),
        max_length=constraints.get("maxLength"),
    )
