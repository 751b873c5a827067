"""Files that commands are asked to write: nothing that was there is lost, and no input is touched."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.output import GENERATOR, Output, page_at, replace_file
from tests.analyzers.drawing import GEMM, Drawing
from tests.autotune.outside import mounted
from tests.autotune.report.drawn_study import write_study
from trainer.errors import BadInputError

# a plan of it tries few layouts
RECIPE = """\
name: small
model: qwen3-30b-a3b
cluster: {gpu: h100, nodes: 1}
parallelism: {ep: 8}
knobs: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}
tune: {freeze: [tensor_model_parallel_size, pipeline_model_parallel_layout, micro_batch_size]}
"""
PAGES = ("diagnose", "compare", "estimate", "plan")
TEXTS = ("export", "export a study", "init")
FOREIGN = "a thesis\n"


@pytest.fixture(autouse=True)
def _in_a_folder_with_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
        Drawing().step(1, 0, 1000).kernel(GEMM, 100, 900, launched=10).write(Path(name)).rename(f"{name}/rank0.json")
    Path("r.yaml").write_text(RECIPE)
    write_study(Path("study"))
    Path("study/recipe.yaml").write_text(RECIPE)


INIT = ["init", "--gpu", "cpu", "--gpus", "2"]  # ranks no layouts
WORDS = {
    "diagnose": ["diagnose", "a/rank0.json", "--html"],
    "compare": ["compare", "a/rank0.json", "b", "--html"],
    "estimate": ["estimate", "r.yaml", "--html"],
    "plan": ["plan", "r.yaml", "--top", "1", "--html"],
    "export": ["export", "r.yaml", "--to", "megatron-lm", "-o"],
    "export a study": ["export", "study", "--to", "yaml", "-o"],
    "init": [*INIT, "-o"],
}
INPUTS = [
    ("diagnose", "a/rank0.json"),
    ("compare", "a/rank0.json"),
    ("compare", "b/rank0.json"),
    ("estimate", "r.yaml"),
    ("plan", "r.yaml"),
    ("export", "r.yaml"),
    ("export a study", "study/journal.jsonl"),
    ("export a study", "study/recipe.yaml"),
]


@pytest.mark.parametrize("case", [*PAGES, *TEXTS])
def test_a_file_that_exists_is_refused_and_replaced_with_force(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("thesis").write_text(FOREIGN)
    assert main([*WORDS[case], "thesis"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("thesis: the file exists")
    assert "→ name another file, or replace it with --force" in said.err
    assert said.out == ""  # refused before the work
    assert Path("thesis").read_text() == FOREIGN
    assert main([*WORDS[case], "thesis", "--force"]) == 0
    assert Path("thesis").read_text() != FOREIGN


@pytest.mark.parametrize("case", PAGES)
def test_a_page_of_ours_is_written_again(case: str) -> None:
    for _ in range(2):
        assert main([*WORDS[case], "page.html"]) == 0
    assert GENERATOR in Path("page.html").read_text()[:1000]
    assert main([*INIT, "-o", "page.html"]) == 2  # a text is no page


@pytest.mark.parametrize(("case", "given"), INPUTS)
@pytest.mark.parametrize("way", ["itself", "symbolic link", "hard link", "other path"])
def test_an_input_is_never_replaced(case: str, given: str, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(given).read_bytes()
    target = Path("link")
    if way == "symbolic link":
        target.symlink_to(given)
    elif way == "hard link":
        target.hardlink_to(given)
    else:
        target = Path(given) if way == "itself" else Path("a", "..", given)
    assert main([*WORDS[case], str(target), "--force"]) == 2
    assert f"{target}: not replaced: " in capsys.readouterr().err
    assert Path(given).read_bytes() == before
    assert target.samefile(given)


@pytest.mark.parametrize("command", ["diagnose", "compare", "estimate", "plan", "export", "init"])
def test_every_command_that_writes_a_file_mentions_force(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert "--force" in capsys.readouterr().out


def test_files_in_a_folder_of_inputs_are_kept_except_our_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "a", "--html", "a/rank0.json", "--force"]) == 2
    assert "it is inside a, which this command reads" in capsys.readouterr().err
    for _ in range(2):
        assert main(["diagnose", "a", "--html", "a/page.html"]) == 0


def test_a_trial_keeps_its_study(capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("study/journal.jsonl").read_bytes()
    for words in (["diagnose", "study/0"], ["compare", "study/0", "study/0"]):
        assert main([*words, "--html", "study/journal.jsonl", "--force"]) == 2
        assert "this command reads it" in capsys.readouterr().err
    assert Path("study/journal.jsonl").read_bytes() == before


def test_a_packaged_recipe_is_an_input() -> None:
    from trainer.recipe.source import source_file

    packaged = source_file("cpu-moe")
    before = packaged.read_bytes()
    assert main(["estimate", "cpu-moe", "--html", str(packaged), "--force"]) == 2
    assert packaged.read_bytes() == before


@pytest.mark.parametrize("case", [*PAGES, *TEXTS])
def test_a_folder_that_does_not_exist_is_said_before_the_work(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS[case], "none/out"]) == 2
    said = capsys.readouterr()
    assert "none/out: it cannot be written: No such file or directory\n    → name a file in a folder that" in said.err
    assert said.out == ""


@pytest.mark.parametrize(("target", "said"), [("a", "this is a folder"), ("r.yaml/out", "folder that exists")])
def test_a_folder_and_a_path_through_a_file_are_refused(
    target: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*INIT, "-o", target]) == 2
    assert said in capsys.readouterr().err


def test_pipes_and_devices_are_written_to(capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    reader = subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE, text=True)
    assert main([*INIT, "-o", "pipe"]) == 0
    assert reader.communicate()[0].startswith("# A training recipe")
    assert main([*INIT, "-o", "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()
    capfd.readouterr()
    assert main([*INIT, "-o", "/dev/stderr"]) == 0  # a file here, which the shell would have opened
    assert capfd.readouterr().err.startswith("# A training recipe")


def test_a_link_stays_a_link_and_what_it_names_is_made() -> None:
    Path("link").symlink_to("a/new.yaml")
    assert main([*INIT, "-o", "link"]) == 0
    assert Path("link").is_symlink()
    assert Path("a/new.yaml").read_text().startswith("# A training recipe")


def test_permissions_are_the_umasks_and_those_of_a_replaced_file_stay() -> None:
    before = os.umask(0o027)
    try:
        replace_file(Path("new"), "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path("new").stat().st_mode) == 0o640
    Path("new").chmod(0o755)
    replace_file(Path("new"), "other")
    assert (Path("new").read_text(), stat.S_IMODE(Path("new").stat().st_mode)) == ("other", 0o755)


def test_a_file_that_appears_while_the_work_goes_on_is_kept() -> None:
    output = page_at(Path("page.html"), inputs=(), force=False)
    assert output is not None
    Path("page.html").write_text(FOREIGN)
    with pytest.raises(BadInputError, match="the file exists"):
        output.write("<!DOCTYPE html>")
    assert Path("page.html").read_text() == FOREIGN


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Yields a disk of 64 KiB with a small page of ours on it and no room for another."""
    with mounted(tmp_path / "disk", "64k") as folder:
        (folder / "page.html").write_text(f"<!DOCTYPE html>{GENERATOR}old")
        (folder / "filler").write_bytes(bytes(shutil.disk_usage(folder).free))
        yield folder


@pytest.mark.parametrize("case", [*PAGES, *TEXTS])
@pytest.mark.parametrize("name", ["page.html", "new"])
def test_a_full_disk_leaves_what_was_there(
    case: str, name: str, full_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file.name: file.read_bytes() for file in full_disk.iterdir()}
    assert main([*WORDS[case], str(full_disk / name), "--force"]) == 2
    said = capsys.readouterr().err
    assert f"{full_disk / name}: it cannot be written: No space left on device\n    → free some space" in said
    assert {file.name: file.read_bytes() for file in full_disk.iterdir()} == before


def test_a_report_on_a_full_disk_leaves_the_old_one(full_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left") as error:
        replace_file(full_disk / "page.html", "x" * 100_000)
    assert error.value.filename == str(full_disk / "page.html")
    assert (full_disk / "page.html").read_text().endswith("old")


def test_a_read_only_file_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("page.html").write_text(GENERATOR)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everything
    with pytest.raises(BadInputError, match="Permission denied"):
        Output(path=Path("page.html"), is_page=True).check()
