"""A simulated cluster: simulates the events of a training step on streams, links and hosts, without starting a
process."""

from trainer.engines.simulated.busy import busy_by_rank
from trainer.engines.simulated.engine import SimulatedEngine
from trainer.engines.simulated.truth import collected_us, simulated_step_s, true_throughput
from trainer.recipe.machine import Machine

__all__ = ["Machine", "SimulatedEngine", "busy_by_rank", "collected_us", "simulated_step_s", "true_throughput"]
