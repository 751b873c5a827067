"""Advice on what to try next from traces without a tuning run, and answers to causes that are not walls."""
