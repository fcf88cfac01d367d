"""MLflow's own web page over the project's store, on a free loopback port."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyter_amltrain.errors import MissingDependency, StateError
from jupyter_amltrain.state import project_store, read_json, write_json
from jupyter_amltrain.tracking.store import artifact_root, database_uri

#: Seconds until the page must answer; importing MLflow's server takes most of them.
START_TIMEOUT = 90.0

_started: dict[str, subprocess.Popen[bytes]] = {}


def start(project: str, *, keep: bool = False) -> dict[str, Any]:
    """Start the page, or find the one that runs for this store; returns when it answers.

    Parameters
    ----------
    project
        Folder that owns ``.amltrain``.
    keep
        Let it outlive this process.

    Returns
    -------
    dict
        ``url`` (behind JupyterHub a path of the hub: ``/user/me/proxy/<port>/``, which
        needs jupyter-server-proxy there), ``port``, ``pid``, ``reused``.

    Raises
    ------
    StateError
        There is no store yet, or the server did not start.
    MissingDependency
        Only mlflow-skinny is installed.
    """
    place = project_store(project)
    if not (place / "mlflow.db").exists():
        raise StateError(f"No MLflow store in {place} yet.", hint="It is made when the first run ends.")
    known = _running(place, project)
    if known is not None:
        return known
    log = place / "ui.txt"
    for _ in range(3):  # a port may be taken between our look and the server's bind
        port = _free_port()
        process = _launch(command(project, port), log, keep)
        if _wait(port, process):
            _started[str(place)] = process
            write_json(place / "ui.json", {"schema": 1, "pid": process.pid, "port": port})
            return {"url": url(port), "port": port, "pid": process.pid, "reused": False}
        if process.poll() is None:
            _end(process)
            raise StateError(f"MLflow's page did not answer within {START_TIMEOUT:g} s.", hint=f"See {log}")
        if "in use" not in _tail(log):
            break
    if "No module named" in _tail(log):
        raise MissingDependency("MLflow's page needs the full mlflow package.", hint="Type: %pip install mlflow")
    raise StateError(f"MLflow's page did not start: {_tail(log)[-300:]}", hint=f"See {log}")


def stop(project: str) -> dict[str, Any]:
    """Stop the page if this process started it; ``{"stopped": bool}``."""
    process = _started.pop(str(project_store(project)), None)
    if process is None or process.poll() is not None:
        return {"stopped": False}
    _end(process)
    with contextlib.suppress(OSError):
        (project_store(project) / "ui.json").unlink()
    return {"stopped": True}


def url(port: int, env: Mapping[str, str] = os.environ) -> str:
    """Where a browser finds the page that listens on `port` of this machine.

    The page uses relative links, so the slash at the end matters behind a proxy.
    """
    prefix = env.get("JUPYTERHUB_SERVICE_PREFIX")
    if prefix:
        return f"{prefix.rstrip('/')}/proxy/{port}/"
    return f"http://127.0.0.1:{port}/"


def command(project: str, port: int, env: Mapping[str, str] = os.environ) -> list[str]:
    """The command line of the server.

    MLflow 3.5 and later refuse foreign ``Host`` and ``Origin`` headers, and
    jupyter-server-proxy passes on the browser's. Behind a hub its public name is
    allowed if we are told it; else any, because the port itself is only reached on
    loopback or through the hub, which asks who you are.
    """
    line = [sys.executable, "-m", "mlflow", "server"]
    line += ["--backend-store-uri", database_uri(project)]
    line += ["--default-artifact-root", artifact_root(project).as_uri()]
    line += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    if env.get("JUPYTERHUB_SERVICE_PREFIX") and _checks_hosts():
        public = urlsplit(env.get("JUPYTERHUB_PUBLIC_URL") or env.get("JUPYTERHUB_PUBLIC_HUB_URL", ""))
        hosts = f"localhost,localhost:*,127.0.0.1,127.0.0.1:*,{public.netloc}"
        line += ["--allowed-hosts", hosts if public.netloc else "*"]
        origin = f"{public.scheme}://{public.netloc}"
        line += ["--cors-allowed-origins", origin if public.netloc else "*"]
    return line


def _checks_hosts() -> bool:
    import importlib.util

    found = importlib.util.find_spec("mlflow")  # of a submodule it would import all of MLflow
    folders = found.submodule_search_locations if found is not None else None
    return any(Path(folder, "server", "security_utils.py").exists() for folder in folders or ())


def _launch(line: list[str], log: Path, keep: bool) -> subprocess.Popen[bytes]:
    # no task queue of MLflow's own beside a page that only shows runs
    env = dict(os.environ, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")
    for name in [name for name in env if name.startswith("MLFLOW_TRACKING_")]:
        del env[name]
    if not keep:
        line = [sys.executable, "-m", "jupyter_amltrain.tracking.ui_guard", *line]
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL if keep else subprocess.PIPE,
            stdout=fd,
            stderr=fd,
            env=env,
            start_new_session=True,
        )
    finally:
        os.close(fd)


def _running(place: Path, project: str) -> dict[str, Any] | None:
    """The page that a process of ours, maybe of another kernel, runs for this store."""
    try:
        known = read_json(place / "ui.json")
        pid, port = int(known["pid"]), int(known["port"])
    except (StateError, KeyError, TypeError, ValueError):
        return None
    line = Path(f"/proc/{pid}/cmdline")
    try:
        if line.parent.parent.is_dir() and line.parent.parent.joinpath("self").exists():
            if database_uri(project).encode() not in line.read_bytes():
                return None  # the number belongs to another process by now
        else:
            os.kill(pid, 0)
    except OSError:
        return None
    if not _answers(port):
        return None
    return {"url": url(port), "port": port, "pid": pid, "reused": True}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    # no proxy: a company's http_proxy must not be asked for our own loopback
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _wait(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        if _answers(port):
            return process.poll() is None
        time.sleep(0.1)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()  # the guard sees it and stops the group
    else:
        process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()


def _tail(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")[-2000:].strip()
    except OSError:
        return ""
