"""What keeps pages quick: files that browsers keep, and no more points than can be told apart."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable

from radt.frontend.charts.lines import LINE_POINTS, points_each
from tests.frontend.conftest import Demo


def test_browsers_keep_files_whose_address_says_their_time(
    demo: Demo, serve: Callable[[], str]
) -> None:
    url = serve()
    with urllib.request.urlopen(url) as answer:
        page = answer.read().decode()
    found = re.search(r'src="(/assets/radt\.js)\?m=[^"]*"', page)
    assert found is not None
    kept, asked = (
        urllib.request.urlopen(url + path).headers["Cache-Control"]
        for path in (found.group(0)[5:-1], found.group(1))
    )
    assert "immutable" in kept and "private" in kept
    assert "immutable" not in asked


def test_many_lines_have_fewer_points_each() -> None:
    assert [points_each(count) for count in (0, 1, 10, 20, 500)] == [
        *[LINE_POINTS] * 3,
        LINE_POINTS // 2,
        LINE_POINTS // 4,
    ]
