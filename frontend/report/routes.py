"""The addresses of the table as a file. `radt.frontend.access` looks at these requests, too."""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask, Response, request

from radt.errors import RadtError
from radt.frontend.export.names import content_disposition, file_name
from radt.frontend.report.choices import Choices
from radt.frontend.report.data import Shown, read_shown
from radt.frontend.report.files import as_csv, as_markdown
from radt.frontend.source import Source
from radt.frontend.view import View

CSV_PATH = "/report/table.csv"
MARKDOWN_PATH = "/report/table.md"


def install(server: Flask, source: Source) -> None:
    """Add the addresses to the application."""

    def answering(
        write: Callable[[Shown, Choices], str], mime: str, suffix: str
    ) -> Callable[[], Response]:
        def answer() -> Response:
            view = View.from_query(request.query_string.decode("ascii", "replace"))
            try:
                shown = read_shown(source, view)
            except RadtError as error:
                return Response(f"{error}\n", 503, content_type="text/plain; charset=utf-8")
            response = Response(write(shown, Choices.of(view.options)), content_type=mime)
            name = file_name([*shown.experiments[:1], "report"], suffix)
            response.headers["Content-Disposition"] = content_disposition(name)
            response.headers["Cache-Control"] = "no-store"
            return response

        return answer

    for path, write, mime in (
        (CSV_PATH, as_csv, "text/csv; charset=utf-8"),
        (MARKDOWN_PATH, as_markdown, "text/markdown; charset=utf-8"),
    ):
        suffix = path.rpartition(".")[2]
        server.add_url_rule(path, f"report-{suffix}", answering(write, mime, suffix))
