"""Who may look at the dashboard."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from radt.errors import UsageError
from radt.frontend.access import Access
from radt.frontend.app import create_app
from radt.frontend.serve import DEFAULT_PORT, Address, listen

TOKEN = "a-token-of-enough-letters"


@pytest.fixture
def client(source):
    """Requests to a dashboard without a token, as from a browser on this machine."""
    return create_app(source, Access()).server.test_client()


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8050", "localhost", "LOCALHOST:80", "[::1]:8050", "127.0.0.1"]
)
def test_names_of_this_machine_are_let_in(client, host):
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["attacker.example", "attacker.example:8050", "127.0.0.1.attacker.example", "192.0.2.7:8050"],
)
@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/_dash-dependencies", "/assets/radt.css"])
def test_a_name_that_was_made_to_point_here_is_refused(client, host, path):
    """DNS rebinding: the browser believes the page and we are the same site."""
    assert client.get(path, headers={"Host": host}).status_code == 403


def test_callbacks_are_refused_too(client):
    response = client.post("/_dash-update-component", json={}, headers={"Host": "attacker.example"})
    assert response.status_code == 403


def test_another_address_needs_a_token():
    with pytest.raises(UsageError, match="no token is set") as caught:
        Access("0.0.0.0")
    assert "--token" in caught.value.remedy
    Access("0.0.0.0", TOKEN)
    with pytest.raises(UsageError, match="fewer than"):
        Access("0.0.0.0", "short")


def test_the_token_opens_once_and_a_cookie_keeps_open(source):
    client = create_app(source, Access("0.0.0.0", TOKEN)).server.test_client()
    elsewhere = {"Host": "gpu-box.example:8050"}
    assert client.get("/", headers=elsewhere).status_code == 403
    assert client.get("/?token=wrong", headers=elsewhere).status_code == 403

    opened = client.get(f"/?e=x&token={TOKEN}", headers=elsewhere)
    assert opened.status_code == 302
    assert opened.headers["Location"] == "/?e=x"
    cookie = opened.headers["Set-Cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/", headers=elsewhere).status_code == 200
    assert client.get("/_dash-layout", headers=elsewhere).status_code == 200


def test_the_token_does_not_lead_elsewhere(source):
    client = create_app(source, Access("0.0.0.0", TOKEN)).server.test_client()
    response = client.get(f"//attacker.example/?token={TOKEN}")
    assert response.headers["Location"].startswith("/")
    assert not response.headers["Location"].startswith("//")


def test_browsers_are_told_to_fetch_nothing_from_elsewhere(client):
    headers = client.get("/").headers
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "DENY"


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
    with pytest.raises(UsageError, match="is no address"):
        listen("no.such.host.invalid", 0)


def test_addresses_can_be_opened():
    assert Address("127.0.0.1", 8050).url == "http://127.0.0.1:8050/"
    assert Address("0.0.0.0", 8050, TOKEN).url == f"http://127.0.0.1:8050/?token={TOKEN}"
    assert Address("::1", 8050).url == "http://[::1]:8050/"


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
        with urllib.request.urlopen(url, timeout=20) as page:
            assert b"radt" in page.read()
        port = int(url.rstrip("/").rpartition(":")[2])
        request = urllib.request.Request(url, headers={"Host": "attacker.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=20)
        for address in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port)}:
            if not address.startswith("127.") and address != "::1":
                with pytest.raises(OSError):
                    socket.create_connection((address, port), timeout=5)
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert errors == ""
