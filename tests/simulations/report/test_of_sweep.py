"""The page on a sweep, from runs written by hand: what it says, and that everybody can use it."""

import html
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pncs_flower.simulations.config import default_run_config
from pncs_flower.simulations.folders import SWEEP, WRITTEN
from pncs_flower.simulations.report import of_sweep
from pncs_flower.simulations.report.of_sweep import write_report
from pncs_flower.simulations.report.pictures_of_sweep import draw_curves
from pncs_flower.simulations.report.tables_of_sweep import (
    converged_table,
    in_order_of_score,
    reached_table,
    unreached,
)
from pncs_flower.simulations.report.words_of_sweep import (
    last_rounds,
    least_and_most,
    verdicts_of,
    what_was_compared,
)
from pncs_flower.simulations.sweep.cell import Run
from pncs_flower.simulations.sweep.plan import Report
from pncs_flower.simulations.sweep.progress import ROUNDS
from pncs_flower.simulations.sweep.results import Description, SweepResults
from pncs_flower.simulations.sweep.statistics import compare, find_leads

NEEDS_CHROMIUM = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs Debian's package chromium"
)


def run(panel: str, line: str, seed: int, scores: Sequence[float], clients: int = 10) -> Run:
    """Return a run of which each round takes 90 simulated seconds."""
    rng = np.random.default_rng(seed)
    keys = [str(client) for client in range(clients)]
    many = clients if line == "all" else 2
    rows: list[dict[str, Any]] = [
        {
            "round": number,
            "clients": keys,
            "chosen": sorted(rng.choice(keys, many, replace=False).tolist()),
            "accuracy": score,
            "loss": 1.0,
            "bytes_up": {"pre-round": 500, "training": 1000 * many + seed},
            "bytes_down": {"training": 1000 * many},
            "clock": 90.0 * (number - 1),
            "simulated_seconds": {"training": 90.0},
            "notes": [],
        }
        for number, score in enumerate(scores, start=1)
    ]
    own = {"shards-per-client": int(panel.split()[1]), "num-selected": many, "devices": "phones"}
    cell = {
        "panel": panel,
        "line": line,
        "rule": line,
        "seed": seed,
        "clients": clients,
        "settings": {**default_run_config(), **own, "seed": seed},
        "command": f"pncs run --engine in-process --set seed={seed} --set strategy={line}",
    }
    served = dict.fromkeys(("gini", "jain", "mean-client-accuracy", "worst-tenth-accuracy"), 0.5)
    summary = {
        **served,
        **dict.fromkeys(("never-chosen", "longest-wait", "client-accuracy-variance"), 1.0),
        "initial-accuracy": 0.1,
        "data": "digits",
        "notes": [],
        "versions": {"pncs-flower": "0.1.0"},
    }
    return Run(cell, rows, summary)


def sweep(
    panels: Mapping[str, Mapping[str, Sequence[float]]], rounds: int = 5, **about: Any
) -> SweepResults:
    """Return a sweep from the score at which each line of each panel ends with each seed."""
    found = {
        panel: {
            line: [
                run(panel, line, seed, np.linspace(0.1, end, rounds).tolist() + [end] * 4)
                for seed, end in enumerate(ends)
            ]
            for line, ends in lines.items()
        }
        for panel, lines in panels.items()
    }
    report = Report(reference="pncs", rounds=(2, rounds), targets=(0.45, 0.65))
    return SweepResults(Description("A <sweep>", report, **about), found)


TEN = np.arange(10) / 1000
FEW = {
    "shards 1": {"pncs": 0.6 + TEN, "uniform": 0.5 + TEN[::-1], "oort": 0.55 + 10 * TEN},
    "shards 2": {"pncs": 0.5 + TEN, "uniform": 0.7 - TEN, "all": 0.9 + TEN},
}


