"""Metrics of a sweep's own run, sent to the agent's MLflow endpoint; MLflow itself needs seconds to import."""

from __future__ import annotations

import json
import logging
import os
import time
import urllib.error
import urllib.request

log = logging.getLogger(__name__)

#: Seconds for one request on loopback.
_TIMEOUT_S = 5.0


def log_best(run_id: str, metric: str, value: float | None, trials: int) -> None:
    """Log the best value after so many trials; a failure is only noted. Blocks."""
    uri, token = os.environ.get("MLFLOW_TRACKING_URI", ""), os.environ.get("MLFLOW_TRACKING_TOKEN", "")
    if value is None or not uri.startswith("http://127.0.0.1") or not run_id:
        return
    body = {"run_id": run_id, "key": metric, "value": value, "timestamp": int(time.time() * 1000), "step": trials}
    request = urllib.request.Request(
        f"{uri}/api/2.0/mlflow/runs/log-metric",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
    )
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(request, timeout=_TIMEOUT_S).close()
    except (OSError, urllib.error.URLError) as error:
        log.info("logging %s: %s", metric, error)
