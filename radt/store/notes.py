"""Users' notes on recorded runs: name, text, tags, a star, and whether a run is archived.

All of them are stored as tags, so that they follow a run wherever it is uploaded; MLflow shows the
text as the description and the star as a tag. The name is also the run's own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from radt.errors import UsageError
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter
from radt.tags import ARCHIVED, EDITED, MLFLOW_NOTE, MLFLOW_RUN_NAME, STARRED, YES

#: Prefixes of programs' tags, which users cannot change.
OWN_TAGS = ("radt.", "mlflow.")
MAX_NAME, MAX_TEXT, MAX_KEY = 250, 8000, 250
_NO = "no"


@dataclass(frozen=True, slots=True)
class RunNotes:
    """Notes on one run; ``tags`` are those set by the script or by users."""

    name: str
    text: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    starred: bool = False
    archived: bool = False

    @classmethod
    def of(cls, run: RunRecord, tags: Mapping[str, str]) -> Self:
        """Return the notes in a run's tags. An empty value means that a tag was removed."""
        own = {key: value for key, value in tags.items() if value and not key.startswith(OWN_TAGS)}
        return cls(
            run.name,
            tags.get(MLFLOW_NOTE, ""),
            own,
            tags.get(STARRED) == YES,
            tags.get(ARCHIVED) == YES,
        )


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of notes; None leaves a note unchanged, and an empty value removes a tag.

    Raises:
        UsageError: A text is too long, or a tag is one of radt's or MLflow's own.
    """

    name: str | None = None
    text: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    starred: bool | None = None
    archived: bool | None = None

    def __post_init__(self) -> None:
        if self.name is not None and not 0 < len(self.name.strip()) <= MAX_NAME:
            raise UsageError(
                f"Expected a name of 1 to {MAX_NAME} characters, got {len(self.name.strip())}"
            )
        texts = {"the text": self.text or "", **{f"tag {key}": v for key, v in self.tags.items()}}
        for what, value in texts.items():
            if len(value) > MAX_TEXT:
                raise UsageError(
                    f"Expected at most {MAX_TEXT:,} characters for {what}, got {len(value):,}"
                )
        for key in map(str.strip, self.tags):
            if key.startswith(OWN_TAGS) or not 0 < len(key) <= MAX_KEY:
                raise UsageError(
                    f"Expected a tag of your own, got {key[:MAX_KEY]!r}",
                    f"Names have 1 to {MAX_KEY} characters; those that begin with radt. or mlflow. "
                    "belong to these programs",
                )

    @property
    def stored(self) -> Mapping[str, str]:
        """Return the tags that store the change."""
        marks = {STARRED: self.starred, ARCHIVED: self.archived}
        texts = {MLFLOW_RUN_NAME: self.name and self.name.strip(), MLFLOW_NOTE: self.text}
        return {
            **{key.strip(): value for key, value in self.tags.items()},
            **{key: YES if mark else _NO for key, mark in marks.items() if mark is not None},
            **{key: value for key, value in texts.items() if value is not None},
        }


def read_notes(reader: StoreReader, run_id: str) -> RunNotes:
    """Return the notes of a run.

    Raises:
        RunNotFoundError: The run does not exist.
    """
    return RunNotes.of(reader.run(run_id), reader.tags(run_id))


def edit_notes(writer: StoreWriter, run_ids: Sequence[str], edit: Edit) -> None:
    """Change the notes of all these runs, or of none.

    Runs of a store in a file are uploaded again.

    Raises:
        RunNotFoundError: A run does not exist.
    """
    with writer.transaction():
        for run_id in run_ids:
            writer.update_run(run_id, **({} if edit.name is None else {"name": edit.name.strip()}))
            writer.put_tags(run_id, edit.stored)
            if writer.address.path is not None:
                writer.deliver_again(run_id)
            else:  # uploaded by `radt.delivery.notes`
                writer.put_tags(run_id, {f"{EDITED}{key}": _NO for key in edit.stored})
