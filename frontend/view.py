"""All that the user sees but the data: the state of the pages, as an address, a page, and a file.

One `View` holds for all pages. In the browser it is the JSON in the store ``view``, which controls
change and charts follow; the address says the same, so that a link, a reload or the back button
shows the same. The file of "share" has it too.

Parameters of addresses, all optional: ``s`` what is picked (`radt.frontend.picks`, repeated), ``q``
search, ``e`` the experiment in focus, ``w`` the workload of the page Workload, ``c`` a chart (its
metric, then what is special of it; repeated), ``x``, ``level``, ``smooth``, ``rel``, ``base``,
``mono`` of all charts, ``t.AXIS`` the zoom, ``o.NAME`` what single pages keep. Without ``s`` or
``c`` the dashboard chooses, and goes on choosing as new runs come; ``s=`` and ``c=`` choose none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode

from radt.errors import UsageError
from radt.frontend.charts.spec import (
    BoardSpec,
    ChartSpec,
    Window,
    XAxis,
    with_slots,
)
from radt.frontend.picks import Pick, format_picks, parse_picks

FORMAT = "radt-view"
VERSION = 1
#: Longer addresses and files are no views.
MAX_QUERY = 60_000
_MAX_TEXT = 500
_MAX_OPTIONS = 40

# Names in addresses are short: links are pasted into messages.
_BOARD_NAMES = {
    "level": "level",
    "x": "x",
    "smooth": "smoothing_pct",
    "rel": "relative",
    "base": "baseline",
    "mono": "monochrome",
}
_CHART_NAMES = {
    "level": "level",
    "agg": "aggregate",
    "smooth": "smoothing_pct",
    "x": "x",
    "log": "log",
    "min": "y_min",
    "max": "y_max",
    "rel": "relative",
    "base": "baseline",
    "hide": "hidden",
    "cols": "columns",
    "rows": "rows",
}


@dataclass(frozen=True, slots=True)
class View:
    """What is picked, which charts, and what each page was left at.

    ``picks`` and ``charts`` None mean that the dashboard chooses. ``options`` is for pages' own
    small choices (``report.sort``), text by name.
    """

    picks: tuple[Pick, ...] | None = None
    search: str = ""
    experiment: str | None = None
    workload: str | None = None
    charts: tuple[ChartSpec, ...] | None = None
    board: BoardSpec = field(default_factory=BoardSpec)
    windows: Mapping[XAxis, Window] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    # -- addresses -------------------------------------------------------------------------------

    @classmethod
    def from_query(cls, search: str | None) -> Self:
        """Read the part of an address after ``?``; what makes no sense there is left out."""
        text = (search or "").lstrip("?")[:MAX_QUERY]
        pairs = parse_qsl(text, keep_blank_values=True)
        several: dict[str, list[str]] = {}
        for name, value in pairs:
            several.setdefault(name, []).append(value)
        single = {name: values[0] for name, values in several.items()}
        found: dict[str, Any] = {
            "search": single.get("q", ""),
            "experiment": single.get("e"),
            "workload": single.get("w"),
            "board": _long(single, _BOARD_NAMES),
            "windows": {n.partition(".")[2]: v for n, v in single.items() if n.startswith("t.")},
            "options": {n.partition(".")[2]: v for n, v in single.items() if n.startswith("o.")},
        }
        if "s" in several:
            found["picks"] = several["s"]
        if "c" in several:
            found["charts"] = [_chart(text) for text in several["c"]]
        return cls.from_json(found)

    def to_query(self) -> str:
        """The address after ``?``, with nothing in it that is the default anyway."""
        pairs: list[tuple[str, str]] = []
        if self.picks is not None:
            pairs += [("s", text) for text in format_picks(self.picks) or [""]]
        for name, value in (("q", self.search), ("e", self.experiment), ("w", self.workload)):
            if value:
                pairs.append((name, value))
        pairs += _short(self.board.to_json(), _BOARD_NAMES)
        pairs += [(f"t.{axis}", str(window)) for axis, window in self.windows.items()]
        if self.charts is not None:
            texts = [
                ";".join(
                    [
                        quote(chart.metric, safe=""),
                        *(
                            f"{name}={quote(value, safe=',.')}"
                            for name, value in _short(chart.to_json(), _CHART_NAMES)
                        ),
                    ]
                )
                for chart in self.charts
            ]
            pairs += [("c", text) for text in texts or [""]]
        pairs += [(f"o.{name}", value) for name, value in sorted(self.options.items())]
        return urlencode(pairs, safe=",./:;=", quote_via=quote)

    # -- the page's store, and files -------------------------------------------------------------

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """From `to_json`; what makes no sense is left out."""
        picks, charts = found.get("picks"), found.get("charts")
        windows, options = found.get("windows"), found.get("options")
        board = found.get("board")
        return cls(
            picks=parse_picks(_texts(picks)) if isinstance(picks, list) else None,
            search=_text(found.get("search")) or "",
            experiment=_text(found.get("experiment")),
            workload=_text(found.get("workload")),
            charts=with_slots(
                tuple(
                    spec
                    for chart in charts
                    if isinstance(chart, Mapping) and (spec := ChartSpec.from_json(chart))
                )
            )
            if isinstance(charts, list)
            else None,
            board=BoardSpec.from_json(board) if isinstance(board, Mapping) else BoardSpec(),
            windows={
                XAxis(axis): window
                for axis, text in (windows.items() if isinstance(windows, Mapping) else ())
                if axis in list(XAxis) and (window := Window.parse(str(text)))
            },
            options={
                str(name)[:_MAX_TEXT]: str(text)[:_MAX_TEXT]
                for name, text in list(options.items() if isinstance(options, Mapping) else ())[
                    :_MAX_OPTIONS
                ]
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries and lists, without what is the default."""
        found: dict[str, Any] = {}
        if self.picks is not None:
            found["picks"] = [str(pick) for pick in self.picks]
        for name in ("search", "experiment", "workload"):
            if getattr(self, name):
                found[name] = getattr(self, name)
        if self.charts is not None:
            found["charts"] = [chart.to_json() for chart in self.charts]
        if board := self.board.to_json():
            found["board"] = board
        if self.windows:
            found["windows"] = {str(axis): str(window) for axis, window in self.windows.items()}
        if self.options:
            found["options"] = dict(self.options)
        return found

    def to_file(self) -> str:
        """The text of a shared file: selection and charts, no data."""
        content = {"format": FORMAT, "version": VERSION, **self.to_json()}
        for chart in content.get("charts", ()):
            chart.pop("slot", None)
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_file(cls, text: str) -> Self:
        """From `to_file`.

        Raises:
            UsageError: It is no such file, or one of a later radt.
        """
        remedy = "Choose a file that a dashboard's Share menu saved"
        try:
            found = json.loads(text[: MAX_QUERY * 4])
        except (ValueError, RecursionError) as error:  # the latter: a million brackets
            raise UsageError(f"this is no file of a view ({error})", remedy) from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise UsageError("this is no file of a view", remedy)
        version = found.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise UsageError(f"the file is of a later radt (version {version})", "Upgrade radt")
        return cls.from_json(found)


