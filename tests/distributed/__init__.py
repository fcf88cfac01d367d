"""Jobs of several processes, with the real launchers; what this machine lacks is skipped."""
