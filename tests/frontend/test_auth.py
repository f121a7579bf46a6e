"""Who may look at the dashboard."""

from __future__ import annotations

import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import urljoin

import pytest
from click.testing import CliRunner

from radt.cli.dashboard import command
from radt.errors import UsageError
from radt.frontend.app import create_app
from radt.frontend.auth import MAX_BODY_BYTES, SESSION_S, DashboardAccess
from radt.frontend.serve import DEFAULT_PORT, Address, listen
from radt.settings import DASHBOARD_TOKEN

TOKEN = "a-token-of-enough-letters"
PUBLIC = "gpu-box.example"
ELSEWHERE = {"Host": f"{PUBLIC}:8050"}
#: As a page of this dashboard sends it.
BROWSER = {"Accept": "text/html", "Origin": f"http://{PUBLIC}:8050"}


@pytest.fixture
def client(source):
    """Requests to a dashboard without a token, as from a browser on this machine."""
    return create_app(source, DashboardAccess()).server.test_client()


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8050", "localhost", "LOCALHOST:80", "[::1]:8050", "127.0.0.1"]
)
def test_names_of_this_machine_are_let_in(client, host):
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["attacker.example", "attacker.example:8050", "127.0.0.1.attacker.example", "192.0.2.7:8050"],
)
@pytest.mark.parametrize(
    "path", ["/", "/_dash-layout", "/_dash-dependencies", "/static/radt-all.css"]
)
def test_a_name_that_was_made_to_point_here_is_refused(client, host, path):
    """DNS rebinding: the browser believes the page and we are the same site."""
    assert client.get(path, headers={"Host": host}).status_code == 403


def test_callbacks_are_refused_too(client):
    response = client.post("/_dash-update-component", json={}, headers={"Host": "attacker.example"})
    assert response.status_code == 403


def test_another_address_needs_something_that_is_asked_for():
    with pytest.raises(UsageError, match="no token is set") as caught:
        DashboardAccess("0.0.0.0")
    assert "--token" in caught.value.remedy
    DashboardAccess("0.0.0.0", TOKEN)
    assert TOKEN not in repr(DashboardAccess("0.0.0.0", TOKEN))
    with pytest.raises(UsageError, match="at least 16 characters, got 5"):
        DashboardAccess("0.0.0.0", "short")
    for incomplete in ({"names": (PUBLIC,)}, {"proxies": ("127.0.0.1",)}):
        with pytest.raises(UsageError, match="the proxy's address and the name"):
            DashboardAccess(user_header="X-Forwarded-User", **incomplete)
    with pytest.raises(UsageError, match="Expected the address of a proxy, got nowhere"):
        DashboardAccess(proxies=("nowhere",))


# A token -------------------------------------------------------------------------------------


@pytest.fixture
def with_token(source):
    return create_app(
        source, DashboardAccess("0.0.0.0", TOKEN, names=(PUBLIC,))
    ).server.test_client()


def test_the_token_opens_once_and_a_cookie_keeps_open(with_token):
    assert with_token.get("/", headers=ELSEWHERE).status_code == 403
    assert with_token.get("/?token=wrong", headers=ELSEWHERE).status_code == 403

    opened = with_token.get(f"/?e=x&token={TOKEN}", headers=ELSEWHERE)
    assert opened.status_code == 303
    assert opened.headers["Location"] == "./?e=x"
    cookie = opened.headers["Set-Cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "Secure" not in cookie
    # In its own cookie: another dashboard of the machine has another port.
    assert cookie.startswith("radt-dashboard-8050=")
    assert with_token.get("/", headers=ELSEWHERE).status_code == 200
    assert with_token.get("/_dash-layout", headers=ELSEWHERE).status_code == 200


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/%2F/attacker.example/", "/%2F/attacker.example"),
        ("/%09/attacker.example", "/%09/attacker.example"),
        ("/%5C/attacker.example", "/%5C/attacker.example"),
        ("/%0d%0aLocation:%20x", "/%0D%0ALocation%3A%20x"),
        ("/%0a", "/%0A"),
        ("/%ed%a0%80", "/%EF%BF%BD%EF%BF%BD%EF%BF%BD"),
        ("/view/a%2Fb", "/view/a/b"),
    ],
)
def test_the_token_does_not_lead_elsewhere(with_token, path, location):
    response = with_token.get(f"{path}?token={TOKEN}", headers=ELSEWHERE)
    assert response.status_code == 303
    assert (
        urljoin(f"http://{PUBLIC}{path}", response.headers["Location"])
        == f"http://{PUBLIC}{location}"
    )


