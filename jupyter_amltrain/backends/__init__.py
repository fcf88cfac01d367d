"""Live objects that can run jobs on a target."""
