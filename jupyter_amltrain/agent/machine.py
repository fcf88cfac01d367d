"""What this machine has, and what a run survives here; each answer with its evidence."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .queue.slots import usable_cpus
from .telemetry.host import memory_total

Answer = Dict[str, str]


def _answer(answer: str, why: str) -> Answer:
    return {"answer": answer, "why": why}


def _output(argv: Sequence[str]) -> Optional[str]:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=3, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def systemd_path(cgroups: str = "/proc/self/cgroup") -> str:
    """Our path in systemd's hierarchy: ``/user.slice/...``; empty when there is none."""
    try:
        with open(cgroups) as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "name=systemd" or (controllers == "" and path != "/"):
            return path
    return ""


def unit_of(path: str) -> str:
    """The innermost service or scope in a systemd path: ``jupyter.service``."""
    for part in reversed(path.split("/")):
        if part.endswith((".service", ".scope")):
            return part
    return ""


def _container(env: Mapping[str, str]) -> str:
    """What shows that we are in a container; empty outside."""
    if "KUBERNETES_SERVICE_HOST" in env:
        return "a Kubernetes pod (KUBERNETES_SERVICE_HOST is set)"
    for path, name in (("/.dockerenv", "a Docker container"), ("/run/.containerenv", "a Podman container")):
        if os.path.exists(path):
            return "%s (%s is there)" % (name, path)
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
    """What a run outlives here.

    Parameters
    ----------
    env
        Environment of the asker; tells hubs, pods and Slurm steps.
    cgroups
        ``/proc/<pid>/cgroup`` of the dispatcher, which runs descend from.

    Returns
    -------
    dict
        ``kernel``, ``server``, ``logout``, ``container`` to ``{"answer": "yes" | "no" |
        "unknown", "why": str}``.
    """
    env = os.environ if env is None else env
    container = _container(env)
    answers = {
        "kernel": _answer("yes", "runs belong to a supervisor of their own session, not to the kernel"),
        "container": _answer("no", "a container or machine that ends takes its processes along"),
    }
    if "SLURM_JOB_ID" in env:
        why = "Slurm ends every process of job %s with the job" % env["SLURM_JOB_ID"]
        answers["server"] = answers["logout"] = _answer("no", why)
        return answers
    if container:
        hub = "JUPYTERHUB_USER" in env or "JUPYTERHUB_API_TOKEN" in env
        if hub:
            why = "JupyterHub's server is %s: it ends with the server" % container
            answers["server"] = answers["logout"] = _answer("no", why)
        else:
            why = "%s, and it is not known whether it ends with the server" % container
            answers["server"] = _answer("unknown", why)
            answers["logout"] = _answer("yes", "%s knows no login" % container)
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
        return _answer("yes", "no service manager holds the server's processes together")
    mode = _unit_property(unit, path, "KillMode")
    if mode in ("process", "none"):
        return _answer("yes", "unit %s has KillMode=%s" % (unit, mode))
    if mode:
        return _answer("no", "unit %s has KillMode=%s: it ends all its processes" % (unit, mode))
    return _answer("unknown", "unit %s did not tell its KillMode" % unit)


def _logout(unit: str, path: str) -> Answer:
    if not path.startswith("/user.slice"):
        return _answer("yes", "the processes belong to no login session")
    user = str(os.getuid())
    if _logind("Linger", ["loginctl", "show-user", user, "--property=Linger"]) == "yes" and "/user@" in path:
        return _answer("yes", "lingering is on for this user")
    if "/user@" in path:
        return _answer("no", "the user's service manager ends with the last login; type: loginctl enable-linger")
    argv = ["busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1"]
    kills = _output([*argv, "org.freedesktop.login1.Manager", "KillUserProcesses"])
    if kills is None:
        return _answer("unknown", "logind did not tell its KillUserProcesses")
    if "true" in kills:
        return _answer("no", "logind ends a user's processes at logout (KillUserProcesses=yes)")
    return _answer("yes", "logind leaves a user's processes alone (KillUserProcesses=no)")


def scope_prefix(env: Optional[Mapping[str, str]] = None) -> List[str]:
    """Words to put before the dispatcher's command so that it leaves a unit that would take it along.

    Empty where it is not needed or systemd's user manager cannot be reached.
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
    words = ["systemd-run", "--user", "--scope", "--quiet", "--collect", name]
    return words if _output([*words[:-1], "true"]) is not None else []


def describe(pid: int) -> Dict[str, Any]:
    """The static half of `info`: ``cpus, memory, survives, python, platform``.

    Parameters
    ----------
    pid
        The dispatcher.
    """
    return {
        "cpus": usable_cpus(),
        "memory": memory_total(),
        "survives": survival(None, "/proc/%d/cgroup" % pid),
        "python": platform.python_version(),
        "platform": "%s-%s" % (sys.platform, platform.machine()),
    }
