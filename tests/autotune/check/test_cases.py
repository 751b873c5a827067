"""Checks recipes of public reports: `check` says what happened to them."""

from __future__ import annotations

import json

import pytest

from autotune.cli import main
from tests.places import CASES, WITHOUT_SHARED

pytestmark = pytest.mark.skipif(not CASES.exists(), reason=WITHOUT_SHARED)

# recipe -> (rule, what to set; None: no knob of ours mends it)
REPORTS = {
    "21-etp-hint": ("world-expert-grid", {"expert_tensor_parallel_size": 1}),
    "23-offload-graph": ("offload-graph-preprocess", {"offload_modules": ["core_attn", "attn_proj"]}),
    "25-dsv4-layout": (
        "hash-routed-stages",
        {
            "pipeline_model_parallel_layout": "Et*22|t*21mL",
            "num_layers_in_first_pipeline_stage": None,
            "num_layers_in_last_pipeline_stage": None,
        },
    ),
    "47-sink-over-tp": ("sink-gradient-norm", None),
}


@pytest.mark.parametrize("case", REPORTS)
def test_check_names_what_was_reported(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    main(["check", str(CASES / f"{case}.yaml"), "--json"])
    findings = {finding["rule"]: finding for finding in json.loads(capfd.readouterr().out)["findings"]}
    rule, suggestion = REPORTS[case]
    assert findings[rule]["suggestion"] == (suggestion or {})


def test_no_remark_advises_the_value_that_makes_the_error(capfd: pytest.CaptureFixture[str]) -> None:
    main(["check", str(CASES / "21-etp-hint.yaml"), "--json"])
    findings = json.loads(capfd.readouterr().out)["findings"]
    advised = [finding["suggestion"].get("expert_tensor_parallel_size") for finding in findings]
    assert {value for value in advised if value is not None} == {1}
