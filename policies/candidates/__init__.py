"""Where candidates come from: `layouts` (the legal space of `plan`), `neighbours` (single moves around the incumbent,
and pairs of them), `cures` (fixes and settings that the surrogate has no opinion on), `fitting` (sets of fixes that
fit).
"""
