"""The decider, and what it says of its decisions: phases, named fixes, reasons, ideas that were rejected."""
