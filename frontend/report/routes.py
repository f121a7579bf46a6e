"""The addresses of the report as a file. `radt.frontend.access` looks at these requests, too."""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask, Response, request

from radt.errors import RadtError
from radt.frontend.export.names import content_disposition
from radt.frontend.report.choices import Choices
from radt.frontend.report.data import content_of, read_shown
from radt.frontend.source import Source
from radt.frontend.view import View
from radt.report.formats.kinds import ReportFormat
from radt.report.formats.writing import file_name, rendered

#: What the page offers, and what its links say.
DOWNLOADS = {
    ReportFormat.HTML: "HTML",
    ReportFormat.MARKDOWN: "Markdown",
    ReportFormat.CSV: "CSV",
    ReportFormat.JSON: "JSON",
}


def path_of(kind: ReportFormat) -> str:
    """Where such a file is had from."""
    return f"/report/file.{kind.suffix}"


def install(server: Flask, source: Source) -> None:
    """Add the addresses to the application."""

    def answering(kind: ReportFormat) -> Callable[[], Response]:
        def answer() -> Response:
            view = View.from_query(request.query_string.decode("ascii", "replace"))
            choices = Choices.of(view.options)
            try:
                shown = read_shown(source, view)
            except RadtError as error:
                return Response(f"{error}\n", 503, content_type="text/plain; charset=utf-8")
            # Columns are chosen to be read; data have all that was measured.
            chosen = choices.columns is not None
            text = rendered(content_of(shown, choices, with_all=not chosen), kind)
            response = Response(text, content_type=kind.mime)
            name = file_name("-".join(shown.experiments[:1]), kind)
            response.headers["Content-Disposition"] = content_disposition(name)
            response.headers["Cache-Control"] = "no-store"
            return response

        return answer

    for kind in DOWNLOADS:
        server.add_url_rule(path_of(kind), f"report-{kind.suffix}", answering(kind))
