"""Frozen data: jobs and targets, which go to a backend, and runs, which come from it; their texts and job files."""
