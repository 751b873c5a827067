"""A study as the runs of an experiment tracker."""
