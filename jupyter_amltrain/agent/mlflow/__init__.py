"""A tracking server for one job."""
