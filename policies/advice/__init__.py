"""What to try next, for whoever has traces and no tuning run; and what answers a cause that is no wall."""
