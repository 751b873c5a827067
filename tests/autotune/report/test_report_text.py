"""The words of a report: the verdict, the wall at every step, the reasons for what was not kept."""

from __future__ import annotations

import re

import msgspec
import pytest

from autotune.looks.quantities import NONE
from autotune.report import document_of
from autotune.report.markdown import markdown
from autotune.report.material import Material, material_of
from autotune.report.measurements import noise, throughput
from autotune.report.path import accepted_path
from autotune.report.sections import sections_of
from autotune.report.story import story_of
from autotune.tuning.events import BurstFinished, Probed
from autotune.tuning.history import History
from tests.autotune.report.drawn_study import STEPS, events
from tests.policies.drawn import links
from trainer.burst import Difference, Failure, FailureKind


@pytest.fixture(scope="module")
def material() -> Material:
    history = History(events())
    return material_of(history, document_of(history))


def test_the_story_says_what_was_wrong_changed_gained_and_left(material: Material) -> None:
    story = story_of(material.history, material.document)
    answers = dict(story.sentences)
    assert story.figure == "1.83×"
    assert "out of memory in backward on rank 1 (limit 1.00 GiB per rank)" in answers["What was wrong"]
    assert "memory 31.0 % of the step" in answers["What was wrong"]
    assert "micro_batch_size 1 → 4" in answers["What was changed"]
    assert "616.3 tokens/s/rank → 1,130 tokens/s/rank" in answers["What it gave"]
    assert "losses agree" in answers["What it gave"]
    assert "communication" in answers["What is left"]


def test_every_step_of_the_path_names_the_wall_it_was_for(material: Material) -> None:
    walls = [step.wall.wall for step in accepted_path(material.trials) if step.wall]
    assert walls == ["memory", "memory", "host", "communication"]


def test_a_gain_is_shown_with_its_prediction_and_bound(material: Material) -> None:
    path = next(section for section in sections_of(material) if section.key == "path")
    facts = dict(path.records[2].facts)
    assert facts["predicted"] == "+35.0 %, bound +45.0 %"
    assert facts["obtained"].startswith("+30.7 % (+")
    assert facts["data"] == "bursts/0005"


def test_every_trial_is_on_the_path_or_among_the_rejected(material: Material) -> None:
    on_path = {step.trial.number for step in material.path}
    rejected = {trial.number for trial in material.rejected}
    assert on_path | rejected == {trial.number for trial in material.trials}
    assert not on_path & rejected


def test_rejected_ideas_carry_their_reason(material: Material) -> None:
    rejected = next(section for section in sections_of(material) if section.key == "rejected")
    reasons = {record.heading.split(" · ")[0]: dict(record.facts)["verdict"] for record in rejected.records}
    assert "no gain" in reasons["trial 4"]
    assert "beyond the noise" in reasons["trial 5"]
    assert "not a multiple" in reasons["trial 9"]
    assert all(reasons.values())


def test_fixes_that_were_not_tried_say_why(material: Material) -> None:
    untried = next(section for section in sections_of(material) if section.key == "not-tried")
    assert untried.table is not None
    assert all(row[-1] for row in untried.table.rows)
    assert len({(row[0], row[1]) for row in untried.table.rows}) == len(untried.table.rows)


def test_fixes_that_were_not_tried_stand_by_predicted_gain_then_those_that_do_not_apply(material: Material) -> None:
    untried = next(section for section in sections_of(material) if section.key == "not-tried")
    assert untried.table is not None
    gains = [row[2] for row in untried.table.rows]
    assert NONE in gains
    assert all(gain == NONE for gain in gains[gains.index(NONE) :])


def test_markdown_has_every_section_and_well_formed_tables(material: Material) -> None:
    text = markdown(material)
    for section in sections_of(material):
        assert f"\n## {section.title}\n" in text
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert blocks
    for block in blocks:
        assert len({line.replace("\\|", "").count("|") for line in block}) == 1


@pytest.mark.parametrize("count", range(len(STEPS) + 1))
def test_a_report_can_be_written_after_any_number_of_trials(count: int) -> None:
    history = History(events(STEPS[:count]))
    assert markdown(material_of(history, document_of(history))).startswith("# cpu-moe")


def test_the_report_says_where_a_burst_is_not_production() -> None:
    difference = Difference(what="data", here="mock", production="read", effect="none seen")
    drawn = [
        msgspec.structs.replace(event, outcome=msgspec.structs.replace(event.outcome, unlike_production=[difference]))
        if isinstance(event, BurstFinished)
        else event
        for event in events()
    ]
    history = History(drawn)
    text = markdown(material_of(history, document_of(history)))
    assert "## How a burst differs from production" in text
    assert "| data | mock | read | none seen |" in text
    assert "production" not in markdown(material_of(History(events()), document_of(History(events()))))


def test_links_that_were_measured_are_a_table_and_a_probe_that_failed_is_said() -> None:
    started, *rest = events()
    fell = Failure(kind=FailureKind.INFRASTRUCTURE, evidence="node n2: it is gone", node="n2")
    found = History([started, Probed(links=links(5.0), failure=None, ranks=16, seconds=30.0), *rest])
    failed = History([started, Probed(links=None, failure=fell, ranks=16, seconds=30.0), *rest])
    assert document_of(found).links == links(5.0)
    text = markdown(material_of(found, document_of(found)))
    assert "## Links between the nodes" in text
    assert "| bandwidth per rank | 5.00 GB/s |" in text
    assert "| backend | nccl over ib0 |" in text
    assert "They could not be measured: infrastructure: node n2: it is gone." in markdown(
        material_of(failed, document_of(failed))
    )
    assert "Links" not in markdown(material_of(History(events()), document_of(History(events()))))


def test_the_three_figures_of_noise_are_explained_together_each_with_its_use(material: Material) -> None:
    section, chart = noise(material), throughput(material)
    assert section is not None
    assert chart is not None
    said = section.paragraphs
    for use in ("Between bursts: ", "For a verdict: ", "For an idea: "):
        (paragraph,) = [each for each in said if each.startswith(use)]
        assert re.search(r"\d %", paragraph)
    band = re.search(r"a gain below ([\d.]+ %)", " ".join(chart.paragraphs))
    assert band is not None
    assert f"a gain counts from {band[1]} on" in " ".join(said)


def test_of_many_changes_the_first_are_named_and_the_rest_counted(material: Material) -> None:
    changed = dict(story_of(material.history, material.document).sentences)["What was changed"]
    assert changed.count("→") <= 4
    assert changed.endswith(" trials.")


def test_a_rejected_trial_says_which_bursts_each_of_its_gains_is_of(material: Material) -> None:
    section = next(section for section in sections_of(material) if section.key == "rejected")
    facts = [dict(record.facts) for record in section.records]
    compared = [each for each in facts if each["gain of all bursts"]]
    assert compared
    for each in compared:
        assert re.search(
            r"% over trial \d+ in wall-clock time \((first burst|median of|\d+ interleaved)", each["verdict"]
        )
        assert re.search(r"over trial \d+ in wall-clock time$", each["gain of all bursts"])
    assert "The two may differ" in section.paragraphs[0]
