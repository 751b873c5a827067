"""The trainers that people start from a command line, one folder each: `megatron_lm/`, `megatron_bridge/`, `custom/`.

A folder's `framework.py` holds its `FRAMEWORK`, found by being there. Importing, exporting, the checks and engine
`command` ask it, and contain the name of none.
"""

from trainer.frameworks.framework import Framework
from trainer.frameworks.registry import framework_named, framework_of, frameworks

__all__ = ["Framework", "framework_named", "framework_of", "frameworks"]
