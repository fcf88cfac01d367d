"""Telemetry of a run: readers of host and GPUs, and the files that they write."""
