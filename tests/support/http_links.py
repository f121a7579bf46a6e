"""A bad network that knows HTTP: answers some requests itself, or loses the server's answer.

::

    with HttpLink(server_port) as link:
        link.answer(SERVER_ERROR, times=2, path="runs/log-batch")
        link.answer(TOO_LARGE, times=None, above_bytes=10_000)  # as a proxy with a limit
        link.lose_answer(path="runs/create")
        ...                             # talk to link.uri instead of the server's
        assert link.requests("runs/create")
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from tests.support.links import HOST, reset


@dataclass(frozen=True)
class Answer:
    """What the link answers in the server's place."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


SERVER_ERROR = Answer(500, b'{"error_code": "INTERNAL_ERROR", "message": "it fell over"}')
UNAVAILABLE = Answer(503, b"no server is available to handle this request")
#: As nginx says it.
BAD_GATEWAY = Answer(
    502, b"<html><body><h1>502 Bad Gateway</h1></body></html>", {"Content-Type": "text/html"}
)
TOO_LARGE = Answer(
    413, b"<html><h1>413 Request Entity Too Large</h1></html>", {"Content-Type": "text/html"}
)
GARBAGE = Answer(200, b'{"run": {"info": \x00\xff', {"Content-Type": "application/json"})
#: A login page of somebody's proxy.
WELCOME = Answer(200, b"<html>Please log in</html>", {"Content-Type": "text/html"})
EMPTY = Answer(200)
UNAUTHORISED = Answer(401, b"You are not authenticated.", {"WWW-Authenticate": "Basic"})
FORBIDDEN = Answer(403, b"Permission denied")


def too_many(retry_after_s: float) -> Answer:
    """429 that names when to come again."""
    return Answer(429, b"slow down", {"Retry-After": f"{retry_after_s:g}"})


@dataclass(frozen=True)
class Seen:
    """A request that arrived; ``status`` is what the client was told, None if nothing."""

    method: str
    path: str
    size: int
    status: int | None
    ours: bool


@dataclass
class _Rule:
    answer: Answer | None
    times: int | None
    method: str
    path: re.Pattern[str]
    above_bytes: int
    lost: bool = False

    def takes(self, method: str, path: str, size: int) -> bool:
        return (
            self.times != 0
            and self.method in ("", method)
            and self.path.search(path) is not None
            and size > self.above_bytes
        )


class HttpLink:
    """An HTTP/1.1 proxy on a port of its own in front of ``host:port``.

    The client's ``Host`` header goes on to the server, so that signed requests stay valid.
    """

    def __init__(self, port: int, host: str = HOST) -> None:
        self.seen: list[Seen] = []
        self._upstream = (host, port)
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        link = self

        class Handler(_Handler):
            def relay(self) -> None:
                link._relay(self)

        self._httpd = _Server((HOST, 0), Handler)
        self.port: int = self._httpd.server_address[1]
        self._thread = threading.Thread(
            target=self._httpd.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """``127.0.0.1:PORT``."""
        return f"{HOST}:{self.port}"

    @property
    def uri(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://{self.address}"

    def answer(
        self,
        answer: Answer,
        *,
        times: int | None = 1,
        method: str = "",
        path: str = "",
        above_bytes: int = -1,
    ) -> None:
        """Answer the next requests that match in the server's place, which hears nothing of them.

        Args:
            answer: What to say.
            times: How often; None until `pass_through`.
            method: Only requests with this method.
            path: Only requests whose path and query match this regular expression somewhere.
            above_bytes: Only requests with a longer body.
        """
        with self._lock:
            self._rules.append(_Rule(answer, times, method, re.compile(path), above_bytes))

    def lose_answer(self, *, times: int | None = 1, method: str = "", path: str = "") -> None:
        """Bring the next requests that match to the server, and reset the client's connection."""
        with self._lock:
            self._rules.append(_Rule(None, times, method, re.compile(path), -1, lost=True))

    def pass_through(self) -> None:
        """Forget all rules."""
        with self._lock:
            self._rules.clear()

    def requests(self, path: str = "", method: str = "") -> list[Seen]:
        """Those seen whose path matches a regular expression somewhere."""
        with self._lock:
            return [
                one for one in self.seen if re.search(path, one.path) and method in ("", one.method)
            ]

    def close(self) -> None:
        """End it, and every connection."""
        self._httpd.shutdown()
        self._httpd.server_close()
        self._thread.join(10)

    # -- one request ------------------------------------------------------------------------------

    def _relay(self, handler: _Handler) -> None:
        body = handler.read_body()
        rule = self._rule(handler.command, handler.path, len(body))
        if rule is not None and rule.answer is not None:
            self._note(handler, body, rule.answer.status, ours=True)
            handler.say(rule.answer.status, rule.answer.headers.items(), rule.answer.body)
            return
        try:
            status, headers, content = self._forward(handler, body)
        except (OSError, http.client.HTTPException):
            self._note(handler, body, None, ours=False)
            handler.hang_up()  # the server is down: what is behind the link looks down, too
            return
        if rule is not None and rule.lost:
            self._note(handler, body, None, ours=True)
            handler.hang_up()
            return
        self._note(handler, body, status, ours=False)
        handler.say(status, headers, content)

    def _rule(self, method: str, path: str, size: int) -> _Rule | None:
        with self._lock:
            for rule in self._rules:
                if rule.takes(method, path, size):
                    if rule.times is not None:
                        rule.times -= 1
                    return rule
        return None

    def _note(self, handler: _Handler, body: bytes, status: int | None, *, ours: bool) -> None:
        with self._lock:
            self.seen.append(Seen(handler.command, handler.path, len(body), status, ours))

    def _forward(self, handler: _Handler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self._upstream, timeout=180)
        try:
            connection.putrequest(
                handler.command, handler.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in handler.headers.items():
                if name.lower() not in _BETWEEN_NEIGHBOURS:
                    connection.putheader(name, value)
            if body or handler.command in ("POST", "PUT", "PATCH"):
                connection.putheader("Content-Length", str(len(body)))
            connection.putheader("Connection", "close")
            connection.endheaders(body)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()


#: Headers that concern one connection, and those that we set ourselves.
_BETWEEN_NEIGHBOURS = frozenset(
    {"connection", "content-length", "expect", "keep-alive", "te", "trailer", "transfer-encoding"}
)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body leave in two pieces; Nagle would hold the second for 40 ms.
    disable_nagle_algorithm = True
    wbufsize = -1

    def relay(self) -> None:
        raise NotImplementedError

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self.relay
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        """Quiet: `HttpLink.seen` is the log."""

    def read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            blocks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                blocks.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass  # trailers
            return b"".join(blocks)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def say(self, status: int, headers: Collection[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _BETWEEN_NEIGHBOURS:
                self.send_header(name, value)
        if self.command == "HEAD":
            length = {name.lower(): value for name, value in headers}.get("content-length", "0")
            self.send_header("Content-Length", length)
        elif status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and body:
            self.wfile.write(body)
        self.wfile.flush()

    def hang_up(self) -> None:
        self.close_connection = True
        reset(self.connection)
