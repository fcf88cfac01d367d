"""Address of a team's MLflow server, which gets the records of runs as well."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from jupyter_amltrain.agent.protocol import MARK

_VARIABLE = "MLFLOW_TRACKING_URI"


def error_of(uri: str) -> str:
    """Return why a text is no address of a team's server, and what to do; empty if it is one, or empty."""
    if not uri:
        return ""
    try:
        parts = urlsplit(uri)
        is_server, user = parts.scheme in ("http", "https") and bool(parts.hostname), parts.username or parts.password
    except ValueError:
        is_server, user = False, None
    if not is_server:
        return "give an address that begins with https:// (or http://)."
    if user:
        return (
            "an address with a password would be saved with each run. Set MLFLOW_TRACKING_USERNAME and"
            " MLFLOW_TRACKING_PASSWORD, or store them: keyring set amltrain MLFLOW_TRACKING_PASSWORD"
        )
    return ""


def of_environment() -> tuple[str, tuple[str, ...]]:
    """Return the server that MLflow's own variable names, and notes; empty if it names none, or a store here."""
    uri = os.environ.get(_VARIABLE, "")
    if MARK in os.environ or not uri.startswith(("http://", "https://")):  # in a job it is the run's own endpoint
        return "", ()
    if error := error_of(uri):
        return "", (f"The run is not copied to the server of {_VARIABLE}: {error}",)
    return uri, ()
