"""The view: the user's selection and settings on all pages, as an address, as JSON and as a file.

In the browser the view is the JSON in the store ``view``, which controls change and charts follow.
The address holds the same view, so that a link, a reload or the back button restores it.

Parameters of addresses, all optional: ``s`` a pick (`radt.frontend.data.spec`; repeated), ``q`` the
search, ``e`` the experiment in focus, ``w`` the workload of the Workload page, ``id`` the run of
the Run page, ``c`` a chart (its metric, then its own settings; repeated), ``x``, ``level``,
``smooth``, ``ema``, ``robust``, ``by``, ``band``, ``rel``, ``base`` and ``mono`` for all charts,
``col`` a column of the table of runs (its key, ``~`` and a width; repeated), ``t.AXIS`` the zoom,
``o.NAME`` an option of one page. AXIS is ``over.METRIC`` for charts over another metric. Without
``s``, ``c`` or ``col`` the dashboard chooses, and chooses again as new runs start; ``s=`` and
``c=`` select nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode

from radt.errors import UsageError
from radt.frontend.data.spec import (
    MAX_CHARTS,
    MAX_TABLE_COLUMNS,
    OVER,
    AxisRange,
    BoardSpec,
    ChartSpec,
    ColumnChoice,
    Pick,
    XAxis,
    format_picks,
    parse_picks,
    with_slots,
)

FORMAT = "radt-view"
VERSION = 1
#: Maximum length of an address. A file may be four times as long.
MAX_QUERY = 60_000
_MAX_TEXT = 3_000
_MAX_OPTIONS = 40

# Names in addresses are short: links are pasted into messages.
_BOARD_NAMES = {
    "level": "level",
    "x": "x",
    "smooth": "smoothing_pct",
    "rel": "relative",
    "base": "baseline",
    "mono": "monochrome",
    "ema": "ema",
    "robust": "robust",
    "by": "group_by",
    "band": "band",
}
_CHART_NAMES = {
    "level": "level",
    "agg": "aggregate",
    "smooth": "smoothing_pct",
    "x": "x",
    "over": "over",
    "and": "second",
    "logx": "log_x",
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
    """The picks, the charts and the settings of all pages.

    If ``picks``, ``charts`` or ``columns`` is None, the dashboard chooses. ``options`` are texts by
    name, for single pages (``report.sort``). ``problems`` says which parts of the address are
    ignored.
    """

    picks: tuple[Pick, ...] | None = None
    search: str = ""
    experiment: str | None = None
    workload: str | None = None
    run: str | None = None
    charts: tuple[ChartSpec, ...] | None = None
    board: BoardSpec = field(default_factory=BoardSpec)
    windows: Mapping[str, AxisRange] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[ColumnChoice, ...] | None = None
    problems: tuple[str, ...] = ()

    # -- addresses -------------------------------------------------------------------------------

    @classmethod
    def from_query(cls, search: str | None) -> Self:
        """Parse the part of an address after ``?``; invalid parameters are ignored.

        Ignored windows are in ``problems``.
        """
        text = (search or "").lstrip("?")[:MAX_QUERY]
        pairs = parse_qsl(text, keep_blank_values=True)
        several: dict[str, list[str]] = {}
        for name, value in pairs:
            several.setdefault(name, []).append(value)
        single = {name: values[0] for name, values in several.items()}
        content: dict[str, Any] = {
            "search": single.get("q", ""),
            "experiment": single.get("e"),
            "workload": single.get("w"),
            "run": single.get("id"),
            "board": _long(single, _BOARD_NAMES),
            "windows": {n.partition(".")[2]: v for n, v in single.items() if n.startswith("t.")},
            "options": {n.partition(".")[2]: v for n, v in single.items() if n.startswith("o.")},
        }
        if "s" in several:
            content["picks"] = several["s"]
        if "c" in several:
            content["charts"] = [_chart(text) for text in several["c"]]
        if "col" in several:
            content["columns"] = several["col"]
        view = cls.from_json(content)
        problems = (
            f"“t.{axis[:80]}={window[:80]}” is ignored: expected an axis of the page and START,END"
            for axis, window in content["windows"].items()
            if axis not in view.windows
        )
        return replace(view, problems=tuple(problems))

    def to_query(self) -> str:
        """Return the part of an address after ``?``, without defaults."""
        pairs: list[tuple[str, str]] = []
        if self.picks is not None:
            pairs += [("s", text) for text in format_picks(self.picks) or [""]]
        for name, value in (
            *(("q", self.search), ("e", self.experiment)),
            *(("w", self.workload), ("id", self.run)),
        ):
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
        pairs += [("col", str(column)) for column in self.columns or ()]
        pairs += [(f"o.{name}", value) for name, value in sorted(self.options.items())]
        return urlencode(pairs, safe=",./:;=", quote_via=quote)

    # -- the page's store, and files -------------------------------------------------------------

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Parse `to_json`; invalid values are ignored."""
        picks, charts = content.get("picks"), content.get("charts")
        columns = content.get("columns")
        windows, options = content.get("windows"), content.get("options")
        board = content.get("board")
        return cls(
            picks=parse_picks(_texts(picks)) if isinstance(picks, list) else None,
            search=_text(content.get("search")) or "",
            experiment=_text(content.get("experiment")),
            workload=_text(content.get("workload")),
            run=_text(content.get("run")),
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
                str(axis)[:_MAX_TEXT]: window
                for axis, text in list(windows.items() if isinstance(windows, Mapping) else ())[
                    :MAX_CHARTS
                ]
                if (axis in list(XAxis) or str(axis).startswith(OVER))
                and (window := AxisRange.parse(str(text)))
            },
            options={
                str(name)[:_MAX_TEXT]: str(text)[:_MAX_TEXT]
                for name, text in list(options.items() if isinstance(options, Mapping) else ())[
                    :_MAX_OPTIONS
                ]
            },
            columns=tuple(map(ColumnChoice.parse, dict.fromkeys(filter(None, _texts(columns)))))[
                :MAX_TABLE_COLUMNS
            ]
            if isinstance(columns, list)
            else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return dictionaries and lists, without defaults."""
        content: dict[str, Any] = {}
        if self.picks is not None:
            content["picks"] = [str(pick) for pick in self.picks]
        for name in ("search", "experiment", "workload", "run"):
            if getattr(self, name):
                content[name] = getattr(self, name)
        if self.charts is not None:
            content["charts"] = [chart.to_json() for chart in self.charts]
        if board := self.board.to_json():
            content["board"] = board
        if self.windows:
            content["windows"] = {str(axis): str(window) for axis, window in self.windows.items()}
        if self.options:
            content["options"] = dict(self.options)
        if self.columns:
            content["columns"] = [str(column) for column in self.columns]
        return content

    def to_file(self) -> str:
        """Return the text of a saved view: selection and charts, no data."""
        content = {"format": FORMAT, "version": VERSION, **self.to_json()}
        for chart in content.get("charts", ()):
            chart.pop("slot", None)
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_file(cls, text: str) -> Self:
        """Parse `to_file`.

        Raises:
            UsageError: The file is not a saved view, or a later radt wrote it.
        """
        remedy = "Choose a file that “Save view” in the Share menu wrote"
        try:
            content = json.loads(text[: MAX_QUERY * 4])
        except (ValueError, RecursionError) as error:  # RecursionError: a million brackets
            raise UsageError(f"the file is not a saved view ({error})", remedy) from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise UsageError("the file is not a saved view", remedy)
        version = content.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise UsageError(f"version {version} is too new: a later radt wrote it", "Upgrade radt")
        return cls.from_json(content)


def _long(single: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """Replace the short names of addresses with those of JSON."""
    return {name: _value(name, single[short]) for short, name in names.items() if short in single}


def _short(content: Mapping[str, Any], names: Mapping[str, str]) -> list[tuple[str, str]]:
    pairs = []
    for short, name in names.items():
        if name in content:
            value = content[name]
            if isinstance(value, bool):
                value = "1" if value else "0"
            elif isinstance(value, list):
                value = ",".join(quote(str(item), safe="") for item in value)
            elif isinstance(value, float):
                value = f"{value:.12g}"
            pairs.append((short, str(value)))
    return pairs


def _value(name: str, text: str) -> object:
    if name in ("log", "log_x", "monochrome", "robust"):
        return text == "1"
    if name in ("smoothing_pct", "ema", "y_min", "y_max", "columns", "rows"):
        try:
            number = float(text)
        except ValueError:
            return None
        return int(number) if name in ("columns", "rows") and number.is_integer() else number
    return text


def _chart(text: str) -> dict[str, Any]:
    """Parse ``loss;x=step;log=1`` into JSON."""
    metric, *rest = text.split(";")
    single = {name: unquote(value) for name, _, value in (part.partition("=") for part in rest)}
    content = _long(single, _CHART_NAMES)
    if "hidden" in content:
        content["hidden"] = [unquote(key) for key in str(content["hidden"]).split(",") if key]
    return {"metric": unquote(metric), **content}


def _text(given: object) -> str | None:
    return given[:_MAX_TEXT] if isinstance(given, str) and given else None


def _texts(given: list[Any]) -> list[str]:
    return [text for text in given if isinstance(text, str)]
