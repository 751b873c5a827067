"""Engines that a recipe may name; each is one file or folder of `trainer/engines`, imported when it is opened."""

from __future__ import annotations

# name in the recipe -> "module:factory"; the factory takes the folder in which the engine may keep its own state
ENGINES = {
    "megatron": "trainer.engines.megatron.engine:MegatronEngine",
    "command": "trainer.engines.command.engine:CommandEngine",
    "simulated": "trainer.engines.simulated:SimulatedEngine",
}