@pytest.mark.parametrize("body", ["[" * 100_000, '{"a":' * 200 + "1" + "}" * 200, r'{"\ud800": 1}'])
@pytest.mark.parametrize(
    "path",
    [
        *("/notes", "/views", "/export/prepare", "/export/open", "/_dash-update-component"),
        *("/compare/facts", "/compare/figure"),
    ],
)
def test_json_that_no_page_sends_is_a_bad_request(client, body, path):
    answer = client.post(
        path, data=body, content_type="application/json", headers={"Host": "localhost"}
    )
    assert answer.status_code == 400, answer.text


def test_people_are_asked_for_the_token_on_a_page(with_token):
    asked = with_token.get("/", headers={**ELSEWHERE, "Accept": "text/html,*/*;q=0.8"})
    assert asked.status_code == 403
    assert 'action="./_login"' in asked.text
    assert "script" not in asked.text
    wrong = with_token.post("/_login", data={"token": "x"}, headers={**ELSEWHERE, **BROWSER})
    assert "Wrong token." in wrong.text
    right = with_token.post("/_login", data={"token": TOKEN}, headers={**ELSEWHERE, **BROWSER})
    assert right.headers["Location"] == "./"
    assert with_token.get("/", headers=ELSEWHERE).status_code == 200


@pytest.mark.parametrize("path", ["/_login", "/_logout"])
def test_the_form_at_its_own_address_leads_to_the_root(with_token, path):
    asked = with_token.get(path, headers={**ELSEWHERE, "Accept": "text/html"})
    assert 'name="next" value=""' in asked.text
    with_token.get(f"/?token={TOKEN}", headers=ELSEWHERE)
    again = with_token.get("/_login", headers=ELSEWHERE)
    assert (again.status_code, again.headers["Location"]) == (303, "./")


def test_a_page_that_no_header_can_name_is_the_root(with_token):
    form = {"token": TOKEN, "next": "run?a=\r\nX: y"}
    right = with_token.post("/_login", data=form, headers={**ELSEWHERE, **BROWSER})
    assert (right.status_code, right.headers["Location"]) == (303, "./")


def test_who_logs_out_is_out_also_with_the_old_cookie(with_token):
    with_token.get(f"/?token={TOKEN}", headers=ELSEWHERE)
    kept = with_token.get_cookie("radt-dashboard-8050", domain="gpu-box.example")
    assert kept is not None
    out = with_token.post("/_logout", headers={**ELSEWHERE, **BROWSER})
    assert out.status_code == 303
    assert with_token.get("/", headers=ELSEWHERE).status_code == 403
    with_token.set_cookie("radt-dashboard-8050", kept.value, domain="gpu-box.example")
    assert with_token.get("/", headers=ELSEWHERE).status_code == 403


def test_another_page_cannot_log_anybody_out(with_token):
    with_token.get(f"/?token={TOKEN}", headers=ELSEWHERE)
    theirs = {**ELSEWHERE, "Origin": "https://attacker.example"}
    assert with_token.post("/_logout", headers=theirs).status_code == 403
    assert with_token.get("/", headers=ELSEWHERE).status_code == 200


def test_a_cookie_holds_with_the_same_token_only_and_not_for_ever(source, monkeypatch):
    def client(token=TOKEN):
        return create_app(
            source, DashboardAccess("0.0.0.0", token, names=(PUBLIC,))
        ).server.test_client()

    def status(client, value):
        client.set_cookie("radt-dashboard-8050", value, domain=PUBLIC)
        return client.get("/", headers=ELSEWHERE).status_code

    first = client()
    first.get(f"/?token={TOKEN}", headers=ELSEWHERE)
    proof = first.get_cookie("radt-dashboard-8050", domain=PUBLIC).value
    again = client()  # the dashboard was started again
    assert status(again, proof) == 200
    assert status(client(TOKEN + "x"), proof) == 403
    nonce, stamp, signature = proof.split(".")
    for forged in ("", ".", f"{nonce}.x{stamp}.{signature}", f"x{nonce}.{stamp}.{signature}"):
        assert status(again, forged) == 403
    late = time.time() + SESSION_S + 1
    monkeypatch.setattr("itsdangerous.timed.time.time", lambda: late)
    assert status(again, proof) == 403


# Behind a proxy ------------------------------------------------------------------------------


@pytest.fixture
def behind_proxy(source):
    access = DashboardAccess(
        proxies=("10.1.0.0/16",), user_header="X-Forwarded-User", names=(PUBLIC,)
    )
    return create_app(source, access).server.test_client()


