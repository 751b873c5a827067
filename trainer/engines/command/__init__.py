"""Engine `command`: bursts of the user's own training script, its argument list edited, its log and traces read."""
