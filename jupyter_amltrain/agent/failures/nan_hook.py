"""Hook in a job's Python that ends the script when it logs a metric that is not a number (``--stop-on-nan``).

``supervise/job_hooks.py`` puts this file into a job's Python, where ``supervise/import_hook.py`` runs :func:`imported`
after MLflow's client. The exception is raised where the script has logged the metric, so that the values at failure
(``failure_hook.py``) are those of that line. The metric is logged before.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from typing import Any, Iterable, Iterator, Tuple

#: Variable of a job with the name of the metric.
VARIABLE = "AMLTRAIN_STOP_ON_NAN"
#: In its place: every metric.
ANY = "*"

_Point = Tuple[str, Any, Any]


class MetricIsNaN(BaseException):
    """A metric is not a number; no error that a training loop handles."""


MetricIsNaN.__module__ = "builtins"  # a traceback names it alone


def imported(module: Any) -> None:
    """Check what ``MlflowClient`` logs, through which MLflow's functions log, too."""
    name = os.environ.get(VARIABLE, "")
    if name not in ("", "0"):
        client = module.MlflowClient
        client.log_metric = _checked(client.log_metric, name, _of_metric)
        client.log_batch = _checked(client.log_batch, name, _of_batch)


def _checked(own: Any, name: str, points_of: Any) -> Any:
    signature = inspect.signature(own)

    @functools.wraps(own)
    def method(*args: Any, **kwargs: Any) -> Any:
        result = own(*args, **kwargs)
        for key, value, step in points_of(signature.bind(*args, **kwargs).arguments):
            if name in (ANY, key) and _is_nan(value):
                _stop("%s is NaN at step %s (--stop-on-nan)" % (key, step or 0))
        return result

    return method


def _of_metric(arguments: Any) -> Iterator[_Point]:
    yield arguments["key"], arguments["value"], arguments.get("step")


def _of_batch(arguments: Any) -> Iterator[_Point]:
    metrics: Iterable[Any] = arguments.get("metrics") or ()
    for metric in metrics if isinstance(metrics, (list, tuple)) else ():
        yield metric.key, metric.value, metric.step


def _is_nan(value: Any) -> bool:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return False
    return number != number


def _stop(text: str) -> None:
    """Raise the exception, in the main thread if another one has logged the metric: its error would end no script."""
    main = threading.main_thread()
    if threading.current_thread() is main:
        raise MetricIsNaN(text)
    import ctypes

    def start(self: BaseException) -> None:
        BaseException.__init__(self, text)

    kind = type("MetricIsNaN", (MetricIsNaN,), {"__init__": start, "__module__": "builtins"})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main.ident or 0), ctypes.py_object(kind))
