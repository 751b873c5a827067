"""The head of a report: what the study ran on, what it cost and saves, how to use the tuned recipe, and the walls each
change moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autotune.export.difference import WordChange, word_changes
from autotune.report import document_of, render, write_report
from autotune.report.head import Head, head_of
from autotune.report.material import Material, material_of
from autotune.tuning.events import Event, StudyStarted, TunerStarted
from autotune.tuning.history import History
from tests.autotune.report.drawn_study import STEPS, events, write_study
from trainer.recipe import Recipe, load_recipe


def material(written: list[Event], *, price: float | None = None) -> Material:
    history = History(written)
    return material_of(history, document_of(history, gpu_hour_price=price))


def planned(written: list[Event], hours: float) -> list[Event]:
    """Returns the study as if its recipe had started it with planned_gpu_hours."""
    return changed(written, lambda recipe: {"tune": recipe["tune"] | {"planned_gpu_hours": hours}})


def changed(written: list[Event], sections: Callable[[dict[str, Any]], dict[str, Any]]) -> list[Event]:
    """Returns the study with other sections in each of its recipes."""

    def with_sections(event: Event) -> Event:
        recipe = getattr(event, "recipe", None)
        return msgspec.structs.replace(event, recipe=recipe | sections(recipe)) if isinstance(recipe, dict) else event

    return [with_sections(event) for event in written]


@pytest.fixture(scope="module")
def head() -> Head:
    return head_of(material(events()))


def test_the_head_says_when_what_where_and_with_which_software(head: Head) -> None:
    facts = dict(head.facts)
    assert facts["When"] == "1970-01-01 00:00 UTC, 15 min"
    assert "experts, top-" in facts["Model"]
    assert facts["Ran on"] == "2 CPU ranks, 1 node of 2: not comparable with GPUs"
    assert facts["Batch"].endswith("tokens, fp32")
    assert "megatron-core 0.16.1, torch 2.13.0+cpu, moe-autotune 0.1.0" in facts["Software"]
    assert facts["Cost"] == "12 bursts, 0.21 rank-hours"


def test_a_price_of_the_run_or_of_the_report_is_money() -> None:
    written = events()
    of_the_run = [written[0], TunerStarted(recipe="x", budget=20, gpu_hour_price=2.0), *written[1:]]
    assert dict(head_of(material(of_the_run)).facts)["Cost"].endswith(", 0.416 at 2 per rank-hour")
    assert dict(head_of(material(of_the_run, price=4.0)).facts)["Cost"].endswith(", 0.832 at 4 per rank-hour")


def test_what_the_tuned_recipe_saves_is_counted_on_the_training_it_is_for() -> None:
    made = material(planned(events(), 1000.0), price=3.0)
    low, middle, high = made.document.saved_gpu_hours or (0.0, 0.0, 0.0)
    assert made.document.speedup is not None
    assert middle == pytest.approx(1000 * (1 - 1 / made.document.speedup))
    assert low <= middle <= high
    said = dict(head_of(made).facts)["Saves"]
    assert "of the planned 1,000 rank-hours" in said
    assert "at 3 per rank-hour" in said


def test_every_accepted_change_shows_the_walls_it_moved_most_before_and_after(head: Head) -> None:
    assert head.changes is not None
    walls = [row[2] for row in head.changes.rows]
    assert walls[0] == "memory: out of memory → 0.660 GiB of 1.00 GiB"
    assert walls[1].startswith("memory 556 ms → 68.6 ms, ")
    assert walls[2].startswith("host 288 ms → 76.4 ms, ")
    assert len(walls) == 4


def test_the_export_command_follows_the_flags_that_change(head: Head) -> None:
    assert head.export == "moe-autotune export . --to megatron-lm"
    assert WordChange(before="--micro-batch-size 1", after="--micro-batch-size 4") in head.flags


def test_the_difference_is_in_the_words_of_the_users_own_trainer() -> None:
    base = load_recipe("cpu-moe")
    own = base.model_dump(mode="json") | {
        "burst": base.burst.model_dump(mode="json") | {"engine": "command"},
        "trainer": {"kind": "megatron-bridge", "command": ["python", "train.py", "--recipe", "mine"]},
    }
    recipe = Recipe.model_validate(own)
    changes = word_changes(recipe, recipe.replace({"micro_batch_size": 4}))
    assert any(change.after == "train.micro_batch_size=4" for change in changes)
    assert word_changes(recipe, recipe) == []


BRIDGE = {"kind": "megatron-bridge", "command": ["python", "train.py", "--recipe", "mine"]}


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ("model:\n  x: 1\n", "comm_overlap.overlap_grad_reduce"),
        ("comm_overlap: null\n", "ddp.overlap_grad_reduce"),
    ],
)
def test_the_difference_writes_overlap_where_the_users_bridge_recipe_has_it(
    configuration: str, said: str, tmp_path: Path
) -> None:
    steps = (*STEPS[:2], replace(STEPS[5], step_ms=1200.0, repeats=()))
    written = changed(
        events(steps), lambda recipe: {"burst": recipe["burst"] | {"engine": "command"}, "trainer": BRIDGE}
    )
    study = write_study(tmp_path / "study", written)
    (study / "bursts/0001/trainer").mkdir(parents=True)
    (study / "bursts/0001/command.txt").write_text("python train.py --recipe mine\n")
    (study / "bursts/0001/trainer/configuration.yaml").write_text(configuration)
    write_report(study)
    lines = (study / "report.md").read_text().splitlines()
    assert [line for line in lines if "overlap_grad_reduce=" in line] == [f"+ {said}=true"]
    assert f"{said}=true" in (study / "report.html").read_text()


def test_simulated_and_cpu_stand_in_the_title() -> None:
    rendered = render(History(events()))
    assert "<title>cpu-moe: 1.83× (CPU)</title>" in rendered["report.html"]
    assert rendered["report.md"].startswith("# cpu-moe: 1.83× (CPU)\n")
    written = events()
    started = written[0]
    assert isinstance(started, StudyStarted)
    simulated = started.recipe | {"burst": started.recipe["burst"] | {"engine": "simulated"}}
    written[0] = msgspec.structs.replace(started, recipe=simulated)
    assert "(simulated)</title>" in render(History(written))["report.html"]


def test_nothing_is_claimed_where_nothing_ran() -> None:
    head = head_of(material(events(STEPS[:1])))
    assert (head.changes, head.export, head.flags) == (None, "", ())
    assert "Saves" not in dict(head.facts)


def test_an_infeasible_study_says_what_it_would_take(infeasible: Path) -> None:
    study = infeasible / "studies/sim-1"
    text = (study / "report.md").read_text()
    needed = next(line for line in text.splitlines() if line.startswith("- Needs: "))
    assert "no legal setting fits on 2 nodes; at least 16 are needed" in needed
    assert "per rank of 79.2 GiB" in needed
    assert "Throughput of" not in (study / "report.html").read_text()
