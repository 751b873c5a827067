"""Any other trainer: a template of its command, filled in with Megatron-LM's arguments.

It may print the arguments as Megatron-LM does, or write its configuration as Megatron-Bridge does.
"""

from __future__ import annotations

from trainer.frameworks.custom.burst import burst_argv
from trainer.frameworks.framework import Framework
from trainer.frameworks.megatron_bridge.acting import acting_in_folder
from trainer.frameworks.megatron_bridge.command import CONFIGURATION
from trainer.frameworks.megatron_lm.command import rank_command
from trainer.frameworks.megatron_lm.log import LOG_PATTERNS
from trainer.frameworks.megatron_lm.required import demanded_variables

FRAMEWORK = Framework(
    name="custom",
    title="a custom trainer",
    rank_command=rank_command,
    burst_argv=burst_argv,
    log_patterns=LOG_PATTERNS,
    acting_knobs=acting_in_folder,
    configuration=CONFIGURATION,
    variables=demanded_variables,
)
