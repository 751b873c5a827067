"""Compares the product with published guides and reports of engineers: `python -m benchmarks.guides`.

Prints each row of `data/guides.csv` with the product's answer today.
"""
