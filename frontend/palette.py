"""Colours of runs and workloads: the same everywhere, for everybody, however often one looks.

A colour follows from the place of the run within its experiment, not from what else is selected.
The first eight are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), told apart with any
kind of colour vision; then come a darker and a lighter shade of each.
"""

from __future__ import annotations

from enum import StrEnum


class Scheme(StrEnum):
    """Colour scheme of the page."""

    LIGHT = "light"
    DARK = "dark"


# Yellow and black, and on dark paper also the blue, are moved in lightness to keep a contrast of
# at least 3:1 against the paper; hues are the published ones.
_HUES = {
    Scheme.LIGHT: (
        "#0072b2",  # blue
        "#e08e00",  # orange
        "#009e73",  # bluish green
        "#cc79a7",  # reddish purple
        "#3ba3dc",  # sky blue
        "#d55e00",  # vermillion
        "#a89a00",  # yellow
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
_SHADES = (0.0, -0.32, 0.38)  # as is, towards black, towards white
HUE_COUNT = 8
COLOUR_COUNT = HUE_COUNT * len(_SHADES)


def colour(ordinal: int, scheme: Scheme) -> str:
    """Colour ``#rrggbb`` of the run or workload with that place in its experiment (from 0).

    After `COLOUR_COUNT` the colours start again: nobody tells more apart.
    """
    hue = _HUES[scheme][ordinal % HUE_COUNT]
    return _shade(hue, _SHADES[(ordinal // HUE_COUNT) % len(_SHADES)])


def translucent(hex_colour: str, opacity: float) -> str:
    """The colour as ``rgba(…)``, for bands and hairlines."""
    red, green, blue = _channels(hex_colour)
    return f"rgba({red},{green},{blue},{opacity:g})"


def _channels(hex_colour: str) -> tuple[int, int, int]:
    return int(hex_colour[1:3], 16), int(hex_colour[3:5], 16), int(hex_colour[5:7], 16)


def _shade(hex_colour: str, amount: float) -> str:
    target = 0 if amount < 0 else 255
    mixed = (round(c + (target - c) * abs(amount)) for c in _channels(hex_colour))
    return "#" + "".join(f"{c:02x}" for c in mixed)
