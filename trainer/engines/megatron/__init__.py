"""Engine `megatron`: a real Megatron-Core GPTModel, trained for a few steps on GPUs or CPUs.

`engine.py` is the tuner's side and imports no torch; everything else here runs on the ranks.
"""