def through_proxy(client, path="/", address="10.1.2.3", **headers):
    told = {"Host": PUBLIC, **{name.replace("_", "-"): text for name, text in headers.items()}}
    return client.get(path, headers=told, environ_base={"REMOTE_ADDR": address})


def test_a_proxy_names_users_and_nobody_else_does(behind_proxy):
    assert through_proxy(behind_proxy, X_Forwarded_User="ada").status_code == 200
    assert through_proxy(behind_proxy).status_code == 401
    direct = through_proxy(behind_proxy, address="192.0.2.7", X_Forwarded_User="ada")
    assert direct.status_code == 403
    said = through_proxy(
        behind_proxy, address="192.0.2.7", X_Forwarded_User="ada", X_Forwarded_For="10.1.2.3"
    )
    assert said.status_code == 403
    assert through_proxy(behind_proxy, address="junk", X_Forwarded_User="ada").status_code == 403
    elsewhere = {"Host": "192.0.2.1", "X-Forwarded-User": "ada"}
    refused = behind_proxy.get("/", headers=elsewhere, environ_base={"REMOTE_ADDR": "10.1.2.3"})
    assert refused.status_code == 403


def test_only_a_trusted_proxy_says_that_it_is_https_and_for_whom(source):
    access = DashboardAccess("0.0.0.0", TOKEN, proxies=("10.1.2.3",), names=(PUBLIC,))
    client = create_app(source, access).server.test_client()
    path = f"/?token={TOKEN}"
    secure = through_proxy(client, path, X_Forwarded_Proto="https")
    assert "Secure" in secure.headers["Set-Cookie"]
    other = through_proxy(client, path, address="10.1.2.4", X_Forwarded_Proto="https")
    assert "Secure" not in other.headers["Set-Cookie"]


def test_the_command_takes_one_way_to_let_visitors_in():
    both = ["--token", "--user-header", "X-Forwarded-User"]
    with pytest.raises(UsageError, match="exclude each other"):
        command.main(both, standalone_mode=False)


# Pages of others -----------------------------------------------------------------------------

POST = "/_dash-update-component"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://attacker.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "http://127.0.0.1:x"},
        {"Origin": "http://127.0.0.1.attacker.example:8050"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:8050"},
        {"Sec-Fetch-Site": "same-site"},  # another port of this machine
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},  # a form
    ],
)
def test_other_pages_cannot_have_anything_done(client, headers):
    told = {"Host": "127.0.0.1:8050", **headers}
    assert client.post(POST, json={}, headers=told).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:8050"},
        {"Origin": "http://127.0.0.1:8050"},
        {},  # no browser
    ],
)
def test_the_page_itself_can(client, headers):
    told = {"Host": "127.0.0.1:8050", **headers}
    assert client.post(POST, json={}, headers=told).status_code != 403


def test_a_proxy_may_speak_https_where_we_speak_http(source):
    access = DashboardAccess("0.0.0.0", TOKEN, names=(PUBLIC,))
    client = create_app(source, access).server.test_client()
    client.get(f"/?token={TOKEN}", headers={"Host": PUBLIC})
    told = {"Host": PUBLIC, "Origin": f"https://{PUBLIC}"}
    assert client.post(POST, json={}, headers=told).status_code != 403
    told["Origin"] = f"https://{PUBLIC}:8443"
    assert client.post(POST, json={}, headers=told).status_code == 403


def test_links_lead_here_and_frames_do_not(client):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", headers={**link, "Sec-Fetch-Dest": "document"}).status_code == 200
    assert client.get("/", headers={**link, "Sec-Fetch-Dest": "iframe"}).status_code == 403
    script = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert client.get("/static/radt-all.js", headers=script).status_code == 403


# What requests and answers are like ----------------------------------------------------------


def test_a_machine_is_known_by_its_names_and_its_numbers(source):
    client = create_app(source, DashboardAccess("0.0.0.0", TOKEN)).server.test_client()
    client.get(f"/?token={TOKEN}")
    opened = f"/?token={TOKEN}"
    for host in (f"{socket.gethostname()}:8050", "192.0.2.7:8050", "[2001:db8::1]:8050"):
        assert client.get(opened, headers={"Host": host}).status_code == 303
    refused = client.get(opened, headers={"Host": "attacker.example"})
    assert refused.status_code == 403
    assert "--public-name attacker.example" in refused.text


