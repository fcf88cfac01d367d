"""Automated machine learning in the job's own process; a job gets this folder as the package ``aml_automl``.

It imports nothing of this package: only FLAML, scikit-learn, pandas and MLflow of the job's environment.
"""

from .main import run

__all__ = ["run"]
