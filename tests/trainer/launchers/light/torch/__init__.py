"""In the place of torch where a start needs an agent that imports none: `distributed/run.py` is all there is."""
