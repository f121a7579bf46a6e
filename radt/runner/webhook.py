"""Sends notices to an http(s) address."""

from __future__ import annotations

import urllib.error
import urllib.request
from base64 import b64encode
from email.message import Message
from http.client import HTTPException
from typing import IO
from urllib.parse import unquote, urlsplit

from radt.errors import UsageError
from radt.runner.notify import Notice, NotSentError, without_secrets

TIMEOUT_S = 10.0


class Webhook:
    """An http(s) address that takes notices by POST; it may hold a user and a password.

    Raises:
        UsageError: It has no host, or a port that is none.
    """

    def __init__(self, address: str) -> None:
        try:
            parts = urlsplit(address)
            complete = bool(parts.hostname) and parts.port != 0
        except ValueError:
            complete = False
        if not complete or any(sign.isspace() for sign in address):
            raise UsageError(
                "the address of --notify is not complete", "Write https://HOST/PATH, without spaces"
            )
        self._headers = {"Content-Type": "application/json", "User-Agent": "radt"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
            address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._address = address
        # Redirects are not followed: they turn a POST into a GET, and the notice would be lost
        # without a word.
        self._opener = urllib.request.build_opener(_NoRedirect)

    def deliver(self, notice: Notice) -> None:
        """POST it.

        Raises:
            NotSentError: It was not taken.
        """
        request = urllib.request.Request(  # noqa: S310 - the scheme was looked at
            self._address, data=notice.to_json(), headers=self._headers, method="POST"
        )
        shown = without_secrets(self._address)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S):
                pass  # what it answers is of no use
        except urllib.error.HTTPError as error:
            error.close()
            raise NotSentError(f"was not taken: {shown} answered {error.code}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise NotSentError(f"was not sent: {shown}: {reason}") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,  # noqa: ARG002
        fp: IO[bytes],  # noqa: ARG002
        code: int,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        headers: Message,  # noqa: ARG002
        newurl: str,  # noqa: ARG002
    ) -> None:
        return None
