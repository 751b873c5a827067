"""Memory of the simulated cluster: allocations, tensor by tensor, along the pipeline schedule.

`tape.py` simulates one layer forward and backward; `mixers.py`, `feeds.py` and `ends.py` list the allocations of
layers, in units of `sizes.py`; `chunk.py` combines layers with recompute and offload, `rank.py` chunks into pipeline
ranks; `state.py` counts memory that stays, `outside.py` memory outside the allocator; `simulate.py` follows the
schedule. Constants are rows of `constants.csv`, each with its source.
"""

from trainer.engines.simulated.memory.load import usual_imbalance
from trainer.engines.simulated.memory.result import OutOfMemory, SimulatedMemory
from trainer.engines.simulated.memory.simulate import simulate_memory

__all__ = ["OutOfMemory", "SimulatedMemory", "simulate_memory", "usual_imbalance"]
