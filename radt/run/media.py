"""Store images, tables and texts of a script as files, one file per name and step.

The path is the index: values of ``val/samples`` are ``images/val/samples/step-100.png`` and so on,
so listing a run's artifacts finds them all. Files are never appended to or kept open; each one
appears atomically and is uploaded once, like every other artifact. Tables have the format of
MLflow's ``log_table``. Imports numpy only for arrays.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from radt.errors import UsageError
from radt.journal.values import checked_name, to_step

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: Image formats that browsers show.
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg"})

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: PNG's colour types (PNG specification, 11.2.2) by number of channels.
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
#: Tolerance for rounding errors of interpolation.
_SLACK = 1e-3
_NO_VALUE = frozenset({"<NA>", "NaT"})


def path_at(folder: str, name: str, suffix: str, step: object) -> str:
    """Return the artifact path of a value: ``images/val/samples/step-100.png``.

    Raises:
        TypeError: The name is not a string, or the step not an integer.
        UsageError: The name or the step is not valid.
    """
    checked_name(name, f"logged {folder.removesuffix('s')}")
    return stepped(f"{folder}/{name}{suffix}", step)


def stepped(file: str, step: object) -> str:
    """Return the path of a file at a step: ``a/b.txt`` at step 3 is ``a/b/step-3.txt``.

    Raises:
        TypeError: The step is not an integer.
        UsageError: The step does not fit into 64 bits.
    """
    if step is None:
        return file
    suffix = PurePosixPath(file).suffix
    return f"{file.removesuffix(suffix)}/step-{to_step(step, file)}{suffix}"


# Images ---------------------------------------------------------------------------------------


def is_plotly(image: Any) -> bool:
    """Return True for a plotly figure."""
    return hasattr(image, "to_plotly_json") and hasattr(image, "to_html")


def html_of(figure: Any) -> bytes:
    """Return a plotly figure as HTML, like MLflow's ``log_figure``. The browser renders it."""
    return str(figure.to_html(include_plotlyjs="cdn")).encode()


def png_of(image: Any) -> bytes:
    """Return an array, a tensor, a matplotlib figure or a PIL image as PNG.

    Raises:
        TypeError: ``image`` is none of these.
        UsageError: An array's shape, type or values are not those of an image.
    """
    if hasattr(image, "savefig"):  # matplotlib
        buffer = io.BytesIO()
        image.savefig(buffer, format="png")
        return buffer.getvalue()
    if hasattr(image, "save") and hasattr(image, "mode"):  # PIL
        buffer = io.BytesIO()
        plain = image.mode in ("1", "L", "LA", "P", "RGB", "RGBA")
        (image if plain else image.convert("RGB")).save(buffer, "PNG")
        return buffer.getvalue()
    if not hasattr(image, "shape"):
        raise TypeError(
            "an image must be an array, a tensor, a figure of matplotlib or plotly, a PIL image or "
            f"a path, not {type(image).__name__}"
        )
    return _png(_pixels(image))


def _pixels(image: Any) -> npt.NDArray[np.uint8]:
    """Return an image as (height, width, channels)."""
    import numpy as np

    if hasattr(image, "detach"):  # numpy has no bfloat16
        image = image.detach().cpu()
        image = image.float() if image.is_floating_point() else image
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    if pixels.ndim != 3 or pixels.shape[2] not in _COLOUR_TYPES or not pixels.size:
        first = pixels.ndim == 3 and pixels.shape[0] in _COLOUR_TYPES
        raise UsageError(
            f"an image must have the shape (height, width) or (height, width, 1, 3 or 4), not "
            f"{tuple(np.shape(image))}",
            "Move the channels last: image.permute(1, 2, 0), with numpy image.transpose(1, 2, 0)"
            if first
            else "Log one image at a time",
        )
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind != "f":
        raise UsageError(
            f"an image must be uint8 or float, not {pixels.dtype}",
            "Use image.astype('uint8') (0 to 255), with torch image.to(torch.uint8)",
        )
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= -_SLACK and high <= 1 + _SLACK):  # also with NaN
        raise UsageError(
            f"values of a float image must be from 0 to 1, not from {low:.4g} to {high:.4g}",
            "Scale it: (image - image.min()) / (image.max() - image.min())",
        )
    scaled: npt.NDArray[np.uint8] = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    return scaled


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode pixels (height, width, channels) as PNG, losslessly."""
    import numpy as np

    height, width, channels = pixels.shape
    rows = np.empty((height, 1 + width * channels), np.uint8)
    # Filter 2, "Up": each row is stored as its difference from the one above, modulo 256.
    rows[:, 0] = 2
    rows[:, 1:] = pixels.reshape(height, -1)
    rows[1:, 1:] -= pixels.reshape(height, -1)[:-1]
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return _PNG_SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


# Tables ---------------------------------------------------------------------------------------


def json_of(table: Any) -> bytes:
    """Return a DataFrame, or columns by name, as JSON: ``{"columns": […], "data": [[…], …]}``.

    Numbers, booleans, strings and None are kept, NaN becomes null, and everything else becomes
    text.

    Raises:
        TypeError: It is neither a DataFrame nor a dictionary of columns.
        UsageError: Columns differ in length, or two have the same name.
    """
    names = list(table if isinstance(table, Mapping) else getattr(table, "columns", ()))
    if not names and not isinstance(table, Mapping) and not hasattr(table, "columns"):
        raise TypeError(
            f"a table must be a DataFrame or a dictionary of columns, not {type(table).__name__}"
        )
    if len(set(map(str, names))) < len(names):
        raise UsageError("two columns of the table have one name", "Rename one of them")
    columns = [_cells(name, table[name]) for name in names]
    lengths = {str(name): len(cells) for name, cells in zip(names, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise UsageError(
            f"the columns of a table must have one length, not {lengths!s:.200}",
            "Give every column a value for each row",
        )
    content = {"columns": [str(name) for name in names], "data": list(zip(*columns, strict=True))}
    return json.dumps(content, ensure_ascii=False).encode("utf-8", errors="backslashreplace")


def _cells(name: object, values: Any) -> list[Any]:
    if hasattr(values, "tolist"):  # numpy, torch, pandas
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(
            f"column {name!r:.80} of a table must be a list of values, not {type(values).__name__}"
        )
    return [_cell(value) for value in values]


def _cell(value: Any) -> Any:
    if hasattr(value, "item") and not getattr(value, "shape", None):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    text = str(value)
    return None if text in _NO_VALUE else text
