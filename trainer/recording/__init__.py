"""Records the commands that a launch script starts: real bash runs it, isolated, so that it changes nothing."""
