"""The documentation site is built without network, and its reference is complete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

import radt
from docs.generator.__main__ import build
from docs.generator.check import problems
from radt import errors
from radt.analysis.quantities import Quantity
from radt.cli import group
from radt.experiment.columns import Column
from radt.listeners import registry
from radt.listeners.api import Source
from radt.render import report_csv, report_json
from radt.render.report_content import Content
from radt.settings import SETTINGS

ROOT = Path(__file__).parents[2]


class Rendered(HTMLParser):
    """What a page shows: its ids, its pieces of code, its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.codes: set[str] = set()
        self.text = ""
        self._in_code = 0
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids.update(value for name, value in attrs if name == "id" and value)
        if tag == "code":
            self._in_code += 1
            self.codes.add("")
            self._code = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "code":
            self._in_code -= 1
            self.codes.add(self._code)

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_code:
            self._code += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("docs")).parent


def commands(
    command: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield " ".join((*path, name)), found
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))


def test_what_is_in_reports_for_programs(site: Path) -> None:
    page = Rendered(site / "reference" / "quantities.html")
    assert set(report_csv.COLUMNS) - page.codes == set()
    told = page.text[page.text.index('format "radt-report"') :]
    keys = json.loads(report_json.as_json(Content((), (), ())))
    assert {key for key in keys if f"{key} " not in told} == set()


def test_every_command_with_every_option(site: Path) -> None:
    page = Rendered(site / "reference" / "commands.html")
    named = {code.split(" ")[0] for code in page.codes}
    found = dict(commands(group))
    assert {f"radt-{name.replace(' ', '-')}" for name in found} - page.ids == set()
    options = {
        option
        for command in found.values()
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert {option for option in options if option.strip()} - named == set()
    usages = {" ".join(one.split()[:2]) for one in page.codes if one.startswith("radt ")}
    assert {f"radt {name.split()[0]}" for name in found} - usages == set()


def test_every_setting(site: Path) -> None:
    page = Rendered(site / "reference" / "settings.html")
    for setting in SETTINGS:
        assert setting.label.lower() in page.ids
        assert set(setting.variables) - page.codes == set()
        assert " ".join(setting.help.split()) in page.text
        if setting.name:
            assert setting.name in page.codes
            assert f"--{setting.name}" in {code.split(" ")[0] for code in page.codes}


def test_every_variable(site: Path) -> None:
    """Those that are no settings, too."""
    page = Rendered(site / "reference" / "settings.html")
    sources = [
        path for part in ("radt", "listeners", "frontend") for path in (ROOT / part).rglob("*.py")
    ]
    used = {
        name
        for path in sources
        for name in re.findall(r"\bRADT_[A-Z][A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))
    }
    assert {name for name in used if name not in page.text} == set()


def test_every_column(site: Path) -> None:
    page = Rendered(site / "reference" / "columns.html")
    for column in Column:
        assert column.lower() in page.ids
        assert {column.value, column.field.example} - page.codes == set()
        assert " ".join(column.field.description.split()) in page.text


def test_every_listener_with_every_series(site: Path) -> None:
    page = Rendered(site / "reference" / "metrics.html")
    found = registry.load()
    sources: list[type[Source]] = [*found.listeners.values(), *found.profilers.values()]
    own = [kind for kind in sources if kind.__module__.startswith("radt.listeners.")]
    assert {kind.name for kind in own} - page.ids == set()
    assert {metric.name for kind in own for metric in kind.metrics()} - page.codes == set()
    assert {f"{kind.name}:{word}" for kind in own for word in kind.accepts} - page.codes == set()


def test_every_public_name(site: Path) -> None:
    page = Rendered(site / "reference" / "python.html")
    public = {
        f"radt.{name}" for name in radt.__all__ if not name.startswith("__") and name != "run"
    }
    of_run = {f"radt.Run.{name}" for name in dir(radt.Run) if not name.startswith("_")}
    assert {*public, *of_run, "radt.Run.log_metric"} - page.ids == set()
    integrations = {
        *("lightning.LightningLogger", "lightning.RadtCallback", "transformers.RadtCallback"),
        *("keras.RadtCallback", "accelerate.RadtTracker", "tensorboard.SummaryWriter"),
    }
    assert {f"radt.integrations.{name}" for name in integrations} - page.ids == set()


def test_every_error_and_quantity(site: Path) -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    names = {kind.__name__ for kind in kinds if issubclass(kind, errors.RadtError)}
    page = Rendered(site / "reference" / "exit-codes.html")
    assert names - page.codes == set()
    assert set(Quantity) - Rendered(site / "reference" / "quantities.html").codes == set()


def test_every_page_of_the_project_is_in_it(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    pages += [
        Path("experiments") / f"{path.parent.name}.md"
        for path in ROOT.glob("experiments/*/README.md")
    ]
    assert [page for page in pages if not (site / page.with_suffix(".html")).exists()] == []


SMALL = """
site_name: small
use_directory_urls: false
theme: {name: material, font: false}
nav: [index.md]
"""


class Project:
    """A small one, with a site of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "docs").mkdir()
        self.write("mkdocs.yml", SMALL)
        self.write("docs/assets/worker.js", "")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def build(self) -> str:
        """Build it; returns what its first page says."""
        return Rendered(build(self.root / "build", self.root)).text


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_links_out_of_the_folder_lead_to_pages(project: Project) -> None:
    project.write("docs/index.md", "# Small\n\n[it](../tool.py), [README](../README.md#more)\n")
    project.write("tool.py", "print('```')  # a tool\n")
    project.write("README.md", "# Read me\n\n## More\n\n[back](docs/index.md)\n")
    assert "Small" in project.build()
    site = project.root / "build" / "site"
    assert "# a tool" in Rendered(site / "source" / "tool.py.html").text


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a](nowhere.md)", "index.md links to nowhere.md"),
        ("[a](index.md#nowhere)", "nowhere"),
        ("<!-- generated: weather -->", "'weather', which nothing generates"),
        ("<a href='gone.html'>a</a>", "gone.html"),
        ("<img src='https://example.org/a.png' alt=''>", "fetches https://example.org/a.png"),
    ],
)
def test_what_is_wrong_fails_the_build(project: Project, text: str, said: str) -> None:
    project.write("docs/index.md", f"# Small\n\n{text}\n")
    with pytest.raises(errors.UsageError, match=re.escape(said)):
        project.build()


def test_a_page_without_a_place_fails_the_build(project: Project) -> None:
    project.write("docs/index.md", "# Small\n")
    project.write("docs/lost.md", "# Lost\n")
    with pytest.raises(errors.UsageError, match=r"lost\.md: in no part of the navigation"):
        project.build()


def test_fonts_of_others_fail_the_build(project: Project) -> None:
    project.write("docs/index.md", "# Small\n")
    project.write("mkdocs.yml", SMALL.replace(", font: false", ""))
    with pytest.raises(errors.UsageError, match=re.escape("fetches https://fonts")):
        project.build()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", "<script src='//cdn.example.org/a.js'></script>"),
        ("a.html", "<link rel=stylesheet href=https://fonts.example.org/a.css>"),
        ("a.html", "<a href='b.html'>b</a>"),
        ("a.html", "<a href='#b'>b</a>"),
        ("a.css", "@font-face { src: url(https://fonts.example.org/a.woff2) }"),
    ],
)
def test_problems_of_a_site(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert len(list(problems(tmp_path))) == 1
