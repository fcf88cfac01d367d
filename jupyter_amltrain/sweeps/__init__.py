"""Hyperparameter sweeps: proposals of values, and early termination."""
