"""Engine `simulated`: a small model of a cluster that gives outcomes and traces as a real burst would.

It plants walls, it is not calibrated: for testing a policy, and for seeing a tuning run without a cluster.
"""

from trainer.engines.simulated.engine import SimulatedEngine
from trainer.engines.simulated.machine import Machine

__all__ = ["Machine", "SimulatedEngine"]
