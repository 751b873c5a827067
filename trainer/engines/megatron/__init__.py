"""Engine `megatron`: a real Megatron-Core GPTModel, trained for a few steps on GPUs or CPUs.

`engine.py` is the tuner's side and imports no torch; `dry_run.py` and `fake.py` run in a process of their own without
ranks; most of the rest runs on the ranks.
"""
