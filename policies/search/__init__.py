"""The search: its space of absolute values, the acquisition, what not to try again, and the study that Optuna samples
from."""
