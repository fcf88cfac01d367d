"""Backends: objects that run jobs on a target."""
