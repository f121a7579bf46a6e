"""Looks shared by Mantine's components and Plotly's figures; ``assets/radt.css`` has the rest.

The eight-pixel grid, the system's own font, one accent colour. Nothing is fetched from elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from radt.frontend.palette import Scheme

FONT = (
    'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", '
    '"Liberation Sans", Arial, sans-serif'
)
ACCENT = "indigo"


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

MANTINE: dict[str, Any] = {
    "fontFamily": FONT,
    "primaryColor": ACCENT,
    "primaryShade": {"light": 7, "dark": 4},
    "defaultRadius": "sm",
    "focusRing": "auto",
    "cursorType": "pointer",
    "autoContrast": True,
    "respectReducedMotion": True,
    "fontSizes": {"xs": "12px", "sm": "13px", "md": "14px", "lg": "16px", "xl": "20px"},
    "spacing": {"xs": "8px", "sm": "8px", "md": "16px", "lg": "24px", "xl": "32px"},
    "headings": {"fontWeight": "600"},
}
