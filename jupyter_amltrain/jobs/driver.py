"""Job of a driver: a run on this machine that submits other runs."""

from __future__ import annotations

#: How often a driver that was killed starts again.
DRIVER_RESTARTS = 20
#: MLflow's tag that shows a run below another one.
PARENT_TAG = "mlflow.parentRunId"

_SCRIPT = """import signal

signal.signal(signal.SIGTERM, lambda *_: None)  # a cancel during the imports: main reads it

from {module} import main

main()
"""


def driver_script(module: str) -> str:
    """Return the script of a driver, whose code is the function ``main`` of a module."""
    return _SCRIPT.format(module=module)
