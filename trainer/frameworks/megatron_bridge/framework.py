"""The framework Megatron-Bridge: a program that trains one of its own recipes, started with overrides."""

from __future__ import annotations

from trainer.frameworks.framework import Framework
from trainer.frameworks.megatron_bridge.acting import acting_in_folder
from trainer.frameworks.megatron_bridge.burst import burst_argv
from trainer.frameworks.megatron_bridge.command import CONFIGURATION, rank_command, words_by_path
from trainer.frameworks.megatron_bridge.read import packing_of
from trainer.frameworks.megatron_bridge.reader import READER
from trainer.frameworks.megatron_bridge.refusals import command_findings, findings_for
from trainer.frameworks.megatron_bridge.script import script
from trainer.frameworks.megatron_lm.log import LOG_PATTERNS

FRAMEWORK = Framework(
    name="megatron-bridge",
    title="Megatron-Bridge",
    rank_command=rank_command,
    burst_argv=burst_argv,
    log_patterns=LOG_PATTERNS,
    acting_knobs=acting_in_folder,
    configuration=CONFIGURATION,
    words_by_setting=words_by_path,
    findings=findings_for,
    command_findings=command_findings,
    packing=packing_of,
    script=script,
    reader=READER,
)
