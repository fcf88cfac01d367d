"""MLflow plug-in in a job's Python: a run that the script logs to another store also follows in its record.

A script chooses another store than the run's by ``mlflow.set_tracking_uri(...)``, by a variable, or with a client of
its own. MLflow's registry of stores takes the builder of a scheme from the entry points ``mlflow.tracking_store``, also
for the schemes that it has itself. ``supervise/import_hook.py`` offers it :func:`build_store`, which returns MLflow's
own store, and sends the run's sink (``mlflow/followed.py``) each change that this store has accepted.

A thread sends the changes. The script waits for it only at the start and the end of a run, for at most
:data:`RUN_WAIT_S`. No error of this file may reach the script.
"""

from __future__ import annotations

import atexit
import collections
import functools
import json
import os
import re
import sys
import threading
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

#: Variables with the port of the run's sink, 0 for a job that does not want to be followed; and with its token.
PORT, TOKEN = "AMLTRAIN_FOLLOW", "AMLTRAIN_FOLLOW_TOKEN"
_PORT, _TOKEN = os.environ.get(PORT, ""), os.environ.get(TOKEN, "")  # a script may change its environment
#: Tag of a request for a new run: ``script`` calls ``start_run`` itself, ``log`` has called ``log_metric`` or the like.
START = "amltrain.start"
#: Address of the sink with a port.
_SINK = r"http://(127\.0\.0\.1|localhost):%s(/|$)"
#: Path of the sink's call.
PATH = "/api/2.0/mlflow/amltrain/follow"
#: Seconds that the start and the end of a run, and the end of the script, wait for the sink.
RUN_WAIT_S, EXIT_WAIT_S = 1.0, 5.0
#: Changes that wait for the sink; those that come when it is full are lost for the record.
MAX_WAITING = 20_000
#: Seconds in which the changes of a fast loop are gathered, and maximum number of changes in one request.
_GATHER_S, _BATCH = 0.05, 500
#: Points, parameters or tags in one change, the limit of MLflow for the last two.
_PAIRS = 100
_TIMEOUT_S, _MAX_PAUSE_S = 10.0, 5.0
#: Set by ``mlflow server`` for its own processes, whose stores are not the script's.
_SERVER = ("_MLFLOW_SERVER_FILE_STORE", "_MLFLOW_SERVER_ARTIFACT_ROOT")


