"""The dashboard's look for figures that scripts logged, as templates of Plotly."""

from __future__ import annotations

from typing import Any

from radt.frontend.theme import FONT, HUE_COUNT, INKS, Scheme, colour


def template(scheme: Scheme) -> dict[str, Any]:
    """Return defaults for the look of figures."""
    ink = INKS[scheme]
    axis = {
        "gridcolor": ink.grid,
        "title": {"font": {"size": 12}},
        "linecolor": ink.axis,
        "zerolinecolor": ink.axis,
        "tickcolor": ink.axis,
        "zerolinewidth": 1,
        "automargin": True,
    }
    quiet = {"colorbar": {"outlinewidth": 0, "thickness": 12, "ticks": ""}}
    return {
        "layout": {
            "paper_bgcolor": ink.paper,
            "plot_bgcolor": ink.paper,
            "font": {"family": FONT, "size": 12, "color": ink.text},
            "title": {"font": {"size": 13}, "x": 0, "xref": "paper", "automargin": True},
            "margin": {"l": 48, "r": 16, "t": 24, "b": 40},
            "colorway": [colour(place, scheme) for place in range(HUE_COUNT)],
            "colorscale": {"sequential": "Viridis", "sequentialminus": "Viridis"},
            "coloraxis": quiet,
            "xaxis": axis,
            "yaxis": axis,
            "legend": {"title": {"font": {"size": 12}}},
            "shapedefaults": {"line": {"color": ink.dim, "width": 1}},
            "annotationdefaults": {"arrowcolor": ink.dim},
            "hoverlabel": {
                "bgcolor": ink.hover,
                "bordercolor": ink.axis,
                "font": {"family": FONT, "size": 12, "color": ink.text},
                "align": "left",
            },
        },
        "data": {
            "bar": [{"marker": {"line": {"width": 0}}}],
            "scatter": [{"line": {"width": 1.5}, "marker": {"size": 5}}],
        },
    }


#: Templates by scheme, as pages receive them.
TEMPLATES = {scheme.value: template(scheme) for scheme in Scheme}
