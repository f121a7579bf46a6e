"""What those get to see who may not come in, in plain text or on a page without scripts."""

from __future__ import annotations

from math import ceil

from flask import request
from markupsafe import escape
from werkzeug.wrappers import Response

#: Set on refusals, so that an open page can tell them from other errors.
REFUSED = "X-Radt-Refused"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>radt</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 15vh auto 0; max-width: 560px; padding: 0 24px;
  font: 13px/20px system-ui, "Segoe UI", Roboto, sans-serif;
  background: light-dark(#f6f7f9, #14161a); color: light-dark(#23272d, #dfe3e8); }}
h1 {{ font-size: 16px; margin: 0 0 8px; font-weight: 650; }}
p {{ margin: 0 0 16px; color: light-dark(#68707b, #949da8); }}
p[role=alert] {{ color: light-dark(#c22f2f, #ff8080); }}
form {{ display: flex; gap: 8px; }}
input, button {{ font: inherit; height: 32px; box-sizing: border-box; border-radius: 4px;
  border: 1px solid light-dark(#a0a7b0, #5c6570); background: light-dark(#fff, #1b1e22);
  color: inherit; padding: 0 8px; }}
input {{ flex: 1; min-width: 0; }}
button {{ padding: 0 16px; background: light-dark(#4263eb, #748ffc); border-color: transparent;
  color: light-dark(#fff, #14161a); cursor: pointer; }}
:focus-visible {{ outline: 2px solid light-dark(#4263eb, #748ffc); outline-offset: 1px; }}
</style></head><body><main><h1>{title}</h1>{content}</main></body></html>
"""
_FORM = """<p>Open the address that <code>radt dashboard</code> printed, or give its token here.
One that was made up by <code>--token</code> is another after each start.</p>{wrong}
<form method="post" action="/_login"><input type="password" name="token" aria-label="Token"
 autocomplete="current-password" required autofocus><button>Open</button></form>"""
_WRONG = '<p role="alert">That was not the token.</p>'


def refusal(text: str, status: int = 403) -> Response:
    """A sentence, as plain text."""
    response = Response(text + "\n", status=status, mimetype="text/plain")
    response.headers[REFUSED] = "yes"
    return response


def too_many(wait_s: float) -> Response:
    """After too many wrong attempts."""
    response = refusal(
        f"Too many wrong attempts; the next is looked at in {ceil(wait_s)} seconds.", 429
    )
    response.headers["Retry-After"] = str(ceil(wait_s))
    return response


def ask_for_token(*, wrong: bool = False) -> Response:
    """For people a page with a form, for programs a sentence."""
    if request.accept_mimetypes.best_match(["text/plain", "text/html"]) != "text/html":
        return refusal("Open the address that `radt dashboard` printed, with its token.")
    content = _FORM.format(wrong=_WRONG if wrong else "")
    page = _PAGE.format(title=escape("This dashboard asks for its token"), content=content)
    response = Response(page, status=403, mimetype="text/html")
    response.headers[REFUSED] = "yes"
    return response
