"""Compares the product with what guides and engineers of the field say, row by row of `data/guides.csv`."""
