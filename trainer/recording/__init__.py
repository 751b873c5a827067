"""What a launch script or any other command would start, recorded while real bash runs it where nothing lasts."""
