"""Read a plotly figure from an HTML file of plotly's ``write_html``, which MLflow uses, too.

The file ends with ``Plotly.newPlot("id", [traces], {layout}, …)``, whose arguments are JSON: they
are parsed, and nothing in the file is executed. The content sent to the browser is limited
(`radt.frontend.data.run.figure_content`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from radt.frontend.data.run.figure_content import FigureContent
from radt.frontend.data.run.figure_extents import NotDrawnError

#: Traces that the dashboard's part of Plotly draws (``vendor/README.md``).
TRACES = frozenset(
    {
        *("scatter", "scatterternary", "bar", "pie", "box", "violin", "histogram", "image"),
        *("heatmap", "contour", "histogram2d", "histogram2dcontour"),
    }
)
#: Trace types that are replaced by an equivalent without WebGL.
_SAME = {"scattergl": "scatter"}
#: A larger figure would keep a browser busy for seconds.
MAX_BYTES = 2 * 2**20

_PLACE = 'class="plotly-graph-div"'
_CALL = re.compile(r'Plotly\.newPlot\(\s*"[^"\\]*"\s*,\s*')
_COMMA = re.compile(r"\s*,\s*")
_NUMBERS = json.JSONDecoder(parse_constant=lambda _: None)


@dataclass(frozen=True, slots=True)
class LoggedFigure:
    """A figure: ``json`` has its ``data`` and ``layout``; or a note why it is not drawn."""

    json: str = ""
    note: str = ""


def figure_of(html: str) -> LoggedFigure | None:
    """Return the figure of a file, None if it has none."""
    call = _CALL.search(html, place) if (place := html.rfind(_PLACE)) >= 0 else None
    if call is None:
        return None
    try:
        data, end = _NUMBERS.raw_decode(html, call.end())
        comma = _COMMA.match(html, end)
        layout, end = _NUMBERS.raw_decode(html, comma.end() if comma else end)
        if not isinstance(layout, dict) or not _are_traces(data):
            return None
        if end - call.end() > MAX_BYTES:
            return LoggedFigure(
                note=f"A figure of {(end - call.end()) / 1e6:.1f} MB is not drawn here"
            )
        unknown = {kind for trace in data if (kind := _kind(trace)) not in TRACES}
        if unknown:
            names = ", ".join(sorted(unknown))[:100]
            return LoggedFigure(note=f"The dashboard does not draw traces of type {names}")
        traces = [trace | {"type": _kind(trace)} for trace in data]
        return LoggedFigure(json.dumps(FigureContent.of(traces, layout), allow_nan=False))
    except NotDrawnError as error:
        return LoggedFigure(note=f"{error} is not drawn here")
    except (ValueError, OverflowError, RecursionError):
        return None


def _are_traces(data: object) -> bool:
    return isinstance(data, list) and all(
        isinstance(trace, dict) and isinstance(trace.get("type", ""), str) for trace in data
    )


def _kind(trace: dict[str, Any]) -> str:
    kind = str(trace.get("type", "scatter"))
    return _SAME.get(kind, kind)
