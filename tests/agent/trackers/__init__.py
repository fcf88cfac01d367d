"""Tests of the metrics that do not come from MLflow."""
