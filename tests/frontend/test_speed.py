"""What keeps pages quick: files that browsers keep, and no more points than can be told apart."""

from __future__ import annotations

import gzip
import re
import urllib.request
from collections.abc import Callable
from contextlib import closing
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Browser
from plotly.offline import get_plotlyjs_version
from werkzeug.test import TestResponse

from radt.frontend.app import create_app
from radt.frontend.auth import DashboardAccess
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.lines import LINE_POINTS, points_each
from radt.frontend.static_files import FOLDER, PLOTLY, SCHEME, SCRIPTS, STYLES, stripped
from tests.frontend.conftest import Demo, Site, shown


def test_browsers_keep_files_whose_address_says_their_time(
    demo: Demo, serve: Callable[[], str]
) -> None:
    url = serve()
    with urllib.request.urlopen(url) as answer:
        page = answer.read().decode()
    found = re.search(r'src="\./(static/radt-all\.js)\?m=[^"]*"', page)
    assert found is not None
    kept, asked = (
        urllib.request.urlopen(url + path).headers["Cache-Control"]
        for path in (found.group(0)[6:-1], f"/{found.group(1)}")
    )
    assert "immutable" in kept and "private" in kept
    assert "immutable" not in asked


def test_the_browsers_part_is_one_script_and_one_style_sheet_and_the_scheme(
    demo: Demo, serve: Callable[[], str]
) -> None:
    with urllib.request.urlopen(serve()) as answer:
        page = answer.read().decode()
    assert len(re.findall(r'(?:src|href)="\./static/', page)) == 3
    assert SCHEME.address in page.partition("</head>")[0]
    for bundle, suffix in ((SCRIPTS, "js"), (STYLES, "css")):
        for file in set(FOLDER.glob(f"*.{suffix}")) - {FOLDER / "scheme.js"}:
            assert stripped(file.read_text()).rstrip().encode() in bundle.content, file.name


class TestCompressed:
    """What goes over a network goes compressed."""

    @staticmethod
    def get(
        source: CachedStore, path: str, *, address: str = "192.0.2.7", encoding: str = "br, gzip"
    ) -> TestResponse:
        return (
            create_app(source, DashboardAccess())
            .server.test_client()
            .get(
                urljoin("/", path),
                headers={"Host": "127.0.0.1", "Accept-Encoding": encoding},
                environ_base={"REMOTE_ADDR": address},
            )
        )

    def test_scripts_are(self, source: CachedStore) -> None:
        answer = self.get(source, SCRIPTS.address)
        assert answer.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(answer.data) == SCRIPTS.content
        assert int(answer.headers["Content-Length"]) == len(answer.data) < len(SCRIPTS.content) / 2
        assert "Accept-Encoding" in answer.headers["Vary"]

    def test_also_for_clients_on_this_machine_who_may_come_through_a_tunnel(
        self, source: CachedStore
    ) -> None:
        answer = self.get(source, SCRIPTS.address, address="127.0.0.1")
        assert answer.headers["Content-Encoding"] == "gzip"

    @pytest.mark.parametrize("encoding", ["br", "gzip;q=0"])
    def test_not_for_those_who_cannot_read_it(self, source: CachedStore, encoding: str) -> None:
        answer = self.get(source, SCRIPTS.address, encoding=encoding)
        assert "Content-Encoding" not in answer.headers
        assert answer.data == SCRIPTS.content

    @pytest.mark.parametrize("path", ["/", "/_dash-dependencies"])
    def test_so_is_what_is_made_for_one_visitor(self, source: CachedStore, path: str) -> None:
        answer = self.get(source, path)
        assert answer.headers["Content-Encoding"] == "gzip"
        plain = self.get(source, path, encoding="identity")
        assert "Content-Encoding" not in plain.headers
        assert len(answer.data) < len(plain.data) / 2

    def test_what_a_browser_has_is_not_sent_again(self, source: CachedStore) -> None:
        client = create_app(source, DashboardAccess()).server.test_client()
        known = client.get(f"/{SCRIPTS.path}", headers={"Host": "127.0.0.1"}).headers["ETag"]
        asked = {"Host": "127.0.0.1", "If-None-Match": known}
        assert client.get(f"/{SCRIPTS.path}", headers=asked).status_code == 304


def test_a_first_visit_weighs_little_and_loads_the_part_of_plotly_that_draws(
    site: Site, browser: Browser
) -> None:
    with closing(browser.new_context()) as visitor:  # whose cache is empty
        page, sizes, addresses = visitor.new_page(), list[int](), list[str]()
        network = visitor.new_cdp_session(page)
        network.send("Network.enable")
        network.on(
            "Network.loadingFinished", lambda found: sizes.append(found["encodedDataLength"])
        )
        page.on("request", lambda request: addresses.append(request.url))
        page.goto(f"{site.url}/workload")
        shown(page, ".workload .main-svg")
        assert urljoin(site.url, PLOTLY.address) in addresses
        assert not [one for one in addresses if "plotly.min.js" in one and "basic" not in one]
        assert 0.5e6 < sum(sizes) < 0.95e6
        assert page.evaluate("Plotly.version") == get_plotlyjs_version()


def test_many_lines_have_fewer_points_each() -> None:
    assert [points_each(count) for count in (0, 1, 10, 20, 500)] == [
        *[LINE_POINTS] * 3,
        LINE_POINTS // 2,
        LINE_POINTS // 4,
    ]
