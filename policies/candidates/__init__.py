"""Sources of candidates, one module each.

`layouts` (the legal space of `plan`), `neighbours` (single moves around the incumbent, and pairs of them),
`unmodelled` (fixes and settings that the surrogate cannot predict), `fitting` (sets of fixes that fit).
"""