def _long(single: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """Short names and texts as in JSON."""
    return {name: _value(name, single[short]) for short, name in names.items() if short in single}


def _short(found: Mapping[str, Any], names: Mapping[str, str]) -> list[tuple[str, str]]:
    pairs = []
    for short, name in names.items():
        if name in found:
            value = found[name]
            if isinstance(value, bool):
                value = "1" if value else "0"
            elif isinstance(value, list):
                value = ",".join(quote(str(item), safe="") for item in value)
            elif isinstance(value, float):
                value = f"{value:.12g}"
            pairs.append((short, str(value)))
    return pairs


def _value(name: str, text: str) -> object:
    if name in ("log", "monochrome"):
        return text == "1"
    if name in ("smoothing_pct", "y_min", "y_max", "columns", "rows"):
        try:
            number = float(text)
        except ValueError:
            return None
        return int(number) if name in ("columns", "rows") and number.is_integer() else number
    return text


def _chart(text: str) -> dict[str, Any]:
    """``loss;x=step;log=1`` as in JSON."""
    metric, *rest = text.split(";")
    single = {name: unquote(value) for name, _, value in (part.partition("=") for part in rest)}
    found = _long(single, _CHART_NAMES)
    if "hidden" in found:
        found["hidden"] = [unquote(key) for key in str(found["hidden"]).split(",") if key]
    return {"metric": unquote(metric), **found}


def _text(given: object) -> str | None:
    return given[:_MAX_TEXT] if isinstance(given, str) and given else None


def _texts(given: list[Any]) -> list[str]:
    return [text for text in given if isinstance(text, str)]
