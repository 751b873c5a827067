"""The trainers that people start from a command line, one folder each: `megatron_lm/`, `megatron_bridge/`, `custom/`.

A folder's `framework.py` has its `FRAMEWORK`, and is found by being there. Importing, exporting, checks and engine
`command` call a `Framework` and do not know which one it is.
"""

from trainer.frameworks.framework import Framework
from trainer.frameworks.registry import framework_named, framework_of, frameworks

__all__ = ["Framework", "framework_named", "framework_of", "frameworks"]
