"""How a burst's argument list is made for each kind of trainer: one file a kind."""

from __future__ import annotations

from trainer.engines.command.kinds import custom, megatron_bridge, megatron_lm
from trainer.engines.command.kinds.asked import Asked, Render

KINDS: dict[str, Render] = {
    "megatron-lm": megatron_lm.argv,
    "megatron-bridge": megatron_bridge.argv,
    "custom": custom.argv,
}

__all__ = ["KINDS", "Asked", "Render"]
