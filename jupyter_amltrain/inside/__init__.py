"""A look inside a run: how long each of its lines took, from what the job's own Python has sampled."""