class Page(HTMLParser):
    """What is on a page, for whoever does not see it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attributes}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, *names: str) -> list[dict[str, str]]:
        """Return the attributes of all elements of some names."""
        return [attributes for tag, attributes in self.tags if tag in names]

    def values(self, name: str) -> list[str]:
        """Return all values of an attribute."""
        return [attributes[name] for _, attributes in self.tags if name in attributes]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    about = {"command": "pncs sweep few.toml --set 'lr=0.3'", "file": 'title = "A <sweep>"\n'}
    return write_report(tmp_path_factory.mktemp("few"), sweep(FEW, **about))


@pytest.mark.minutes
def test_the_page_can_be_used_without_being_seen(path: Path) -> None:
    page = Page(path)
    assert page.open == []
    assert page.of("html")[0]["lang"] == "en"
    assert [len(page.of(each)) for each in ("header", "nav", "main", "h1")] == [1, 1, 1, 1]
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = Counter(page.values("id"))
    assert [name for name, times in ids.items() if times > 1] == []
    named = page.values("aria-labelledby") + [h[1:] for h in page.values("href") if h[0] == "#"]
    assert set(named) <= ids.keys()
    assert len(page.of("table")) == len(page.of("caption")) > 5
    assert all(each.get("scope") in ("col", "row") for each in page.of("th"))
    pictures = [svg for svg in page.of("svg") if svg.get("role") == "img"]
    assert len(pictures) == 4 * 2 + 3
    assert all(re.search(r"\d", svg["aria-label"]) for svg in pictures)
    assert all(svg.get("aria-hidden") for svg in page.of("svg") if svg not in pictures)


def test_the_page_fetches_nothing(path: Path) -> None:
    page = Page(path)
    assert page.values("src") == []
    embedded = [href for href in page.values("xlink:href") if not href.startswith("#")]
    assert all(href.startswith("data:image/png;base64,") for href in embedded)
    beside = [href for href in page.values("href") if not href.startswith(("#", "data:"))]
    assert {"rounds.csv", "runs.csv", "tests.csv", "reached.csv", "bytes.png"} <= {*beside}
    assert {each.name for each in path.parent.iterdir()} <= {*WRITTEN[SWEEP]}
    assert all((path.parent / name).is_file() for name in beside)
    assert "default-src 'none'" in page.of("meta")[3]["content"]
    assert "http" not in path.read_text(encoding="utf-8").replace("http-equiv", "")


def test_the_page_begins_with_what_was_compared_and_how_to_run_it_again(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "A &lt;sweep&gt;" in text
    assert (
        "3 entries with 2 of 10 clients chosen in each of 9 rounds, and all clients at once for "
        "comparison, on digits, with 1 or 2 label shards for each client, on simulated devices "
        "(phones): 10 seeds, 60 runs." in text
    )
    assert ">pncs sweep few.toml --set &#39;lr=0.3&#39;</code>" in text
    assert "<code>title = &#34;A &lt;sweep&gt;&#34;" in text
    assert text.count("pncs run --engine in-process --set seed=0") == 6
    assert text.index('id="curves"') < text.index('id="verdict"') < text.index("<table")


def test_verdicts_are_in_words() -> None:
    results = sweep(FEW)
    one, two = verdicts_of(results, compare(results))
    assert one.panel == "shards 1"
    # Higher with six seeds by 50, 41, ... 5 thousandths, lower with four.
    assert re.fullmatch(
        r"<strong>pncs</strong> is highest, at 0\.60[45]; oort is next, 0\.0(?:09|10) lower, "
        r"<em>which may be chance</em> \(p = 0\.\d+; higher with 6 of 10 seeds\)\.",
        one.lead,
    )
    assert one.reference == (
        "<strong>pncs</strong> is above uniform <em>by more than chance</em>; it cannot be told "
        "from oort."
    )
    # The ceiling is above both, and does not compete; 2 / 2**10, twice by Holm.
    assert two.lead == (
        "<strong>uniform</strong> is highest, at 0.696; pncs is next, 0.191 lower, <em>more "
        "than chance</em> (p = 0.004; higher with 10 of 10 seeds)."
    )
    assert two.reference.endswith("is below uniform and all <em>by more than chance</em>.")


def test_few_seeds_tell_nothing_from_chance() -> None:
    results = sweep({"shards 1": {"pncs": [0.6, 0.6], "uniform": [0.5, 0.5], "oort": [0.4, 0.4]}})
    (verdict,) = verdicts_of(results, compare(results))
    assert verdict.panel == ""
    assert "too few seeds to tell that from chance</em> (higher with 2 of 2 seeds)" in verdict.lead
    # Seven seeds can give 2 / 2**7, which is .031 for the better of two; six .062.
    assert "With 2 seeds no difference" in verdict.reference
    assert "it takes 7 seeds" in verdict.reference


def test_a_lead_that_was_not_to_be_tested_is_corrected_for_all_pairs() -> None:
    lines = {"pncs": 0.1 + TEN, "uniform": 0.5 + TEN, "oort": 0.6 + 2 * TEN, "all": 0.9 + TEN}
    results = sweep({"shards 1": lines})
    (lead,) = find_leads(results, compare(results))
    assert (lead.line, lead.next, lead.seeds, lead.ahead) == ("oort", "uniform", 10, 10)
    # Three pairs of three lines that compete.
    assert lead.p == lead.least_p == pytest.approx(3 * 2 / 2**10)
    alone = sweep({"shards 1": {"pncs": TEN}})
    (lead,) = find_leads(alone, compare(alone))
    assert (lead.line, lead.next, lead.p) == ("pncs", "", 1.0)
    assert "nothing beside it" in verdicts_of(alone, [])[0].lead


def test_the_least_and_the_most_are_named_as_far_as_they_are_shown() -> None:
    values = {"a": 1.02, "b": 1.04, "c": 3.0}
    assert least_and_most(values, ".1f", "Least", "Most", "All", " kB") == (
        "Least a and b, 1.0 kB. Most c, 3.0 kB."
    )
    assert least_and_most({"a": 1.0, "b": 1.0}, ".0f", "", "", "All:") == "All: 1 with any rule."
    assert least_and_most({"a": 1.0}, ".0f", "", "", "All:") == "All: 1."


def test_a_sweep_of_all_clients_alone_is_told_too() -> None:
    results = sweep({"shards 1": {"all": [0.9]}})
    assert what_was_compared(results, "digits").startswith("All of 10 clients in each of 9 rounds")


@pytest.mark.parametrize(
    ("rounds", "words"),
    [(1, "the only round"), (2, "both rounds"), (5, "all 5 rounds"), (9, "the last 5 rounds")],
)
def test_no_more_rounds_are_spoken_of_than_there_are(rounds: int, words: str) -> None:
    few = run("shards 1", "pncs", 0, [0.5] * rounds)
    results = SweepResults(Description("a title", Report()), {"shards 1": {"pncs": [few]}})
    assert last_rounds(results) == words


def test_a_score_that_is_not_finite_is_below_all_and_in_no_test() -> None:
    lines = {"pncs": [np.nan, 0.5], "uniform": [0.3, 0.4], "oort": [np.nan, np.nan]}
    results = sweep({"shards 1": lines})
    tests = compare(results)
    assert [(test.line, test.seeds) for test in tests] == [("uniform", 1)]
    assert in_order_of_score(results) == ["uniform", "pncs", "oort"]
    cells = {row[0]: row[1] for row in converged_table(results, tests).rows}
    assert (cells["pncs"], cells["oort"]) == ("-", "-")
    assert "<strong>0.350 " in cells["uniform"]
    (verdict,) = verdicts_of(results, tests)
    assert verdict.lead.startswith("<strong>uniform</strong> is highest, at 0.350; pncs is next")
    told = "a finite accuracy: pncs (1 of 2 runs), oort (2 of 2 runs); where one has none"
    assert told in of_sweep._notes(results, {})[0]
    alone = sweep({"shards 1": {"pncs": [np.nan]}})
    (verdict,) = verdicts_of(alone, compare(alone))
    assert verdict.lead == "No rule has a finite score in these rounds."


def test_targets_that_no_run_reaches_have_no_column() -> None:
    results = sweep({"shards 1": {"pncs": [0.5, 0.6], "uniform": [0.3, np.nan]}})
    assert unreached(results) == [0.65]
    _, table = reached_table(results, ROUNDS)
    assert table.headings == ["rule", "45%"]
    low = sweep({"shards 1": {"pncs": [0.2]}})
    assert unreached(low) == [0.45, 0.65]
    assert reached_table(low, ROUNDS)[1].rows == []


def labels(picture: str) -> list[str]:
    """Return what stands beside the axes of a plot: of that below, its name, and of the other."""
    return re.findall("<text[^>]*>([^<]*)</text>", picture)


def test_a_plot_shows_a_single_round_and_where_no_score_is_finite(tmp_path: Path) -> None:
    def drawn(scores: Sequence[float]) -> str:
        panels = {"shards 1": {"pncs": [run("shards 1", "pncs", 0, scores)]}}
        results = SweepResults(Description("a title", Report()), panels)
        return draw_curves(results, ROUNDS, tmp_path / "rounds.png")[0].svg

    one = drawn([0.5])
    assert re.search('class="line".*?<use', one, re.S), "a point"
    *_, lowest, _, highest = labels(one)[2:]
    assert labels(one)[:2] == ["1", "round"]
    assert float(highest) - float(lowest) < 0.05, "not flattened more"
    assert labels(drawn([np.nan] * 4)) == [
        *"1234",
        "round",
        "0.0",
        "0.2",
        "0.4",
        "0.6",
        "0.8",
        "1.0",
    ]
    assert labels(drawn([0.5, 0.6, np.nan, np.nan]))[:5] == [*"1234", "round"]


def test_a_run_alone_is_told_of_without_seeds_and_rules_beside_it(tmp_path: Path) -> None:
    alone = run("shards 1", "pncs", 0, [0.4, 0.4], clients=2)
    stopped = Run(alone.cell, alone.rounds, {**alone.summary, "stopped-after-round": 1})
    panels = {"shards 1": {"pncs": [stopped]}}
    about = Description("a title", Report(targets=(0.45, 0.65)))
    text = write_report(tmp_path, SweepResults(about, panels)).read_text(encoding="utf-8")
    said = text[text.index("<body>") : text.index("<script>")]
    assert "1 seed, 1 run. It stopped early, and counts with the model that it ended with." in said
    assert "in 2 rounds each client was chosen 2 times." in said
    assert ">Accuracy of both rounds</h2>" in said
    assert re.search("<td>-1</td><td>[^<]*; -1: for pncs as long as leaves more free", said)
    assert "Clients never chosen: 1." in said, "a count, and no mean of counts"
    assert "No run reaches 45% or 65%; the highest accuracy of any round is 0.400." in said
    for idle in (
        "over seeds",
        "first seed that",
        "in bold",
        "<strong>0.400",
        "over all plots",
        "tests.csv",
    ):
        assert idle not in said


def test_rules_that_end_alike_are_level() -> None:
    results = sweep({"shards 1": {"pncs": [0.5, 0.6], "uniform": [0.5, 0.6]}})
    (verdict,) = verdicts_of(results, compare(results))
    assert verdict.lead == "<strong>pncs</strong> is highest, at 0.550; uniform is level with it."


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, by WCAG 2."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    values = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_and_lines_stand_out(scheme: int) -> None:
    css = (Path(of_sweep.__file__).parent / "page.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", css.split(":root {")[1 + scheme]))
    assert len(colours) == 21

    def contrast(one: str, other: str) -> float:
        low, high = sorted(luminance(colours[each]) for each in (one, other))
        return (high + 0.05) / (low + 0.05)

    texts = [(text, "paper") for text in ("ink", "quiet", "link", "good", "bad", "warm")]
    texts += [("ink", "raised"), ("quiet", "raised"), ("ink", "warm-paper"), ("link", "warm-paper")]
    for text, paper in texts:
        assert contrast(text, paper) >= 4.5, (text, paper)  # AA for text
    for number in range(8):
        assert contrast(f"line-{number}", "paper") >= 3, number  # AA for graphics


@pytest.mark.minutes
def test_a_large_sweep_is_less_than_a_megabyte(tmp_path: Path) -> None:
    rules = ["pncs", *(f"rule {number}" for number in range(10)), "all"]
    ends = {rule: 0.4 + 0.03 * number + TEN for number, rule in enumerate(rules)}
    large = sweep({f"shards {shards}": ends for shards in (1, 2, 5)}, rounds=36)
    assert len(large.runs) == 12 * 3 * 10
    assert write_report(tmp_path, large).stat().st_size < 1_000_000


TRY = """
<script>
const log = {};
function sort(id, column) {
  const table = document.getElementById(id).closest("table");
  const cells = () => [...table.tBodies[0].rows].map((row) => row.cells[column].textContent);
  const heading = table.tHead.rows[0].cells[column];
  const steps = [[null, ...cells()]];
  for (let step = 0; step < 3; step++) {
    heading.querySelector("button").click();
    steps.push([heading.getAttribute("aria-sort"), ...cells()]);
  }
  return steps;
}
log.converged = sort("end-table", 2);
log.reached = sort("reach-1", 2);
log.rules = sort("cost-table", 0);
const rule = document.querySelector(".looks button");
rule.click();
log.pressed = [rule.getAttribute("aria-pressed"), rule.dataset.rule];
log.lit = [...document.querySelectorAll(".lit")].map((each) => each.dataset.rule);
const line = document.querySelector(".line");
line.dispatchEvent(new PointerEvent("pointerenter"));
const [name] = [...document.querySelectorAll(".looks .lit")].filter((each) => each !== rule);
log.pointed = [line.querySelector("title").textContent, name.textContent];
log.copy = document.querySelector(".command button").textContent;
log.shown = [...document.querySelectorAll(".view")].filter((each) => each.offsetHeight).length;
document.getElementById("end-table").closest("table").style.width = "60rem";
log.beyond = document.documentElement.scrollWidth - document.documentElement.clientWidth;
document.title = JSON.stringify(log);
</script>
"""


@NEEDS_CHROMIUM
def test_in_a_browser_tables_sort_and_lines_are_picked_out(path: Path, tmp_path: Path) -> None:
    tried = tmp_path / "tried.html"
    tried.write_text(path.read_text(encoding="utf-8").replace("</body>", f"{TRY}</body>"))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,700"]
    command += ["--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, tried.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert "CONSOLE" not in done.stderr
    title = re.search("<title>(.*?)</title>", done.stdout)
    assert title is not None
    log = json.loads(html.unescape(title[1]))
    for steps in log.values():
        if isinstance(steps, list) and len(steps) == 4:
            assert steps[3] == steps[0], "the third time it is as it was"
    before, down, up, _ = log["converged"]
    assert sorted(before[1:]) == sorted(up[1:])
    assert [cell[:4] for cell in down] == ["desc", "0.90", "0.69", "0.50", "-"]
    assert [cell[:4] for cell in up] == ["asce", "0.50", "0.69", "0.90", "-"]
    _, down, up, _ = log["reached"]
    assert down[0] == "descending"
    assert down[1].startswith("never"), "later than all"
    assert up[-1].startswith("never")
    assert not up[1].startswith("never")
    assert log["rules"][1] == ["ascending", *sorted(log["rules"][0][1:])]
    assert log["pressed"][0] == "true"
    assert {*log["lit"]} == {log["pressed"][1]}
    assert log["pointed"][0] == log["pointed"][1] != ""
    assert log["copy"] == "Copy"
    assert log["shown"] == 1, "of four views, the one that is chosen"
    assert log["beyond"] == 0, "nothing but tables is wider than the window"
