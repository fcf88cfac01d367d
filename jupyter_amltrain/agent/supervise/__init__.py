"""Supervision of one run: supervisor, guardian, processes and outcome."""
