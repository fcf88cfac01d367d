"""Starts MLflow's own web page for the project's store, or finds the running one."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from jupyter_amltrain.agent.mlflow.project_server import SECRET_HEADER
from jupyter_amltrain.agent.processes import identity
from jupyter_amltrain.errors import MissingDependency, StateError
from jupyter_amltrain.rpc import child_process
from jupyter_amltrain.state_dir import default_path, locked, project_store
from jupyter_amltrain.tracking import page_proxy

#: Seconds until the page must answer; importing MLflow's server takes most of them.
START_TIMEOUT_S = 90.0
#: Seconds without a request after which the page ends; ``AMLTRAIN_UI_IDLE`` sets another number.
IDLE_TIMEOUT_S = 1800.0

_started: dict[str, subprocess.Popen[bytes]] = {}


def start(project: str, *, keep: bool = False) -> dict[str, Any]:
    """Start the page, or find the running one of this store; return when it answers.

    A kernel or terminal of a Jupyter server with amltrain's extension gets an address of that server.
    Otherwise the page listens on loopback, and its address has a token that opens it for some minutes.

    Parameters
    ----------
    project
        Folder that owns ``.amltrain``.
    keep
        Let the page survive this process: it ends with the shell of the terminal.

    Returns
    -------
    dict
        ``url``, ``path`` (path at the browser's Jupyter server; empty for a page that
        listens on its own port), ``pid``, ``reused``.

    Raises
    ------
    StateError
        There is no store yet, or the server did not start.
    MissingDependency
        Only mlflow-skinny is installed.
    """
    store = project_store(project)
    if not (store / "mlflow.db").exists():
        raise StateError(f"No MLflow store in {store} yet.", hint="The first run creates it.")
    key = page_proxy.key_of(project)
    server = _jupyter_server()
    folder = Path(os.environ[page_proxy.FOLDER_VARIABLE]) if server else default_path() / "pages"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder / f"{key}.lock", START_TIMEOUT_S):  # another kernel may be starting it
        record = page_proxy.read_record(folder, key)
        if record is not None and _answers(record):
            return _result(record, key, server, reused=True)
        return _start(project, folder, key, server, keep)


def _start(project: str, folder: Path, key: str, server: dict[str, Any] | None, keep: bool) -> dict[str, Any]:
    store = project_store(project)
    log = store / "ui.txt"
    start_id = secrets.token_hex(8)
    args: dict[str, Any] = {
        "project": os.path.abspath(project),
        "record": str(page_proxy.record_path(folder, key)),
        "start": start_id,
        "front": server is None,
        "hub": os.environ.get("JUPYTERHUB_SERVICE_PREFIX", ""),
        "idle": _idle_timeout_s(),
    }
    if keep:
        args["session"] = _shell()
    process = _launch(json.dumps(args), log, folder, keep)
    record = _wait(folder, key, start_id, process)
    if record is not None:
        _started[str(store)] = process
        return _result(record, key, server, reused=False)
    if process.poll() is None:
        _end(process)
        raise StateError(f"MLflow's page did not answer within {START_TIMEOUT_S:g} s.", hint=f"See {log}")
    if "No module named" in _tail(log):
        raise MissingDependency("MLflow's page needs the full mlflow package.", hint="Type: %pip install mlflow")
    raise StateError(f"MLflow's page did not start: {_tail(log)[-300:]}", hint=f"See {log}")


def stop(project: str) -> dict[str, Any]:
    """Stop the page if this process started it; return ``{"stopped": bool}``."""
    process = _started.pop(str(project_store(project)), None)
    if process is None or process.poll() is not None:
        return {"stopped": False}
    _end(process)
    return {"stopped": True}


def serves() -> bool:
    """Return whether a page that this process started is running."""
    return any(process.poll() is None for process in _started.values())


def _jupyter_server() -> dict[str, Any] | None:
    """Return the address of this process's Jupyter server, if that server can show the page."""
    folder = os.environ.get(page_proxy.FOLDER_VARIABLE, "")
    if not folder or not page_proxy.is_private(folder):
        return None
    try:
        server = json.loads(Path(folder, page_proxy.SERVER_FILE).read_text(encoding="utf-8"))
        # Windows has no `ps`; there the folder is removed with the server.
        runs = os.name != "posix" or identity(int(server["pid"])) is not None
        return server if runs and server["base_url"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _result(record: dict[str, Any], key: str, server: dict[str, Any] | None, reused: bool) -> dict[str, Any]:
    result = {"pid": record["pid"], "reused": reused, "path": ""}
    if server is None:
        from jupyter_amltrain.tracking.page_server import address

        return {**result, "url": address(record, os.environ.get("JUPYTERHUB_SERVICE_PREFIX", ""))}
    path = f"{str(server['base_url']).rstrip('/')}/{page_proxy.ROUTE}/{key}/"
    # Behind a hub the server's own address is not the browser's.
    hub = os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
    return {**result, "path": path, "url": path if hub else _joined(str(server["url"]), path)}


def _joined(url: str, path: str) -> str:
    """Return the URL of `path` at the server whose address `url` ends with its base URL."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{path}"


def _idle_timeout_s() -> float:
    try:
        return max(1.0, float(os.environ.get("AMLTRAIN_UI_IDLE", "")))
    except ValueError:
        return IDLE_TIMEOUT_S


def _shell() -> dict[str, Any] | None:
    """Return the leader of this session, the shell of the terminal; ``None`` without one."""
    if not hasattr(os, "getsid"):
        return None
    leader = os.getsid(0)
    return None if leader == os.getpid() else identity(leader)


def _launch(args: str, log: Path, folder: Path, keep: bool) -> subprocess.Popen[bytes]:
    env = {name: text for name, text in child_process.environment().items() if not name.startswith("MLFLOW_TRACKING_")}
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return subprocess.Popen(
            child_process.command("jupyter_amltrain.tracking.page_server", args),
            cwd=folder,
            stdin=subprocess.DEVNULL if keep else subprocess.PIPE,
            stdout=fd,
            stderr=fd,
            env=env,
            start_new_session=True,
        )
    finally:
        os.close(fd)


def _answers(record: dict[str, Any]) -> bool:
    """Return whether MLflow's process of `record` answers."""
    connection = http.client.HTTPConnection("localhost", timeout=5)
    try:
        if "unix" in record["address"]:
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(5)
            connection.sock.connect(record["address"]["unix"])
        else:
            connection.sock = socket.create_connection(("127.0.0.1", int(record["address"]["port"])), 5)
        connection.request("GET", "/health", headers={SECRET_HEADER: str(record["secret"])})
        return connection.getresponse().status == 200
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _wait(folder: Path, key: str, start_id: str, process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        record = page_proxy.read_record(folder, key)
        if record is not None and record.get("start") == start_id:
            return record if _answers(record) else None
        time.sleep(0.1)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    else:
        process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        return log.read_text(encoding="utf-8", errors="replace")[-2000:].strip()
    return ""
