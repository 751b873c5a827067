"""Exports a study as the runs of an experiment tracker."""
