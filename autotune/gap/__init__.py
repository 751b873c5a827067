"""Divides the time between a measured step and an attainable one by cause, for `moe-autotune gap`."""
