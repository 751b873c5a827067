"""Engine `megatron`: a real Megatron-Core GPTModel, trained for a few steps on GPUs or CPUs."""

from trainer.engines.megatron.engine import MegatronEngine

__all__ = ["MegatronEngine"]
