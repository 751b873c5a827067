"""`moe-autotune gap`: where the time goes between a measured step and an attainable one."""
