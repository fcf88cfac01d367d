"""Properties of this machine, and the events that a run survives on it, each with its reason."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .environments.build import uv_of_build
from .processes import cgroup_paths
from .queue.slots import usable_cpus
from .telemetry.host import memory_total

Answer = Dict[str, str]


def _answer(answer: str, why: str) -> Answer:
    return {"answer": answer, "why": why}


def _output(argv: Sequence[str]) -> Optional[str]:
    try:
        result = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=3, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.decode("utf-8", "replace") if result.returncode == 0 else None


def systemd_path(cgroups: str = "/proc/self/cgroup") -> str:
    """Return our path in the systemd hierarchy: ``/user.slice/...``; empty without systemd."""
    for controllers, path in cgroup_paths(cgroups):
        if controllers == "name=systemd" or (controllers == "" and path != "/"):
            return path
    return ""


def unit_of(path: str) -> str:
    """Return the innermost service or scope in a systemd path: ``jupyter.service``."""
    for part in reversed(path.split("/")):
        if part.endswith((".service", ".scope")):
            return part
    return ""


def _container(env: Mapping[str, str]) -> str:
    """Describe the container that we run in; empty outside of containers."""
    if "KUBERNETES_SERVICE_HOST" in env:
        return "a Kubernetes pod (KUBERNETES_SERVICE_HOST is set)"
    for path, name in (("/.dockerenv", "a Docker container"), ("/run/.containerenv", "a Podman container")):
        if os.path.exists(path):
            return "%s (%s exists)" % (name, path)
    if env.get("container"):
        return "a container (container=%s)" % env["container"]
    return ""


def _unit_property(unit: str, path: str, name: str) -> str:
    user = ["--user"] if "/user@" in path and not path.rstrip("/").endswith("/user@%d.service" % os.getuid()) else []
    text = _output(["systemctl", *user, "show", "--property=" + name, "--value", unit]) or ""
    return text.strip()


def _logind(name: str, argv: Sequence[str]) -> str:
    text = _output(argv) or ""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == name:
            return value.strip()
    return ""


def survival(env: Optional[Mapping[str, str]] = None, cgroups: str = "/proc/self/cgroup") -> Dict[str, Answer]:
    """Report which events a run survives on this machine.

    Parameters
    ----------
    env
        Environment of the caller; identifies hubs, pods and Slurm steps.
    cgroups
        ``/proc/<pid>/cgroup`` of the dispatcher, the ancestor of all runs.

    Returns
    -------
    dict
        Maps ``kernel``, ``server``, ``logout`` and ``container`` to ``{"answer": "yes" | "no" |
        "unknown", "why": str}``.
    """
    env = os.environ if env is None else env
    container = _container(env)
    answers = {
        "kernel": _answer("yes", "each run has its own supervisor in a separate session"),
        "container": _answer("no", "processes end with their container or machine"),
    }
    if "SLURM_JOB_ID" in env:
        why = "Slurm ends every process of job %s with the job" % env["SLURM_JOB_ID"]
        answers["server"] = answers["logout"] = _answer("no", why)
        return answers
    if container:
        hub = "JUPYTERHUB_USER" in env or "JUPYTERHUB_API_TOKEN" in env
        if hub:
            why = "the JupyterHub server is %s, which ends with the server" % container
            answers["server"] = answers["logout"] = _answer("no", why)
        else:
            why = "only if this container keeps running: %s" % container
            answers["server"] = _answer("unknown", why)
            answers["logout"] = _answer("yes", "%s has no login sessions" % container)
        return answers
    path = systemd_path(cgroups)
    unit = unit_of(path)
    answers["server"] = _server(unit, path)
    answers["logout"] = _logout(unit, path)
    return answers


def _server(unit: str, path: str) -> Answer:
    if unit.startswith("amltrain-"):
        return _answer("yes", "the agent has a systemd scope of its own (%s)" % unit)
    if not unit or unit.startswith(("session-", "user@", "init.")) or not unit.endswith(".service"):
        return _answer("yes", "no service manager groups the processes of the server")
    mode = _unit_property(unit, path, "KillMode")
    if mode in ("process", "none"):
        return _answer("yes", "unit %s has KillMode=%s" % (unit, mode))
    if mode:
        return _answer("no", "unit %s has KillMode=%s: stopping it ends all its processes" % (unit, mode))
    return _answer("unknown", "KillMode of unit %s could not be read" % unit)


def _logout(unit: str, path: str) -> Answer:
    if not path.startswith("/user.slice"):
        return _answer("yes", "the processes belong to no login session")
    user = str(os.getuid())
    if _logind("Linger", ["loginctl", "show-user", user, "--property=Linger"]) == "yes" and "/user@" in path:
        return _answer("yes", "lingering is on for this user")
    if "/user@" in path:
        return _answer(
            "no", "the user's service manager ends with the last login. To change that: loginctl enable-linger"
        )
    argv = ["busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1"]
    kills = _output([*argv, "org.freedesktop.login1.Manager", "KillUserProcesses"])
    if kills is None:
        return _answer("unknown", "KillUserProcesses could not be read from logind")
    if "true" in kills:
        return _answer(
            "no",
            "logind ends a user's processes at logout (KillUserProcesses=yes). To change that: loginctl enable-linger",
        )
    return _answer("yes", "logind keeps a user's processes at logout (KillUserProcesses=no)")


def scope_prefix(env: Optional[Mapping[str, str]] = None) -> List[str]:
    """Return a command prefix that starts the dispatcher in a systemd scope of its own.

    The scope keeps it alive when the unit of the caller stops. Empty where it is not needed or the
    user manager of systemd cannot be reached.
    """
    env = os.environ if env is None else env
    if _container(env) or "SLURM_JOB_ID" in env or not env.get("XDG_RUNTIME_DIR"):
        return []
    path = systemd_path()
    unit = unit_of(path)
    if not unit or unit.startswith("amltrain-"):
        return []
    if _server(unit, path)["answer"] == "yes" and _logout(unit, path)["answer"] == "yes":
        return []
    name = "--unit=amltrain-dispatcher-%d-%s" % (os.getpid(), os.urandom(3).hex())
    argv = ["systemd-run", "--user", "--scope", "--quiet", "--collect", name]
    return argv if _output([*argv[:-1], "true"]) is not None else []


#: Programs that provide environments beside uv, and folders of the user in which they are often installed.
_PROGRAMS = ("conda", "docker")
_PROGRAM_FOLDERS = ("~/.local/bin", "~/.cargo/bin", "~/miniconda3/bin", "~/miniforge3/bin", "~/anaconda3/bin")


def programs(base: str = "", tool: str = "") -> Dict[str, str]:
    """Return the path of each program that builds environments; empty for one that is not installed.

    Parameters
    ----------
    base, tool
        Interpreter of the jobs and the submitter's uv, as in a build's specification.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath)] + [os.path.expanduser(x) for x in _PROGRAM_FOLDERS])
    others = {name: shutil.which(name, path=path) or "" for name in _PROGRAMS}
    return dict(uv=uv_of_build({"base": base, "tool": tool}, os.environ), **others)


def disk_free(folder: str) -> Optional[int]:
    """Return the free bytes of the file system of `folder`; ``None`` if they are not known."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def describe(pid: int, home: str, base: str = "", tool: str = "") -> Dict[str, Any]:
    """Return the static part of `info`: ``cpus, memory, disk_free, programs, survives, python, platform``.

    Parameters
    ----------
    pid
        Process id of the dispatcher.
    home
        The state root.
    base, tool
        As in :func:`programs`.
    """
    return {
        "cpus": usable_cpus(),
        "memory": memory_total(),
        "disk_free": disk_free(home),
        "programs": programs(base, tool),
        "survives": survival(None, "/proc/%d/cgroup" % pid),
        "python": platform.python_version(),
        "platform": "%s-%s" % (sys.platform, platform.machine()),
    }
