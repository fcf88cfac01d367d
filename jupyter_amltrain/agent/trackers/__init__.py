"""Metrics of programs that do not call MLflow: what they print, and the files of other trackers."""
