"""A simulated cluster: events of a training step played over streams, links and hosts; no process is started."""

from trainer.engines.simulated.busy import busy_by_rank
from trainer.engines.simulated.engine import SimulatedEngine
from trainer.engines.simulated.truth import collected_us, simulated_step_s, true_throughput
from trainer.recipe.machine import Machine

__all__ = ["Machine", "SimulatedEngine", "busy_by_rank", "collected_us", "simulated_step_s", "true_throughput"]
