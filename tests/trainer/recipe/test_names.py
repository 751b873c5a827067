"""A recipe's name: the study's folder is named after it, so it is a name of one folder and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.cli import main
from autotune.tuning import study
from trainer.errors import BadInputError
from trainer.recipe import load_recipe
from trainer.recipe.load import recipe_from
from trainer.recipe.names import safe_name
from trainer.recipe.source import Source, parse_source

REST = {"model": "qwen3-30b-a3b", "cluster": {"gpu": "h100"}}
TEXT = 'name: "{name}"\nmodel: qwen3-30b-a3b\ncluster: {{gpu: h100}}\n'
REFUSED = {
    "../../x": "/",
    "/tmp/x": "/",
    "a/b": "/",
    "a\\b": "\\",
    "..": "begins with a dot",
    ".hidden": "begins with a dot",
    "": "empty",
    "  ": "empty",
    "x\n": "\\n",
    "a\0b": "\\u0000",
    "a\u2028b": "\\u2028",
    "\x1b[31m": "\\u001b",
    "m" * 201: "201 bytes",
}
TAKEN = ["qwen3-30b-a3b-8xh200", "piped <&> small", "run[1]", "a..b", "größe 2", "v1.5", "m" * 200, "-x", "~root"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_unfit_for_a_folder_is_refused(name: str) -> None:
    with pytest.raises(BadInputError) as error:
        recipe_from(Source(name="r.yaml", data={"name": name, **REST}, lines={("name",): 1}))
    (problem,) = error.value.problems
    assert problem.where == "r.yaml:1 name"
    assert REFUSED[name] in problem.what
    assert problem.what.isprintable()
    assert "study's folder is named after it" in problem.hint


@pytest.mark.parametrize("name", TAKEN)
def test_a_name_fit_for_a_folder_is_accepted(name: str) -> None:
    recipe = recipe_from(Source(name="r.yaml", data={"name": name, **REST}))
    assert recipe.name == name
    assert recipe_from(parse_source(recipe.to_yaml(), name="again")).name == name
    assert study.free_folder(name).parent == study.STUDIES


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("base.yaml", "base"),
        ("my recipe.yml", "my recipe"),
        (".yaml", "recipe"),
        ("...yaml", "recipe"),
        (".hidden.yaml", "hidden"),
        ("a\nb.yaml", "a-b"),
        ("a\\b.yaml", "a-b"),
        ("\udcff.yaml", "-"),
        ("m" * 250 + ".yaml", "m" * 200),
        ("ä" * 125 + ".yaml", "ä" * 100),
    ],
)
def test_a_recipe_without_a_name_is_called_after_its_file(file: str, name: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("model: qwen3-30b-a3b\ncluster: {gpu: h100}\n")
    assert load_recipe(str(tmp_path / file)).name == name
    assert safe_name(name) == name


@pytest.mark.parametrize("name", ["../../x", "{outside}", "a/b", "..", "x\\0y"])
def test_a_run_with_a_refused_name_makes_no_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "deep")
    text = TEXT.format(name=name.format(outside=tmp_path / "outside"))
    Path("r.yaml").write_text(text + "burst: {engine: simulated}\n")
    assert main(["run", "r.yaml", "--budget", "1"]) == 2
    assert "r.yaml:1 name: " in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == [Path.cwd().parent, Path.cwd(), Path.cwd() / "r.yaml"]


def test_a_study_whose_name_looks_like_a_pattern_is_found_again(tmp_path: Path) -> None:
    for name in ("run[1]", "any*"):
        study.free_folder(name, root=tmp_path).mkdir()
        assert study.latest_folder(name, root=tmp_path) == tmp_path / f"{name}-1"
