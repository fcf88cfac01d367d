"""Frozen data without behavior: jobs and targets, which go to a backend, and runs, which come from it."""
