"""Engine `command`: runs bursts with the user's own training script by editing its arguments, and reads its log and
traces."""
