"""Framework Megatron-LM: reads and writes its command line, its logs and its configurations."""
