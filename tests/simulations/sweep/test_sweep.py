"""A sweep's TOML file: what it expands to, and what is refused before anything runs."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.config import APP_DIRECTORY
from pncs_flower.simulations.sweep.file import changed, read_sweep
from pncs_flower.simulations.sweep.plan import Report
from pncs_flower.simulations.sweep.sweep import Sweep

EXPERIMENTS = sorted((APP_DIRECTORY / "experiments").glob("*.toml"))


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text('title = "a sweep"\nrules = ["pncs", "uniform"]\n' + text)
    return path


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_papers_experiments_are_valid(path: Path) -> None:
    sweep = read_sweep(path)
    assert len(sweep.quickened().cells()) < len(sweep.cells())


def test_every_rule_meets_every_setting_with_every_seed() -> None:
    sweep = Sweep("a sweep", ("pncs", "all"), shards=(1, 2), layers=(1, 2), seeds=3)
    cells = sweep.cells()
    assert len(cells) == 2 * 2 * 2 * 3
    settings = [
        (c.settings["strategy"], c.settings["shards-per-client"], c.settings["model"], c.seed)
        for c in cells
    ]
    assert len(set(settings)) == len(cells)


def test_a_sweep_may_have_partitions_of_both_kinds() -> None:
    cells = Sweep("a sweep", ("pncs",), shards=(2,), dirichlet=(0.1, 1.0), seeds=1).cells()
    keys = ("partition", "shards-per-client", "dirichlet-alpha")
    assert [
        (cell.panel.split(",")[0], *(cell.settings[key] for key in keys)) for cell in cells
    ] == [
        ("shards 2", "shards", 2, 0.5),
        ("dirichlet 0.1", "dirichlet", 5, 0.1),
        ("dirichlet 1", "dirichlet", 5, 1.0),
    ]


def test_one_strategy_may_be_there_twice_under_labels(tmp_path: Path) -> None:
    text = 'rules = ["pncs", "pncs L=0"]\n[rule."pncs L=0"]\nstrategy = "pncs"\nqueue-length = 0\n'
    path = tmp_path / "sweep.toml"
    path.write_text(f'title = "a sweep"\nseeds = 1\n{text}')
    assert [
        (cell.line, cell.settings["strategy"], cell.settings["queue-length"])
        for cell in read_sweep(path).cells()
    ] == [("pncs", "pncs", -1), ("pncs L=0", "pncs", 0)]


def test_all_clients_are_selected_by_the_ceiling() -> None:
    cell = Sweep("a sweep", ("all",), clients=20).cells()[0]
    assert (cell.settings["num-selected"], cell.settings["queue-length"]) == (20, 0)


def test_two_layers_of_vgg16_are_its_last_linear_ones() -> None:
    sweep = Sweep("a sweep", ("pncs",), layers=(2,), model="vgg16")
    assert sweep.cells()[0].settings["trainable-layers"] == "classifier.3,classifier.6"


def test_a_rule_has_settings_of_its_own(tmp_path: Path) -> None:
    sweep = read_sweep(write(tmp_path, "[settings]\nlr = 0.5\n[rule.pncs]\nlr = 0.25\n"))
    assert [cell.settings["lr"] for cell in sweep.cells()[:2]] == [0.25, 0.5]


def test_a_cells_name_depends_on_results_and_not_on_places() -> None:
    sweep = Sweep("a sweep", ("pncs",), seeds=1)

    def name(files: str = "f", **settings: object) -> str:
        changed = {key.replace("_", "-"): value for key, value in settings.items()}
        return replace(sweep, settings=changed).cells()[0].name(files)  # type: ignore[arg-type]

    assert name() == name(data_dir="/elsewhere", cache_dir="x", device="cpu")
    assert len({name(), name(lr=0.5), name("other files")}) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shrads = [1]", "unknown key shrads: did you mean 'shards'"),
        ("[report]\nround = [1]", "unknown key report.round: did you mean 'rounds'"),
        ("claims = []", "unknown key claims: did you mean report.claims"),
        ("lr = 0.1", "lr is a setting: it belongs into the table settings"),
        ("shards = 1", "shards = 1 must be a list"),
        ("seeds = 1.5", "seeds = 1.5 must be a whole number"),
        ("settings = 3", "settings = 3 must be a table"),
        ("[report]\ntargets = 0.4", "report.targets = 0.4 must be a list"),
        ("[report]\nclaims = ['a']", "report.claims\\[0\\] = .a. must be a table"),
        ("shards = [1, 1]", r"shards = \[1, 1\] must be a list of different values"),
        ("shards = []", "shards and dirichlet are both empty"),
        ("seeds = 0", "seeds = 0 must be at least 1"),
        ("layers = [3]", r"layers\[0\] = 3 must be 1 or 2"),
        ("[settings]\nlearning-rate = 1.0", "unknown setting 'learning-rate'"),
        ("[settings]\nlr = -1.0", "lr = -1.0 must be above 0 and finite"),
        ("[quick]\nsedes = 1", "unknown setting 'sedes'"),
        ("[rule.fedcor]\nlr = 1.0", r"\[rule.fedcor\] is for a rule that is not among"),
        ('[report]\nreference = "afl"', "report.reference: there is no 'afl': there are pncs, u"),
        (
            "[[report.claims]]\ntext = ''\nkind = 'best'\nagainst = ['unifrom']",
            r"report.claims\[0\].against: there is no 'unifrom': did you mean 'uniform'\?",
        ),
        ("[rule.pncs]\nstrategy = 'pnsc'", r"\[rule.pncs\] strategy: there is no rule 'pnsc': did"),
        ("seeds = [", "is not TOML"),
        (
            "tune = {lr = [0.1, 0.1], seeds = 1}",
            r"tune.lr = .* must be a list of different",
        ),
        ("tune = {lr = [0.1], seeds = 1}\n[settings]\nlr = 0.5", "lr = 0.5 beside tune"),
        ("tune = {lr = [0.1], seeds = 1}\n[rule.pncs]\nlr = 0.3", "lr = 0.3 beside tune"),
        ("report = [1]", r"report = \[1\] must be a table"),
        ("[quick.settings]\nnum-rounds = 1", "settings stand in .quick. itself"),
        ("tune = {lr = [true], seeds = 1}", r"tune.lr\[0\] = True must be a number"),
        ("tune = {lr = [inf], seeds = 1}", r"tune.lr\[0\] = inf must be above 0 and finite"),
        ("[rule.pncs]\nnum-rounds = 2", r"\[rule.pncs\] num-rounds = 2 .* cannot be compared"),
        ("[rule.pncs]\nmodel = 'cnn'", r"\[rule.pncs\] model = cnn .* cannot be compared"),
        ("[settings]\nmodel = 'mlp'", r"model = mlp is what .* layers = \[2\] stand for"),
        ("[settings]\nmodel = 'vgg16'", "model = vgg16 is what the sweep's keys model = 'vgg16'"),
        ("[settings]\noutput-dir = 'x'", "output-dir = x is for a single run"),
        ("[rule.pncs]\ntensorboard = true", "tensorboard = True is for a single run"),
        ("[report]\ntargets = [nan]", r"report.targets\[0\] = nan must be above 0 and at most 1"),
        ("[report]\nrounds = [0]", r"report.rounds\[0\] = 0 must be at least 1"),
        ("[quick]\nseeds = 'a'", "quick: seeds = 'a' must be a"),
        ("[quick]\nseeds = true", "quick: seeds = True must be a"),
        ("[quick]\nshards = 3", "quick: shards = 3 must be a"),
        ("[quick]\nrules = 'uniform'", "quick: rules = 'uniform' must be a"),
        ("[quick]\ntune = 3", "quick: tune = 3 must be a"),
        ("[quick]\ntitle = 'z'", r"\[quick\] cannot replace title"),
        ("[quick]\nquick = {}", r"\[quick\] cannot replace quick"),
        ("[quick]\nreport = {}", r"\[quick\] cannot replace report"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s)sweep\.toml.*{message}"):
        read_sweep(write(tmp_path, text))


def test_an_unknown_rule_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    for own, told in (
        ('rules = ["pnsc"]\n[report]\nreference = "pncs"', "'pnsc': did you mean 'pncs'?"),
        ('rules = ["pnsc"]\n[rule.pncs]\nlr = 0.1', "'pnsc': did you mean 'pncs'?"),
        ('rules = ["mien"]\n[rule.mine]\nstrategy = "pncs"', "'mien': did you mean 'mine'?"),
        ('rules = ["mine"]\n[rule.mine]\nlr = 1.0', "; a label needs a strategy in [rule.mine]"),
    ):
        path.write_text(f'title = "a sweep"\n{own}\n')
        with pytest.raises(ValueError, match=f"rules: there is no rule .*{re.escape(told)}"):
            read_sweep(path)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ('kind = "sooner"\nby = 3', r"missing: report.claims\[0\].target, .*after"),
        ('kind = "best"\nwithin = 0.1', r"unknown key report.claims\[0\].within: there are text"),
        ('kind = "ahead"\nform = 2', r"\[0\].from; unknown key .*\[0\].form: did you mean 'from'"),
        ('kind = "bst"', r"report.claims\[0\].kind = 'bst' must .* \(did you mean 'best'\?\)"),
        ('knd = "best"', r"missing: report.claims\[0\].kind; .*knd: did you mean 'kind'\?"),
        ('kind = "best"\nagainst = []', r"against = \[\] must be a list of at least 1"),
        ('kind = "best"\nagainst = "uniform"', "against = 'uniform' must be a list"),
        ('kind = "best"\nagainst = [1]', r"against\[0\] = 1 must be text"),
        ('kind = "best"\ntext = 1', "text = 1 must be text"),
        ('kind = "best"\ntext = "two\\nlines"', "must be printable text"),
        ('kind = ["best"]', r"report.claims\[0\].kind = \['best'\] must be one of 'best', 's"),
        ('text = ""', r"report.claims\[0\] = .* must be a table with its kind"),
        ('kind = "similar"\nwithin = "a"', "within = 'a' must be a number"),
        ('kind = "similar"\nwithin = -0.1', "within = -0.1 must be above 0"),
        ('kind = "similar"\nwithin = 2', "within = 2 must be above 0 and at most 1"),
        ('kind = "ahead"\nfrom = 0', "from = 0 must be at least 1"),
        ('kind = "ahead"\nfrom = 2.5', "from = 2.5 must be a whole number"),
        ('kind = "sooner"\ntarget = 0.5\nby = 1\nafter = -5', "after = -5 must be at least 1"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused(claim: str, message: str, tmp_path: Path) -> None:
    own = "".join(
        f"{key}\n" for key in ('text = ""', 'against = ["uniform"]') if key.split()[0] not in claim
    )
    with pytest.raises(ValueError, match=message):
        read_sweep(write(tmp_path, f"[[report.claims]]\n{own}{claim}\n"))


def test_a_claim_of_the_reference_against_itself_is_refused() -> None:
    claim = {"text": "", "kind": "best", "against": ["pncs"]}
    with pytest.raises(ValueError, match="holds the reference 'pncs' against itself"):
        Sweep(
            "a sweep",
            ("pncs", "uniform"),
            report=Report(claims=(claim,)),  # type: ignore[arg-type]
        )


def test_labels_that_give_one_file_name_are_refused() -> None:
    own = {label: {"strategy": "pncs"} for label in ("a=b", "a_b")}
    with pytest.raises(ValueError, match="the rules 'a=b' and 'a_b' differ in no letter"):
        Sweep("a sweep", ("a=b", "a_b"), rule=own)


def test_two_lines_of_one_name_are_refused() -> None:
    own = {"pncs p=2": {"strategy": "uniform"}}
    with pytest.raises(ValueError, match="the rules 'pncs p=2' and 'pncs p=2' differ in no"):
        Sweep("a sweep", ("pncs", "pncs p=2"), parameters={"rule.p": (2,)}, rule=own)


@pytest.mark.parametrize("text", ["", "two\nlines", "\x1b[31mred", "\0"])
def test_a_title_or_label_that_is_no_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"printable text|at least 1 char"):
        Sweep(text, ("uniform",))
    with pytest.raises(ValueError, match=r"printable text|at least 1 char"):
        Sweep("a sweep", (text,), rule={text: {"strategy": "pncs"}})


def test_concentrations_that_look_alike_are_told_apart() -> None:
    sweep = Sweep("a sweep", ("uniform",), shards=(), dirichlet=(0.5, 0.50000001, 1), seeds=1)
    assert [cell.panel.partition(",")[0] for cell in sweep.cells()] == [
        "dirichlet 0.5",
        "dirichlet 0.50000001",
        "dirichlet 1",
    ]


def test_a_command_can_be_pasted() -> None:
    cell = Sweep("a sweep", ("pncs",), settings={"rule.layers": "fc1, fc2"}).cells()[0]
    assert """--set 'rule=layers = "fc1, fc2"'""" in cell.command


def test_a_label_too_long_for_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match="has too long a name"):
        Sweep("a sweep", ("é" * 120,), rule={"é" * 120: {"strategy": "pncs"}})


@pytest.mark.parametrize(
    "text",
    [
        "[settings]\nseed = 7",
        "[settings]\nstrategy = 'oort'",
        "[settings]\nnum-selected = 3",
        "[settings]\npartition = 'iid'",
        "[settings]\nshards-per-client = 5",
        "[settings]\ndirichlet-alpha = 0.5",
        "queue = [0, 2]\n[settings]\nqueue-length = 4",
        "[rule.pncs]\nseed = 7",
        "queue = [0, 2]\n[rule.pncs]\nqueue-length = 4",
        "[rule.pncs]\nshards-per-client = 5",
    ],
)
def test_a_setting_that_is_an_axis_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is an axis of a sweep: use "):
        read_sweep(write(tmp_path, text))


def test_a_key_of_the_file_is_no_setting_of_a_command() -> None:
    sweep = Sweep("a sweep", ("pncs",))
    for key, told in (
        ("clients", "change it there$"),
        ("selected", r"values with --only selected="),
    ):
        with pytest.raises(ValueError, match=f"--set {key}=3: {key} is no setting, but .*{told}"):
            changed(sweep, False, [], {}, {key: 3})


def test_more_clients_than_there_are_cannot_be_selected() -> None:
    with pytest.raises(ValueError, match="selected = 20 is more than clients = 10"):
        Sweep("a sweep", ("pncs",), selected=(2, 20))


def test_the_sweep_of_the_documentation_is_valid(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "sweeps.md"
    path = tmp_path / "sweep.toml"
    path.write_text(page.read_text().split("```toml\n")[1].split("```")[0])
    sweep = read_sweep(path)
    assert len(sweep.cells()) == 4 * 2 * 3
    assert len(sweep.quickened().cells()) == 4 * 2 * 2


def test_parameters_of_rules_are_set_for_all_and_for_one(tmp_path: Path) -> None:
    text = 'seeds = 1\n[settings]\nrule.sketch = "layers"\n[rule.pncs]\n'
    text += 'rule.p = 2\n"rule.per_layer" = true\n'
    cells = read_sweep(write(tmp_path, text)).cells()
    assert [cell.settings["rule"] for cell in cells] == [
        'sketch = "layers", p = 2, per_layer = true',
        "",
    ]
    assert """--set 'rule=sketch = "layers", p = 2, per_layer = true'""" in cells[0].command


AXIS = 'seeds = 1\n"rule.p" = [2, 4]\n'


def test_values_of_a_rules_parameter_are_lines_of_the_rules_that_have_it(tmp_path: Path) -> None:
    text = AXIS + '[rule.pncs]\nrule.form = "printed"\n[quick]\n"rule.p" = [6]\n'
    sweep = read_sweep(write(tmp_path, text))
    assert [(cell.line, cell.settings["rule"]) for cell in sweep.cells()] == [
        ("pncs p=2", 'form = "printed", p = 2'),
        ("pncs p=4", 'form = "printed", p = 4'),
        ("uniform", ""),
    ]
    assert sweep.reference == "pncs p=2"
    assert [cell.line for cell in sweep.quickened().cells()] == ["pncs p=6", "uniform"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '"rule.q" = [2]',
            r"rule.q: none of these rules has this parameter: pncs has .* none",
        ),
        ('"rule.simmary" = ["update"]', "rule.simmary: none of .*: did you mean rule.summary"),
        ('[settings]\n"rule.simmary" = "update"', "rule.simmary: .*: did you mean rule.summary"),
        ('[quick]\n"rule.simmary" = "update"', "quick: rule.simmary: .* mean rule.summary"),
        ('"rule.p" = 2', "rule.p = 2 must be a list"),
        ('"rule.p" = [2]\n[quick]\n"rule.p" = 2', "quick: rule.p = 2 must be a list"),
        ('"rule.p" = [2, 2]', "rule.p = .* must be a list of different values"),
        ('"rule.p" = [{}]', r"rule.p\[0\].* = {} must be"),
        ("[parameters]\np = [2]", "unknown key parameters: write .rule.KEY."),
        ("[quick.parameters]\np = [2]", "unknown setting 'parameters'"),
        (
            "parameter = 1",
            "unknown key parameter: there are title, .*queue, devices, seeds",
        ),
        ('"rule.p" = [2]\n[rule.pncs]\nrule.p = 4', "rule.p = 4 is an axis of this sweep"),
        ('"rule.p" = [2]\n[settings]\n"rule.p" = 4', "rule.p = 4 is an axis of this sweep"),
        ('"rule.p" = [2]\n[settings]\nrule = "p = 4"', "rule.p = 4 is an axis of this sweep"),
    ],
)
def test_parameters_of_rules_that_make_no_lines_are_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"sweep\.toml: .*{message}"):
        read_sweep(write(tmp_path, text))


def test_a_parameter_in_the_settings_is_for_the_rules_that_have_it(tmp_path: Path) -> None:
    text = 'seeds = 1\n[settings]\n"rule.p" = 2\n'
    sweep = read_sweep(write(tmp_path, text))
    assert [cell.settings["rule"] for cell in sweep.cells()] == ["p = 2", ""]
    assert sweep.left_out == {"rule.p": ["uniform"]}
    own = read_sweep(write(tmp_path, text + "[rule.pncs]\nrule.p = 6\n"))
    assert [cell.settings["rule"] for cell in own.cells()] == ["p = 6", ""]
    assert changed(own, False, ["rules=uniform"], {}, {}).cells() == sweep.cells()[1:]


def test_a_parameter_of_the_command_is_for_the_rules_that_have_it(tmp_path: Path) -> None:
    sweep = read_sweep(write(tmp_path, "seeds = 1"))
    assert sweep.left_out == {}
    given = changed(sweep, False, ["rules=uniform"], {}, {"rule.p": 2})
    assert given.left_out == {"rule.p": ["uniform"]}
    with pytest.raises(ValueError, match=r"rule.simmary: .*: did you mean rule.summary"):
        changed(sweep, False, [], {}, {"rule.simmary": "update"})


def test_what_a_rule_runs_without_is_told_once(tmp_path: Path) -> None:
    file = write(
        tmp_path, 'clients = 5\nseeds = 2\n[settings]\nnum-rounds = 1\n"rule.sketch" = "layers"\n'
    )
    command = ["sweep", str(file), "--workers", "0", "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    told = "Note: rule.sketch is left out where the rule has none: uniform"
    assert done.output.count("rule.sketch") == done.output.count(told) == 1


def test_devices_are_an_axis_with_a_plot_for_each() -> None:
    sweep = Sweep("a sweep", ("uniform",), devices=("none", "phones"), seeds=1)
    base = "shards 2, layers 1, selected 2"
    assert [cell.panel for cell in sweep.cells()] == [
        f"{base}, devices none",
        f"{base}, devices phones",
    ]
    assert [cell.config.devices for cell in sweep.cells()] == ["none", "phones"]
    with pytest.raises(ValueError, match="devices = phones is an axis of this sweep"):
        Sweep("a sweep", ("uniform",), devices=("none",), settings={"devices": "phones"})
    with pytest.raises(ValueError, match="devices"):
        Sweep("a sweep", ("uniform",), devices=("phone",))