class _Sender:
    """Sends changes to the sink, in a thread; a forked process starts its own."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        lock = threading.RLock()  # a signal handler of the script may log in the middle of a call
        self._added, self._sent = threading.Condition(lock), threading.Condition(lock)
        self._waiting: Deque[Any] = collections.deque()
        self._thread: Optional[threading.Thread] = None
        self._connection: Any = None
        self._is_urgent = False  #: somebody waits
        self._is_late = False  #: the sink did not answer in time: calls do not wait for it until it does
        self._has_lost = False

    def put(self, changes: List[Any], wait_s: float) -> None:
        """Send changes; wait until the sink has them."""
        if os.getpid() != self._pid:
            self.__init__()  # type: ignore[misc]  # the parent's thread, lock and connection stay with the parent
        with self._added:
            if len(self._waiting) + len(changes) > MAX_WAITING:
                self._lose()
                return
            if wait_s or not self._waiting:
                self._is_urgent = self._is_urgent or bool(wait_s)
                self._added.notify()
            self._waiting.extend(changes)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="amltrain-follow", daemon=True)
                thread.start()
                self._thread = thread
            if wait_s and not self._is_late:
                self._wait(wait_s)

    def finish(self) -> None:
        """Wait for the last changes, at the end of the script."""
        if os.getpid() == self._pid and self._thread is not None:
            with self._added:
                self._is_urgent = True
                self._added.notify()
                self._wait(EXIT_WAIT_S)
                if self._waiting:
                    self._lose()

    def _wait(self, seconds: float) -> None:
        self._is_late = not self._sent.wait_for(lambda: not self._waiting, seconds)

    def _lose(self) -> None:
        if not self._has_lost and sys.stderr is not None:
            sys.stderr.write("amltrain: the record of this run lacks some of what MLflow logged to another store.\n")
        self._has_lost = True

    def _run(self) -> None:
        pause = 0.0
        while True:
            with self._added:
                self._added.wait_for(lambda: self._waiting)
                if not self._is_urgent:
                    self._added.wait(_GATHER_S)
                changes = [self._waiting[index] for index in range(min(_BATCH, len(self._waiting)))]
            try:
                is_sent = self._send(changes)
            except Exception:  # no request can be made of these
                is_sent = True
            if not is_sent:
                pause = min(_MAX_PAUSE_S, 2 * pause + 0.05)
                time.sleep(pause)
                continue
            pause = 0.0
            with self._sent:
                for _ in changes:
                    self._waiting.popleft()
                self._is_late = False
                if not self._waiting:
                    self._is_urgent = False
                    self._sent.notify_all()

    def _send(self, changes: List[Any]) -> bool:
        """Return whether the sink has answered."""
        import http.client

        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", int(_PORT), timeout=_TIMEOUT_S)
        headers = {"Authorization": "Bearer " + _TOKEN, "Content-Type": "application/json"}
        try:
            self._connection.request("POST", PATH, json.dumps({"changes": changes}), headers)
            self._connection.getresponse().read()
            return True
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self._connection = None
            return False


_sender = _Sender()
_inside = threading.local()
_offered: List[Any] = []


def plugins() -> List[Any]:
    """Return the distribution with the entry points for ``importlib.metadata``; none where MLflow would not use it."""
    is_ready = "mlflow.store.tracking.rest_store" in sys.modules  # MLflow is about to look for plug-ins
    is_server = "mlflow.server.handlers" in sys.modules or any(name in os.environ for name in _SERVER)
    if not (_PORT.isdigit() and int(_PORT)) or not is_ready or is_server:
        return []
    if not _offered:
        _offered.append(_plugin())
        # MLflow ends an active run at the exit: it registers that later, so that it comes first
        atexit.register(_sender.finish)
    return _offered


class RunStart:
    """MLflow's context of a new run: tells the sink whether the script starts it, or a call that logs without one."""

    def in_context(self) -> bool:
        """Return whether the run is one of the sink."""
        import mlflow

        return re.match(_SINK % _PORT, mlflow.get_tracking_uri()) is not None

    def tags(self) -> Dict[str, str]:
        """Return the tag for the sink, which removes it."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "_get_or_start_run":  # of MLflow's log_metric and others
            frame = frame.f_back  # type: ignore[assignment]
        return {START: "script" if frame is None else "log"}


def _plugin() -> Any:
    """Return the distribution for the schemes of MLflow's own stores."""
    from importlib import metadata
    from importlib.util import find_spec

    from mlflow.store.db.db_types import DATABASE_ENGINES
    from mlflow.utils.credentials import get_default_host_creds  # noqa: F401  # a version without it is not followed

    schemes = ["", "file", "http", "https"]
    # with workspaces MLflow chooses another class of store
    if find_spec("sqlalchemy") and os.environ.get("MLFLOW_ENABLE_WORKSPACES", "false").lower() in ("", "0", "false"):
        schemes += DATABASE_ENGINES

    class Plugin(metadata.Distribution):
        """What ``pip`` would have installed; it is only in this process."""

        entry_points = [  # type: ignore[assignment]
            metadata.EntryPoint("amltrain", __name__ + ":RunStart", "mlflow.run_context_provider"),
            *(metadata.EntryPoint(scheme, __name__ + ":build_store", "mlflow.tracking_store") for scheme in schemes),
        ]

        def read_text(self, filename: str) -> Optional[str]:
            return "Metadata-Version: 2.1\nName: amltrain-follow\nVersion: 1\n" if filename == "METADATA" else None

        def locate_file(self, path: Any) -> Any:
            return path

    return Plugin()


def build_store(store_uri: str, artifact_uri: Optional[str] = None) -> Any:
    """Return MLflow's own store of a URI; unless it is the sink, it sends its changes to the sink."""
    store_class, arguments = _store_of(store_uri, artifact_uri)
    try:
        if not re.match(_SINK % _PORT, store_uri):
            store_class = followed(store_class, shown(store_uri))
    except Exception:  # the script gets its store in any case
        pass
    return store_class(*arguments)


