"""The site: no link to nothing, no request to elsewhere, and every public name."""

import importlib
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from filelock import FileLock

pytest.importorskip("furo", reason="make docs installs what makes the site")
pytest.importorskip("myst_parser", reason="make docs installs what makes the site")

ROOT = Path(__file__).parents[2]
PUBLIC = (
    "pncs_flower",
    "pncs_flower.clients",
    "pncs_flower.simulations",
    "pncs_flower.strategies",
    "pncs_flower.strategies.combinations",
    "pncs_flower.strategies.legacy",
)


def build(pages: Path, to: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going"]
    command += ["-d", f"{to}-doctrees", "-c", str(ROOT / "docs" / "site"), str(pages), str(to)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def small(folder: Path, page: str) -> Path:
    """Return a folder of two pages, a front page and one more."""
    pages = folder / "docs"
    pages.mkdir()
    (folder / "there.py").write_text("", encoding="utf-8")
    index = "# Home\n\n## Start\n\n- [The page](page.md): what it is\n"
    (pages / "index.md").write_text(index, encoding="utf-8")
    (pages / "page.md").write_text(f"# A page\n\n## A part\n\n{page}\n", encoding="utf-8")
    return pages


def test_links_that_lead_somewhere_are_taken(tmp_path: Path) -> None:
    page = "[home](index.md), [a part](page.md#a-part), [a file](../there.py)"
    done = build(small(tmp_path, page), tmp_path / "site")
    assert done.returncode == 0, done.stderr
    shown = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert 'class="caption-text">Start<' in shown, "the navigation is made from the list"


def test_the_readme_is_the_front_page(tmp_path: Path) -> None:
    readme = "# Name\n\nIn [short](docs/page.md), [in code](there.py).\n\n## Two lines\n\nThese.\n"
    readme += "\n## Read on\n\n- [Nowhere](docs/nowhere.md)\n"
    (tmp_path / "README.md").write_text(readme, encoding="utf-8")
    pages = small(tmp_path, "[two](../README.md#two-lines)")
    index = pages / "index.md"
    text = index.read_text(encoding="utf-8").replace("## Start", "[It](../README.md)\n\n## Start")
    index.write_text(text, encoding="utf-8")
    done = build(pages, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    front, page = ((tmp_path / "site" / f"{name}.html").read_text() for name in ("index", "page"))
    assert ">short</a>, in code." in re.sub(r"</?span[^>]*>", "", front)
    assert 'id="two-lines"' in front
    assert "Nowhere" not in front
    assert 'href="index.html#two-lines"' in page


@pytest.mark.parametrize("link", ["../absent.py", "../README.md"])
def test_a_link_to_no_file_fails(link: str, tmp_path: Path) -> None:
    done = build(small(tmp_path, f"[a file]({link})"), tmp_path / "site")
    assert done.returncode != 0
    assert Path(link).stem in done.stderr


def test_links_to_nothing_and_a_page_that_is_in_no_list_fail(tmp_path: Path) -> None:
    links = "[home](indx.md)\n\n[a part](page.md#another-part)\n\n![a picture](not-there.png)"
    pages = small(tmp_path, links)
    (pages / "lost.md").write_text("# Lost\n", encoding="utf-8")
    done = build(pages, tmp_path / "site")
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if "WARNING" in line]
    for named in ("indx", "another-part", "not-there.png", "lost.md"):
        assert any(named in line for line in told), (named, done.stderr)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The whole site, made once for all workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "site"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            done = build(ROOT / "docs", folder)
            assert done.returncode == 0, done.stderr
    return folder


class Fetched(HTMLParser):
    """Collects what a browser fetches for a page by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        names = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}
        if tag in names and values.get(names[tag]):
            self.found.append(str(values[names[tag]]))


@pytest.mark.minutes
def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 20
    for page in pages:
        reader = Fetched()
        reader.feed(page.read_text(encoding="utf-8"))
        assert reader.found
        assert [each for each in reader.found if re.match(r"(\w+:)?//", each)] == [], page
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//[^)]*", text) == [], style


@pytest.mark.minutes
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").iterdir())
    ids = set(re.findall(r' id="(pncs_flower[\w.]+)"', shown))
    for module in PUBLIC:
        names = importlib.import_module(module).__all__
        missing = {name for name in names if f"{module}.{name}" not in ids}
        assert missing <= {"parse_combination"}, module


@pytest.mark.minutes
def test_every_setting_and_command_is_in_the_reference(site: Path) -> None:
    app = tomllib.loads((ROOT / "simulations" / "pyproject.toml").read_text(encoding="utf-8"))
    settings = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    for name in app["tool"]["flwr"]["app"]["config"]:
        assert f'<span class="pre">{name}</span>' in settings, name
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for name in ("run", "sweep", "report", "reproduce", "rules", "data-list", "data-get", "bench"):
        assert f'id="pncs-{name}"' in commands, name
    assert '<span class="pre">--num-selected' in commands
