"""Compares the product with what guides and engineers of the field say: `python -m benchmarks.guides`.

Each row of `data/guides.csv` is printed with what the product says now, measured.
"""