def _store_of(store_uri: str, artifact_uri: Optional[str]) -> Tuple[Any, Tuple[Any, ...]]:
    """Return the class of MLflow's store of a URI and its arguments, as MLflow itself has them."""
    from mlflow.utils.uri import get_uri_scheme

    scheme = get_uri_scheme(store_uri)  # type: ignore[no-untyped-call]
    if scheme in ("http", "https"):
        from mlflow.store.tracking.rest_store import RestStore
        from mlflow.utils.credentials import get_default_host_creds

        return RestStore, (functools.partial(get_default_host_creds, store_uri),)
    if scheme in ("", "file"):
        from mlflow.store.tracking.file_store import FileStore

        return FileStore, (store_uri, store_uri)
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    place = DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH if artifact_uri is None else artifact_uri
    return SqlAlchemyStore, (store_uri, place)


def shown(store_uri: str) -> str:
    """Return a URI without user, password and options."""
    if re.match(r"(file|sqlite):|[^:]*$", store_uri):
        return store_uri
    return re.sub(r"//.*@", "//", store_uri.partition("?")[0])


def followed(store_class: Any, place: str) -> Any:
    """Return the subclass of a store of MLflow that sends its changes to the sink.

    Parameters
    ----------
    place
        The store's URI, for the record.
    """

    def sending(name: str, changes_of: Callable[..., Tuple[str, List[Any]]]) -> Any:
        own = getattr(store_class, name)
        wait_s = RUN_WAIT_S if name in ("create_run", "update_run_info") else 0.0

        @functools.wraps(own)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(_inside, "call", False):  # a store calls its own methods
                return own(self, *args, **kwargs)
            _inside.call = True
            try:
                result = own(self, *args, **kwargs)
            finally:
                _inside.call = False
            try:
                run_id, changes = changes_of(result, *args, **kwargs)
                _sender.put([[op, run_id, place, body] for op, body in changes], wait_s)
            except Exception:  # what the script has logged is logged
                pass
            return result

        return method

    names = {name: sending(name, changes_of) for name, changes_of in _CHANGES.items()}
    names.update(__module__=store_class.__module__, __qualname__=store_class.__qualname__, __doc__=store_class.__doc__)
    return type(store_class)(store_class.__name__, (store_class,), names)


# -- the changes of a run, given the result of the store's method and its arguments, as the sink has them


def _created(
    run: Any, experiment_id: Any = None, user_id: Any = "", start_time: Any = 0, tags: Any = (), run_name: Any = ""
) -> Any:
    body = {"run_name": run_name, "user_id": user_id, "start_time": start_time}
    pairs = [{"key": tag.key, "value": tag.value} for tag in tags]
    return run.info.run_id, [("runs/create", dict(body, tags=pairs, name_there=run.info.run_name))]


def _updated(info: Any, run_id: str, run_status: Any = None, end_time: Any = None, run_name: Any = None) -> Any:
    body = {"status": info.status if run_status else None, "end_time": end_time, "run_name": run_name}
    return run_id, [("runs/update", {key: value for key, value in body.items() if value})]


def _batch(_: Any, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> Any:
    lists: Dict[str, List[Any]] = {
        "metrics": [
            {"key": one.key, "value": float(one.value), "timestamp": one.timestamp, "step": one.step} for one in metrics
        ],
        "params": [{"key": one.key, "value": str(one.value)} for one in params],
        "tags": [{"key": one.key, "value": str(one.value)} for one in tags],
    }
    # one change for each kind: a parameter that the sink refuses does not take metrics with it
    return run_id, [
        ("runs/log-batch", {kind: pairs[start : start + _PAIRS]})
        for kind, pairs in lists.items()
        for start in range(0, len(pairs), _PAIRS)
    ]


#: Methods of MLflow's tracking stores that change a run.
_CHANGES: Dict[str, Callable[..., Tuple[str, List[Any]]]] = {
    "create_run": _created,
    "update_run_info": _updated,
    "log_batch": _batch,
    "log_metric": lambda _, run_id, metric: _batch(_, run_id, metrics=[metric]),
    "log_param": lambda _, run_id, param: _batch(_, run_id, params=[param]),
    "set_tag": lambda _, run_id, tag: _batch(_, run_id, tags=[tag]),
    "delete_tag": lambda _, run_id, key: (run_id, [("runs/delete-tag", {"key": key})]),
}
