"""The search: its space of absolute values, the acquisition, what to avoid, and the Optuna study that is asked."""
