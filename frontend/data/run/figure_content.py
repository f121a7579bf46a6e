"""Restrict logged figures: which attributes they may contain, and how many elements these create.

Only the attributes of this module reach the browser. Attributes that make Plotly create many
elements from few bytes (ticks, bins, contour lines, subplots) are limited, texts keep bold and line
breaks but not links or styles, and images must be embedded in the figure.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from radt.frontend.data.run.figure_extents import MAX_DEPTH, Extents, NotDrawnError, direction_of
from radt.frontend.data.run.images import MAX_PIXELS, embedded_pixels

#: Maximum number of traces, axes, annotations, buttons and other individually described elements.
_MAX_OBJECTS = 2000
_MAX_AXES = 200
_MAX_TICKS = 200
_MAX_BINS = 1000
_MAX_CONTOURS = 200
#: The smallest tile of a pattern, in pixels.
_MIN_PATTERN = 2

#: Attributes that are kept, wherever they are. Background, font and size of the figure are those of
#: the page. Attributes that animate, edit or fetch are excluded.
_NAMES = frozenset(
    """
    a aaxis active activebgcolor align alignmentgroup anchor angle annotations args args2 array
    arrayminus arrowcolor arrowhead arrowside arrowsize arrowwidth autobinx autobiny autocolorscale
    autocontour automargin autorange ax axref ay ayref b barcornerradius bargap bargroupgap barmode
    barnorm base baxis bdata bgcolor bingroup bordercolor borderpad borderwidth box boxgap
    boxgroupgap boxmean boxmode boxpoints buttons c categoryarray categoryorder cauto caxis
    clickmode cliponaxis cmax cmid cmin color coloraxis colorbar coloring colormodel colors
    colorscale colorway columns connectgaps constrain constraintext constraintoward contours
    cornerradius cumulative currentbin currentvalue customdata dash direction domain dragmode dtick
    dtype dx dy enabled end error_x error_y exponentformat family fill fillcolor fillmode
    fillpattern fixedrange font gradient grid gridcolor griddash gridwidth groupclick grouptitlefont
    height histfunc histnorm hole hoverdistance hoverformat hoverinfo hoverlabel hovermode hoveron
    hoverongaps hovertemplate hovertext ids images indentation insidetextanchor insidetextfont
    insidetextorientation itemclick itemdoubleclick itemsizing itemwidth jitter l label labelalias
    labelfont labelformat labels layer legend legendgroup legendgrouptitle legendrank legendwidth
    len lenmode line linecolor linewidth lowerfence margin marker matches max maxallowed mean
    meanline median method min minallowed minexponent minor mirror mode name namelength nbinsx
    nbinsy ncontours notched notchspan notchwidth nticks offset offsetgroup opacity operation
    orientation outliercolor outlierwidth outlinecolor outlinewidth outsidetextfont overlaying pad
    path pattern piecolorway pointpos points position prefix pull q1 q3 quartilemethod r range
    rangemode rangeslider reversescale rotation roworder rows scaleanchor scalegroup scalemode
    scaleratio sd selected selectedpoints separatethousands shape shapes shift showactive showarrow
    showdividers showexponent showgrid showlabels showlegend showline showlines showscale showspikes
    showticklabels showtickprefix showticksuffix showwhiskers side simplify size sizemin sizemode
    sizeref sizex sizey sizing sliders smoothing solidity sort source spikecolor spikedash spikemode
    spikesnap spikethickness stackgaps stackgroup standoff start startarrowhead startarrowsize
    startstandoff steps style subplot subplots subtitle suffix sum symbol symmetric t ternary text
    textangle textcase textfont textinfo textposition texttemplate thickness thicknessmode tick0
    tickangle tickcolor tickfont tickformat tickformatstops ticklabelmode ticklabeloverflow
    ticklabelposition ticklabelstep ticklen tickmode tickprefix ticks tickson ticksuffix ticktext
    tickvals tickwidth title tracegroupgap traceorder traceref tracerefminus transpose type
    uirevision uniformtext unselected updatemenus upperfence valign value valueminus values variant
    violingap violingroupgap violinmode visible waterfallgap weight whiskerwidth width x x0 x1
    xanchor xaxes xaxis xbingroup xbins xgap xhoverformat xpad xperiod xperiod0 xperiodalignment
    xref xshift xside xsizemode y y0 y1 yanchor yaxes yaxis ybingroup ybins ygap yhoverformat ypad
    yperiod yperiod0 yperiodalignment yref yshift yside ysizemode z zauto zeroline zerolinecolor
    zerolinelayer zerolinewidth zhoverformat zmax zmid zmin zorder zsmooth
    """.split()  # noqa: SIM905 - a list would take a line for each
)
#: Attributes of the layout that the page sets.
_OURS = frozenset({"font", "width", "height", "uirevision"})
#: Axes, legends and colours that can be numbered: ``xaxis2``.
_NUMBERED = re.compile(r"([xyabc]axis|coloraxis|legend|ternary)[1-9]\d{0,2}")
#: Indices in paths such as ``shapes[0].x0``, by which buttons of a figure name their targets.
_PLACES = re.compile(r"\[\d{1,4}\]")
#: Attributes with steps, and the attribute that sets their number.
_STEPPED = frozenset({"xbins", "ybins", "contours"})
_STEPS = ("start", "end", "size")
_DASHES = frozenset({"solid", "dot", "dash", "longdash", "dashdot", "longdashdot"})
_MONTHS = re.compile(r"M\d{1,3}|D[12]")
#: HTML tags other than those that Plotly draws.
_TAG = re.compile(r"<(?!/?(?:b|i|u|s|em|br|sub|sup|span|strong|extra)\s*/?>)", re.IGNORECASE)
_TAG_WITH_ATTRIBUTES = re.compile(r"<(/?[a-z]+)\s[^<>]*>", re.IGNORECASE)
_LINK = re.compile(r"</?a\s*/?>", re.IGNORECASE)


@dataclass
class FigureContent:
    """Filters the content of a figure."""

    extents: Extents
    objects: int = 0
    pixels: float = 0.0
    axes: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, traces: list[dict[str, Any]], layout: dict[str, Any]) -> dict[str, Any]:
        """Return ``data`` and ``layout`` of a figure with only the allowed content.

        Raises:
            NotDrawnError: The figure has too many elements of some kind.
        """
        extents = Extents(traces, layout)
        cleaner = cls(extents)
        content = {
            "data": cleaner.cleaned(traces),
            "layout": cleaner.cleaned({k: v for k, v in layout.items() if k not in _OURS}),
        }
        if cleaner.objects > _MAX_OBJECTS or len(cleaner.axes) > _MAX_AXES:
            raise NotDrawnError(f"A figure of {cleaner.objects:,} parts")
        if cleaner.pixels > MAX_PIXELS:
            raise NotDrawnError(f"A figure with images beyond {MAX_PIXELS / 1e6:g} million pixels")
        return content

    def cleaned(self, value: Any, name: str = "", along: str = "", depth: int = 0) -> Any:
        """Return the allowed content of an attribute's value, along x, y or neither."""
        if depth > MAX_DEPTH:
            raise NotDrawnError(f"A figure nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, list):
            if name in ("args", "args2") and len(value) > 1 and isinstance(value[0], str):
                value = [{value[0]: value[1]}, *value[2:]]  # the same, with an explicit name
            items = (self.cleaned(item, name, along, depth + 1) for item in value)
            return [item for item in items if item is not _DROPPED]
        if isinstance(value, str):
            return self._text(value, name)
        if not isinstance(value, dict):
            return value
        self.objects += 1
        if name in ("updatemenus", "sliders") and _animates(value):
            return _DROPPED
        kept = {}
        for key, item in value.items():
            *above, last = _PLACES.sub("", key).split(".")
            parents = [_base(part) for part in above]
            if not {*parents, _base(last)} <= _NAMES or not _STEPPED.isdisjoint(parents):
                continue
            if _NUMBERED.fullmatch(last):
                self.axes.add(last)
            inside = parents[-1] if parents else name
            direction = functools.reduce(direction_of, [*parents, _base(last)], along)
            if not self._is_allowed(inside, _base(last), direction, item):
                continue
            if (content := self.cleaned(item, _base(last), direction, depth + 1)) is not _DROPPED:
                kept[key] = content
        return _limited(kept, name)

    def _text(self, text: str, name: str) -> Any:
        if name in ("xaxis", "yaxis", "xaxes", "yaxes", "subplots"):
            self.axes.add(text[:20])
        if name == "bdata":
            return text
        if name == "source":
            if math.isinf(pixels := embedded_pixels(text)):
                return _DROPPED
            self.pixels += pixels
            return text
        return _TAG.sub("&lt;", _LINK.sub("", _TAG_WITH_ATTRIBUTES.sub(r"<\1>", text)))

    def _is_allowed(self, parent: str, name: str, along: str, value: Any) -> bool:
        """Return True if Plotly creates a reasonable number of elements for an attribute."""
        number = value if isinstance(value, int | float) else None
        if name == "dtick":
            if number is None:
                return isinstance(value, str) and _MONTHS.fullmatch(value) is not None
            return number > 0 and self.extents.span(along) / number <= _MAX_TICKS
        if name in ("nticks", "ncontours", "nbinsx", "nbinsy"):
            if parent == "minor":
                return False
            most = {"nticks": _MAX_TICKS, "ncontours": _MAX_CONTOURS}.get(name, _MAX_BINS)
            return number is not None and number <= most
        if parent == "grid" and name in ("rows", "columns"):
            return number is not None and 0 < number <= math.isqrt(_MAX_AXES)
        if parent in ("pattern", "fillpattern") and name == "size":
            return number is not None and number >= _MIN_PATTERN
        if name.endswith("dash"):
            return value in _DASHES
        return True


#: Sentinel for removed values.
_DROPPED = object()


def _base(name: str) -> str:
    """Return ``xaxis`` of ``xaxis2``."""
    return match[1] if (match := _NUMBERED.fullmatch(name)) else name


def _animates(menu: Mapping[str, Any]) -> bool:
    parts = [*_dicts(menu.get("buttons")), *_dicts(menu.get("steps"))]
    return any(part.get("method") == "animate" for part in parts)


def _limited(kept: dict[str, Any], name: str) -> dict[str, Any]:
    """Remove the steps of bins and contours if there are too many, or an unknown number."""
    if name not in _STEPPED:
        return kept
    most = _MAX_CONTOURS if name == "contours" else _MAX_BINS
    numbers = [value for key in _STEPS if isinstance(value := kept.get(key), int | float)]
    if len(numbers) == len(_STEPS) and numbers[2]:
        start, end, size = numbers
        if 0 <= (end - start) / size <= most:
            return kept
    return {key: value for key, value in kept.items() if key not in _STEPS}


def _dicts(items: object) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
