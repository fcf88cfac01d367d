"""What this kernel knows and does: targets, submits, runs and their streams. Loop thread only."""
