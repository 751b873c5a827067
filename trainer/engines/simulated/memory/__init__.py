"""Memory of the simulated cluster: allocations played along the pipeline schedule, tensor by tensor.

`tape.py` plays one layer forward and backward; `mixers.py`, `feeds.py` and `ends.py` say what layers allocate, in the
units of `sizes.py`; `chunk.py` puts layers together with recompute and offload, `rank.py` chunks into pipeline ranks;
`state.py` counts what stays, `outside.py` what lies beside; `play.py` walks the schedule. Constants are rows of
`constants.csv`, each with its source.
"""

from trainer.engines.simulated.memory.load import usual_imbalance
from trainer.engines.simulated.memory.play import play_memory
from trainer.engines.simulated.memory.result import MemoryPlay, OutOfMemory

__all__ = ["MemoryPlay", "OutOfMemory", "play_memory", "usual_imbalance"]
