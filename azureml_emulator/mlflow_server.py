"""MLflow's own server application in one process: ``python mlflow_server.py FOLDER``, until stdin ends.

It has no login, so it listens on the Unix socket ``FOLDER/server.sock``; the folder is private.

``mlflow server`` would import MLflow twice and start six workers for jobs that nobody here has: a minute on two cores
that are busy. The application is the same (``mlflow.server.app``).
"""

from __future__ import annotations

import os
import shutil
import sys
import threading


def main(folder: str) -> None:
    """Serve; the folder holds the database and goes with the process."""

    def end() -> None:
        sys.stdin.buffer.read()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    os.umask(0o077)
    from mlflow import server
    from werkzeug.serving import run_simple

    os.environ[server.BACKEND_STORE_URI_ENV_VAR] = f"sqlite:///{folder}/mlflow.db"  # type: ignore[attr-defined]
    os.environ[server.ARTIFACT_ROOT_ENV_VAR] = f"{folder}/artifacts"  # type: ignore[attr-defined]
    run_simple(f"unix://{folder}/server.sock", 0, server.app, threaded=True)


if __name__ == "__main__":
    main(sys.argv[1])
