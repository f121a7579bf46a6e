"""Colours of runs and workloads, and the look of Plotly's figures.

A run has the same colour on every page and for every user: it follows from the run's index within
its experiment (`radt.frontend.data.catalog.tint`), unless one of only a few lines already has it.
The eight colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which people with
any kind of colour vision can distinguish. Further lines differ by their dashes. All have a contrast
of at least 3:1 against the paper (WCAG 2.2, 1.4.11). ``static/core.css`` has the rest of the look:
the eight-pixel grid, the system's own font, one accent colour. Nothing is fetched from other
servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Scheme(StrEnum):
    """Colour scheme of the page."""

    LIGHT = "light"
    DARK = "dark"


# The published hues. Light ones are darkened for contrast on white, black is lightened on dark
# paper.
_HUES = {
    Scheme.LIGHT: (
        "#0072b2",  # blue
        "#c47a00",  # orange
        "#00946b",  # bluish green
        "#c0629a",  # reddish purple
        "#2b93cc",  # sky blue
        "#d55e00",  # vermillion
        "#938600",  # yellow
        "#3d4248",  # black
    ),
    Scheme.DARK: (
        "#3a95d0",
        "#e69f00",
        "#0cb488",
        "#d68bb5",
        "#7cc8f2",
        "#e8702a",
        "#e6da4a",
        "#c9ced6",
    ),
}
HUE_COUNT = 8

#: Plotly's names of dashes, for lines of the same colour and for print.
DASHES = ("solid", "7px,3px", "2px,3px", "9px,3px,2px,3px", "12px,4px", "5px,3px,2px,3px,2px,3px")


def colour(place: int, scheme: Scheme) -> str:
    """Return the colour ``#rrggbb`` at an index (from 0) among the hues, which repeat."""
    return _HUES[scheme][place % HUE_COUNT]


def inks(count: int, scheme: Scheme) -> Sequence[str]:
    """Return distinguishable greys for print, the darkest first."""
    near, far = ("#111111", "#767676") if scheme is Scheme.LIGHT else ("#f2f2f2", "#8a8a8a")
    return [_mixed(near, far, index / max(count - 1, 1)) for index in range(max(count, 1))]


def translucent(hex_colour: str, opacity: float) -> str:
    """Return the colour as ``rgba(…)``, for bands and hairlines."""
    red, green, blue = _channels(hex_colour)
    return f"rgba({red},{green},{blue},{opacity:g})"


def contrast(foreground: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    lighter, darker = sorted((_luminance(foreground), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(hex_colour: str) -> float:
    linear = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in _channels(hex_colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(hex_colour: str) -> tuple[int, int, int]:
    return int(hex_colour[1:3], 16), int(hex_colour[3:5], 16), int(hex_colour[5:7], 16)


def _mixed(colour: str, other: str, share: float) -> str:
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


FONT = (
    'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", '
    '"Liberation Sans", Arial, sans-serif'
)


@dataclass(frozen=True, slots=True)
class Ink:
    """Colours of everything in a figure that is not data."""

    paper: str
    text: str
    dim: str
    grid: str
    axis: str
    hover: str


INKS = {
    Scheme.LIGHT: Ink("#ffffff", "#23272d", "#68707b", "#eceef1", "#c6cbd2", "#ffffff"),
    Scheme.DARK: Ink("#1b1e22", "#dfe3e8", "#949da8", "#2a2e34", "#474d56", "#24282d"),
}
