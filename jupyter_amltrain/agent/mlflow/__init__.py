"""MLflow tracking server for one job."""
