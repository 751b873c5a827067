"""The output of `compare`: two traces or two trials side by side, and what changed between them."""
