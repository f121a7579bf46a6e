"""The dashboard below a path of a reverse proxy, as JupyterHub, VS Code and nginx serve it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import Response, expect

from radt.errors import UsageError
from radt.frontend.app import PAGES, create_app
from radt.frontend.auth import DashboardAccess
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.security import parse_base_path
from radt.frontend.serve import Address
from tests.frontend.conftest import Demo, Serve, Watched, shown
from tests.frontend.test_accessibility import CONTENT
from tests.support.nginx import nginx

pytestmark = pytest.mark.usefixtures("no_commands")

PATH = "/user/ada@lab/proxy/8050"
AS_TYPED = "/user/ada%40lab/proxy/8050/"
TOKEN = "a-token-of-enough-letters"
STRIPPED = "location ^~ %s/ { proxy_pass %s/; }"
WHOLE = "location ^~ %s { proxy_pass %s; }"
NAMED = "location ^~ %s { proxy_pass %s; proxy_set_header X-Forwarded-Prefix " + PATH + "; }"


@contextmanager
def proxied(folder: Path, location: str, dashboard: str) -> Iterator[str]:
    """The address of a dashboard below `PATH`, without a slash at its end."""
    with nginx(folder, location % (PATH, dashboard)) as server:
        yield f"{server.url}{PATH}"


def failures(watched: Watched) -> list[str]:
    """Answers with an error, until the end of the test."""
    found: list[str] = []

    def note(response: Response) -> None:
        if response.status >= 400:
            found.append(f"{response.status} {response.url}")

    watched.on("response", note)
    return found


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize(
    ("location", "access"),
    [
        (STRIPPED, DashboardAccess()),
        (NAMED, DashboardAccess(proxies=("127.0.0.1",))),
        (STRIPPED, DashboardAccess(base_path=PATH)),
        (WHOLE, DashboardAccess(base_path=AS_TYPED.rstrip("/"))),
    ],
    ids=["stripped", "named by the proxy", "stripped and known", "whole"],
)
def test_every_page_works_below_a_path(
    demo: Demo,
    serve: Serve,
    watched: Watched,
    tmp_path: Path,
    location: str,
    access: DashboardAccess,
) -> None:
    demo.quickstart()
    page, failed = watched.page, failures(watched)
    with proxied(tmp_path, location, serve(access)) as url:
        page.goto(url)  # without the slash
        shown(page, CONTENT["/"])
        for each in PAGES[1:]:
            page.get_by_role("navigation", name="Pages").get_by_text(each.title, exact=True).click()
            shown(page, CONTENT[f"/{each.path}"])
            assert unquote(urlsplit(page.url).path) == f"{PATH}/{each.path}"
            page.reload()
            shown(page, CONTENT[f"/{each.path}"])
        assert not failed
        root = f"{url}/"
        outside = [one for one in watched.requests if not one.startswith((root, "data:", "blob:"))]
        assert outside == [url]
    assert watched.errors == []


def test_links_files_and_saved_views_stay_below_the_path(
    demo: Demo, serve: Serve, watched: Watched, tmp_path: Path
) -> None:
    demo.quickstart()
    page, failed = watched.page, failures(watched)
    with proxied(tmp_path, STRIPPED, serve()) as url:
        page.goto(f"{url}/report?e=quickstart")
        shown(page, CONTENT["/report"])
        for name in ("CSV", "SVG"):
            with page.expect_download() as file:
                page.get_by_role("link", name=name, exact=True).first.click()
            assert file.value.url.startswith(f"{url}/report/")
        page.get_by_role("link", name="Compare →").click()
        shown(page, CONTENT["/compare"])
        page.get_by_role("button", name="Views").click()
        page.get_by_label("Name of the view").fill("a/b")
        page.get_by_label("Name of the view").press("Enter")
        page.get_by_role("link", name="a/b").click()
        shown(page, CONTENT["/compare"])
        assert page.url.startswith(f"{url}/compare?")
        page.goto(f"{url}/workload?e=quickstart")
        shown(page, CONTENT["/workload"])
        assert not failed
        page.goto(f"{url}/no/page")
        page.get_by_role("link", name="Open the list of runs").click()
        shown(page, CONTENT["/"])
        assert page.url.partition("?")[0] == f"{url}/"


@pytest.mark.parametrize(
    ("location", "access"),
    [
        (STRIPPED, DashboardAccess(token=TOKEN)),
        (WHOLE, DashboardAccess(token=TOKEN, base_path=PATH)),
    ],
    ids=["stripped", "whole"],
)
def test_logging_in_leads_to_the_page_asked_for_and_the_cookie_stays_below_the_path(
    demo: Demo,
    serve: Serve,
    watched: Watched,
    tmp_path: Path,
    location: str,
    access: DashboardAccess,
) -> None:
    demo.quickstart()
    page = watched.page
    with proxied(tmp_path, location, serve(access)) as url:
        page.goto(f"{url}/report?e=quickstart&o.report.overlap=1")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_have_text("Wrong token.")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        shown(page, CONTENT["/report"])
        assert page.url.startswith(f"{url}/report?e=quickstart&o.report.overlap=1")
        (cookie,) = page.context.cookies()
        assert cookie["path"] == urlsplit(url).path
        page.goto(f"{url}/system")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        assert page.context.cookies() == []
        assert page.url == f"{url}/"


@pytest.fixture
def below(source: CachedStore) -> Callable[..., FlaskClient]:
    def client(**options: str) -> FlaskClient:
        return create_app(
            source, DashboardAccess(proxies=("10.1.2.3",), **options)
        ).server.test_client()

    return client


@pytest.mark.parametrize(("peer", "status"), [("10.1.2.3", 200), ("10.1.2.4", 404)])
def test_only_a_trusted_proxy_names_the_path(
    below: Callable[..., FlaskClient], peer: str, status: int
) -> None:
    headers = {"Host": "localhost", "X-Forwarded-Prefix": "/radt/"}
    environ = {"REMOTE_ADDR": peer}
    answer = below().get("/radt/compare", headers=headers, environ_base=environ)
    assert answer.status_code == status


def test_the_path_without_a_slash_leads_to_the_one_with_it(
    below: Callable[..., FlaskClient],
) -> None:
    client, headers = below(base_path="/team/a b"), {"Host": "localhost"}
    answer = client.get("/team/a%20b?e=x", headers=headers)
    assert (answer.status_code, answer.headers["Location"]) == (308, "./a%20b/?e=x")
    assert client.get("/team/a%20bc", headers=headers).status_code == 404
    assert client.get("/compare", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("text", "path"), [("", ""), ("/", ""), ("radt", "/radt"), ("/team/radt/", "/team/radt")]
)
def test_a_base_path_may_be_written_with_or_without_slashes(text: str, path: str) -> None:
    assert parse_base_path(text) == path
    assert Address("127.0.0.1", 8050, None, path).url == f"http://127.0.0.1:8050{path}/"


@pytest.mark.parametrize("text", ["http://hub/radt", "/radt?x", "/radt#x", "/a b", "/a\nb"])
def test_what_is_not_a_path_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape("Expected a path for the dashboard's base")):
        parse_base_path(text)


@pytest.mark.parametrize("path", ["/nopage", "/no/page", "/compare/x", "/run/"])
def test_what_is_no_page_is_not_found(below: Callable[..., FlaskClient], path: str) -> None:
    answer = below().get(path, headers={"Host": "localhost"})
    assert answer.status_code == 404
    assert f"no page <code>{path[1:]}</code>" in answer.text


@pytest.mark.parametrize(
    "target", ["//evil.example", "../../x", "https://evil.example/", "\\\\evil"]
)
def test_logging_in_leads_to_pages_of_the_dashboard_only(source: CachedStore, target: str) -> None:
    client = create_app(source, DashboardAccess(token=TOKEN)).server.test_client()
    headers = {"Host": "localhost", "Origin": "http://localhost", "Accept": "text/html"}
    data = {"token": TOKEN, "next": target}
    location = client.post("/_login", data=data, headers=headers).headers["Location"]
    assert re.fullmatch(r"\./[\w.%/]*", location) and ".." not in location
    assert not location.startswith(".//")