def test_requests_are_of_bounded_size(client):
    assert client.post(POST, data=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
    assert client.put("/").status_code == 405


def test_browsers_are_told_to_fetch_nothing_from_elsewhere(client):
    headers = client.get("/").headers
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert "unsafe-inline" not in headers["Content-Security-Policy"].partition("style-src")[0]
    assert "http" not in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "DENY"
    assert "private" in headers["Cache-Control"]


def test_a_taken_port_is_passed_over_unless_it_was_asked_for():
    with listen("127.0.0.1", None) as first:
        first.listen()
        port = first.getsockname()[1]
        assert port >= DEFAULT_PORT
        with listen("127.0.0.1", None) as second:
            assert second.getsockname()[1] > port
        with pytest.raises(UsageError, match=f"port {port} .* cannot be used"):
            listen("127.0.0.1", port)


def test_no_address_is_an_error_with_a_remedy():
    with pytest.raises(UsageError, match="is not an address"):
        listen("no.such.host.invalid", 0)


def test_addresses_can_be_opened():
    assert Address("127.0.0.1", 8050).url == "http://127.0.0.1:8050/"
    assert Address("0.0.0.0", 8050, TOKEN).url == f"http://127.0.0.1:8050/?token={TOKEN}"
    assert Address("::1", 8050).url == "http://[::1]:8050/"
    published = Address("0.0.0.0", 8050).published
    assert published(["db", "::1", "gpu1.example.org:80"]).url == "http://gpu1.example.org:80/"
    assert published(["[::1]:81"]).url == "http://[::1]:81/"
    assert published(["db", "::1"]).url == "http://127.0.0.1:8050/"


def test_a_token_of_ones_own_is_not_printed(demo, monkeypatch):
    """The output of a container goes to its log."""
    monkeypatch.setattr(
        "radt.frontend.serve.serve",
        lambda _view, access, port, ready: ready(Address(access.host, port, access.token)),
    )
    options = ["--home", str(demo.store.parent), "--host", "0.0.0.0", "--port", "8050"]
    options += ["--public-name", "gpu1:80", "--no-browser"]
    out = CliRunner().invoke(command, [*options, "--token"]).output
    assert re.search(r"  http://gpu1:80/\?token=\S{16,}\n", out)
    monkeypatch.setenv(DASHBOARD_TOKEN.label, TOKEN)
    out = CliRunner().invoke(command, options).output
    assert TOKEN not in out
    assert "  http://gpu1:80/\n\nLog in with the token of RADT_DASHBOARD_TOKEN. " in out


def test_the_command_serves_until_interrupted(demo):
    """The real process: address on stdout, page, loopback only, Ctrl-C."""
    demo.quickstart()
    environment = {**os.environ, "RADT_HOME": str(demo.store.parent), "PYTHONUNBUFFERED": "1"}
    code = "from radt.cli.dashboard import command; command()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        url = next(line.strip() for line in process.stdout if line.strip().startswith("http://"))
        with urllib.request.urlopen(url, timeout=180) as page:
            assert b"radt" in page.read()
        port = int(url.rstrip("/").rpartition(":")[2])
        request = urllib.request.Request(url, headers={"Host": "attacker.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=180)
        for address in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port)}:
            if not address.startswith("127.") and address != "::1":
                with pytest.raises(OSError):
                    socket.create_connection((address, port), timeout=5)
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert [line for line in errors.splitlines() if "Other users of this" not in line] == []


@pytest.mark.parametrize(
    ("options", "users", "warning"),
    [
        ([], [("a", 1000, "/bin/bash"), ("b", 1001, "/bin/zsh")], "read this store and edit"),
        (["--read-only"], [("a", 1000, "/bin/bash"), ("b", 1001, "")], "read this store through"),
        (["--token"], [("a", 1000, "/bin/bash"), ("b", 1001, "/bin/zsh")], ""),
        (
            [],
            [
                *(("a", 1000, "/bin/bash"), ("root", 0, "/bin/bash"), ("www", 33, "/bin/sh")),
                *(("b", 1001, "/usr/sbin/nologin"), ("nobody", 65534, "/bin/sh")),
            ],
            "",
        ),
    ],
)
def test_on_a_machine_of_several_people_an_open_dashboard_says_so(
    demo, monkeypatch, options, users, warning
):
    people = [pwd.struct_passwd((name, "x", uid, uid, "", "/", sh)) for name, uid, sh in users]
    monkeypatch.setattr(pwd, "getpwall", lambda: people)
    monkeypatch.setattr(
        "radt.frontend.serve.serve", lambda *given: given[-1](Address("127.0.0.1", 8050))
    )
    home = ["--home", str(demo.store.parent), "--no-browser"]
    done = CliRunner().invoke(command, [*home, *options])
    assert done.exit_code == 0, done.output
    assert ("Other users of this machine" in done.stderr) == bool(warning)
    assert warning in done.stderr
