"""How much greenhouse gas a kilowatt-hour stands for: means of countries, or the user's number."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_SOURCE = "codecarbon 3.3.2"
_J_PER_KWH = 3.6e6
#: Coal alone is at about 1000 g/kWh; beyond twice that somebody means other units.
_MAX_G_PER_KWH = 2000.0
_MAX_PUE = 5.0


@dataclass(frozen=True, slots=True)
class Grid:
    """What the electricity is made of, and what the building adds.

    ``pue`` is the power usage effectiveness: energy of the whole data centre over that of its
    computers.
    """

    g_per_kwh: float
    origin: str
    pue: float = 1.0

    @property
    def g_per_j(self) -> float:
        return self.g_per_kwh * self.pue / _J_PER_KWH

    @property
    def rule(self) -> str:
        """The rule in words, for a series' method."""
        return f"energy × {self.g_per_kwh:g} g CO2e/kWh ({self.origin}) × PUE {self.pue:g}"


def grid_of(options: Mapping[str, str | None]) -> Grid:
    """The grid that options of the listener describe: ``intensity`` goes before ``country``.

    Raises:
        ValueError: An option makes no sense.
    """
    pue = pue_of(options.get("pue") or "1")
    intensity = options.get("intensity")
    if intensity is not None:
        return Grid(intensity_of(intensity), "given", pue)
    country = options.get("country")
    if country is None:
        entry, note = _table()["world"], "; no country was given"
    else:
        entry, note = country_of(country), ""
    return Grid(
        entry["g_per_kwh"], f"{entry['name']}, mean of {entry['year']}, {_SOURCE}{note}", pue
    )


def country_of(code: str | None) -> Mapping[str, Any]:
    """The entry of a country.

    Raises:
        ValueError: There is none of this ISO 3166 code of three letters.
    """
    countries = _table()["countries"]
    text = (code or "").lower()
    if text in countries:
        return countries[text]  # type: ignore[no-any-return]
    by_name = {entry["name"].lower().replace(" ", "-"): key for key, entry in countries.items()}
    near = difflib.get_close_matches(text, [*by_name, *countries], n=1)
    hint = f"; did you mean {by_name.get(near[0], near[0])}?" if near else ""
    raise ValueError(f"needs a country's code of three letters, as in country=dnk{hint}")


def intensity_of(text: str | None) -> float:
    """Grams per kilowatt-hour.

    Raises:
        ValueError: It is no such number.
    """
    return _number(text, 0.0, _MAX_G_PER_KWH, "g CO2e per kWh, as in intensity=151.65")


def pue_of(text: str | None) -> float:
    """Power usage effectiveness.

    Raises:
        ValueError: It is no such number.
    """
    return _number(text, 1.0, _MAX_PUE, "energy of the building over that of its computers")


def _number(text: str | None, least: float, most: float, meaning: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise ValueError(f"needs a number from {least:g} to {most:g}: {meaning}")
    return value


@cache
def _table() -> Mapping[str, Any]:
    text = (files("radt.listeners") / "data" / "grid_intensity.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]
