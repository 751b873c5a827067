"""`moe-autotune gap`: the time between a measured step and an attainable one, cause by cause."""
