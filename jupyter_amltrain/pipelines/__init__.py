"""Pipelines: steps that run in the order of their data, on any target; a guest."""
