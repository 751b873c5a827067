"""The search: its space of absolute values, the acquisition, what to avoid, and the study of Optuna that is asked."""
