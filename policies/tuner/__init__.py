"""The decider and the explanations of its decisions: phases, named fixes, reasons, fixes that were not proposed."""
