"""Advice on what to try next from traces without a tuning run, and answers to losses that are not walls."""
