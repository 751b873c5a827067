"""The decider and the explanations of its decisions: phases, named fixes, reasons, ideas that were rejected."""
