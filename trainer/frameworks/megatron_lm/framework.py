"""The framework Megatron-LM: `pretrain_gpt.py` and similar programs, started with a list of arguments."""

from __future__ import annotations

from trainer.frameworks.framework import Framework
from trainer.frameworks.megatron_lm.acting import acting_knobs
from trainer.frameworks.megatron_lm.burst import burst_argv
from trainer.frameworks.megatron_lm.command import rank_command
from trainer.frameworks.megatron_lm.log import LOG_PATTERNS
from trainer.frameworks.megatron_lm.packing import packing_flags
from trainer.frameworks.megatron_lm.reader import READER
from trainer.frameworks.megatron_lm.refusals import command_findings, findings_for
from trainer.frameworks.megatron_lm.required import demanded_variables
from trainer.frameworks.megatron_lm.script import script

FRAMEWORK = Framework(
    name="megatron-lm",
    title="Megatron-LM",
    rank_command=rank_command,
    burst_argv=burst_argv,
    log_patterns=LOG_PATTERNS,
    acting_knobs=lambda recipe, folder, log: acting_knobs(recipe, log),
    takes_mock_data=True,
    variables=demanded_variables,
    findings=findings_for,
    command_findings=command_findings,
    packing=packing_flags,
    script=script,
    reader=READER,
)
