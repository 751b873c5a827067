"""Any other trainer, by a template of its command."""
