"""W&B's classes for ``import radt as wandb``, recorded with radt's own functions.

`radt.log` records an `Image`, a `Table` and `Html` with `radt.Run.log_image`, `log_table` and
`log_text`. Objects that radt does not record can be created; using them causes one warning.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

from radt.errors import UsageError
from radt.run import Run
from radt.run.notices import warn_once
from radt.run.wandb_names import FUNCTIONS, PAGE, function


class _Media:
    def __init__(self, data: object = None, *_: object, **details: object) -> None:
        self.data: Any = data
        if lost := [name for name in ("boxes", "caption", "masks") if details.get(name)]:
            warn_once(f"{type(self).__name__}: radt does not record {', '.join(lost)}")

    def record(self, run: Run, name: str, step: int) -> None:
        """Record the object under a name.

        Raises:
            UsageError: radt does not record such values.
        """
        raise UsageError(f"radt has nothing like W&B's {type(self).__name__}", PAGE)


class Audio(_Media):
    """Stand-in for W&B's ``Audio``; `radt.log` ignores it with one warning."""


class Histogram(_Media):
    """Stand-in for W&B's ``Histogram``; `radt.log` ignores it with one warning."""


class Video(_Media):
    """Stand-in for W&B's ``Video``; `radt.log` ignores it with one warning."""


class Html(_Media):
    """W&B's ``Html``: a text, an open file or a path."""

    def record(self, run: Run, name: str, step: int) -> None:
        text = self.data.read() if hasattr(self.data, "read") else os.fspath(self.data)
        is_path = "<" not in text and os.path.isfile(text)  # noqa: PTH113 - may be too long for one
        run.log_text(Path(text).read_text("utf-8") if is_path else text, f"{name}.html", step)


class Image(_Media):
    """W&B's ``Image``, without caption, boxes and masks, which are not recorded.

    As in W&B, PyTorch tensors have their channels first, and values may range from 0 to 255.
    """

    def record(self, run: Run, name: str, step: int) -> None:
        run.log_image(name, _pixels(self.data), step)


def _pixels(image: Any) -> Any:
    """Convert a W&B image for `radt.Run.log_image`."""
    if hasattr(image, "permute") and image.ndim == 3:
        image = image.permute(1, 2, 0)
    kind = str(getattr(image, "dtype", ""))
    if "int" in kind and "uint8" not in kind:
        return image.astype("uint8") if hasattr(image, "astype") else image.byte()
    return image / 255 if "float" in kind and 1.001 < float(image.max()) <= 255 else image


class Table(_Media):
    """W&B's ``Table``. Images in it are recorded next to it.

    Args:
        columns: Names of the columns.
        data: The rows, or a DataFrame.
        rows: The rows.
        dataframe: A DataFrame.
        **details: Other arguments of W&B, without effect.
    """

    def __init__(
        self,
        columns: Sequence[Any] | None = None,
        data: Any = None,
        rows: Any = None,
        dataframe: Any = None,
        **details: object,
    ) -> None:
        super().__init__([], **details)
        given: Any = next((each for each in (dataframe, data, rows) if each is not None), ())
        if hasattr(given, "columns"):
            columns, given = list(given.columns), given.to_numpy().tolist()
        self.columns = list(("Input", "Output", "Expected") if columns is None else columns)
        for row in given:
            self.add_data(*row)

    def add_data(self, *row: object) -> None:
        """Add a row.

        Raises:
            UsageError: The number of values differs from the number of columns.
        """
        if len(row) != len(self.columns):
            raise UsageError(f"Expected a value for each of {self.columns}, got {len(row)} values")
        self.data.append(list(row))

    def add_column(self, name: str, data: Iterable[object]) -> None:
        """Add a column, with a value for each row."""
        values = list(data)
        if not self.data:
            self.columns, self.data = [], [[] for _ in values]
        for row, value in zip(self.data, values, strict=True):
            row.append(value)
        self.columns.append(name)

    def get_column(self, name: str) -> list[Any]:
        """Return the values of a column."""
        return [row[self.columns.index(name)] for row in self.data]

    def record(self, run: Run, name: str, step: int) -> None:
        columns = {column: self.get_column(column) for column in self.columns}
        for column, cells in columns.items():
            for row, value in enumerate(cells):
                if isinstance(value, Image):
                    cells[row] = f"{name}/{column}/{row}"
                    value.record(run, cells[row], step)
                elif isinstance(value, _Media):
                    warn_once(f"{name!r:.80}: a table has no {type(value).__name__}, only its type")
                    cells[row] = type(value).__name__
        run.log_table(name, columns, step)


class Artifact:
    """W&B's ``Artifact``: files that `radt.Run.log_artifact` records in a folder of the same name.

    Versions, aliases and metadata are not recorded.
    """

    def __init__(self, name: str, type: str = "", **others: object) -> None:  # noqa: A002 - W&B's
        self.name, self.type = name, type
        self.files: list[tuple[str | os.PathLike[str], str]] = []
        if others.get("metadata") or others.get("description"):
            warn_once("Artifact: radt does not record metadata and description; use tags")

    def add_file(self, local_path: str | os.PathLike[str], name: str = "", **_: object) -> None:
        """Add a file. A file with another name here is put into a folder of that name."""
        path = PurePosixPath(self.name, name)
        is_renamed = path.name != Path(local_path).name
        self.files.append((local_path, str(path if is_renamed else path.parent)))

    def add_dir(self, local_path: str | os.PathLike[str], name: str = "", **_: object) -> None:
        """Add a folder."""
        self.files.append((local_path, str(PurePosixPath(self.name, name))))

    def add_reference(self, uri: str, *_: object, **__: object) -> None:
        """Accept a reference, and warn that it is not recorded."""
        warn_once(f"Artifact: the reference {uri!r:.200} is not recorded; use a tag")


def _drawn(name: str) -> type[_Media]:
    return type(name, (_Media,), {})


class _Plots:
    """W&B's ``plot``: records the table of a chart."""

    def __getattr__(self, name: str) -> Callable[..., _Media]:
        if name.startswith("_"):
            raise AttributeError(name)

        def chart(*args: object, **kwargs: object) -> _Media:
            tables = (each for each in (*args, *kwargs.values()) if isinstance(each, Table))
            if (table := next(tables, None)) is None:
                return _drawn(f"plot.{name}")()
            warn_once(f"plot.{name}: the table is recorded, not its chart")
            return table

        return chart


_OTHERS: dict[str, object] = {
    "AlertLevel": SimpleNamespace(INFO="INFO", WARN="WARN", ERROR="ERROR"),
    "Plotly": Image,
    "Settings": SimpleNamespace,
    "plot": _Plots(),
    "plot_table": _Plots().plot_table,
    "util": SimpleNamespace(generate_id=lambda length=8: uuid.uuid4().hex[:length]),
    **{name: _drawn(name) for name in ("Classes", "Graph", "Molecule", "Object3D", "box3d")},
}


def of_module(name: str) -> Any:
    """Return the substitute for a name of W&B's module that radt itself lacks.

    Raises:
        AttributeError: There is none.
    """
    if name in _OTHERS:
        return _OTHERS[name]
    if name in FUNCTIONS:
        return function(name)
    raise AttributeError(f"module 'radt' has no attribute {name!r}. {PAGE}")
