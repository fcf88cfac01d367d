"""The GPUs of a target as text: how each is used, by whom, and why it is not free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.agent.telemetry.gpu_names import gpu_name
from jupyter_amltrain.schema.target import TargetInfo
from jupyter_amltrain.text import bytes_text

Gpu = Mapping[str, Any]

#: Users of one GPU, and GPUs of one target, that a text lists.
MAX_USERS, MAX_ROWS = 4, 16


def gpu_rows(info: TargetInfo) -> tuple[tuple[str, str], ...]:
    """Return name and use of each GPU: ``98 %, 12.3 GiB of 80.0 GiB, 56 °C; used by local/digits-k3f9 (...)``.

    Empty for targets that do not say who uses their GPUs.
    """
    known = [gpu for gpu in info.gpus if "users" in gpu]
    rows = [(gpu_name(gpu), _use_text(gpu, info.target)) for gpu in known[:MAX_ROWS]]
    if len(known) > MAX_ROWS:
        rows.append(("", f"and {len(known) - MAX_ROWS} more"))
    return tuple(rows)


def slots_reason(info: TargetInfo) -> str:
    """Return why GPU slots are not free: ``GPU 0: pid 4711 (ann: python train.py)``; empty if all are."""
    texts = [f"{gpu_name(gpu)}: {reason}" for gpu in info.gpus if (reason := _busy_text(gpu, info.target))]
    return "; ".join(texts[:MAX_USERS]) + (f" and {len(texts) - MAX_USERS} more" if len(texts) > MAX_USERS else "")


def _use_text(gpu: Gpu, target: str) -> str:
    """Return the readings of a GPU, and its users."""
    util, temperature, used = (gpu.get(name) for name in ("utilization", "temperature", "memory_used"))
    memory = "" if used is None else f"{bytes_text(used)} of {bytes_text(gpu.get('memory_total'))}"
    readings = ["" if util is None else f"{util:g} %", memory, "" if temperature is None else f"{temperature:g} °C"]
    users = _listed([_user_text(user, target) for user in gpu["users"]])
    part = gpu.get("assigned") or 0
    state = f"used by {users}" if users else "free"
    if gpu.get("reserved"):
        state = f"reserved by {gpu['reserved']}" + (f", {state}" if users else "")
    if 0 < part < 1:
        state += f"; {1 - part:.2g} of it is free"
    return "; ".join(filter(None, [", ".join(filter(None, readings)), state]))


def _busy_text(gpu: Gpu, target: str) -> str:
    """Return what keeps a slot from other runs; empty for a free one."""
    users = [user for user in gpu.get("users") or () if not user.get("system")]
    texts = [_user_text(user, target, whole=False) for user in users]
    if gpu.get("reserved"):
        texts.insert(0, f"reserved by {gpu['reserved']}")
    return _listed(list(dict.fromkeys(texts)))


def _user_text(user: Mapping[str, Any], target: str, whole: bool = True) -> str:
    """Return ``local/digits-k3f9 (pid 12, python train.py, 5.0 GiB)`` or ``ann (pid 4711, python, 10.9 GiB)``."""
    run, pid, memory = user.get("run"), user.get("pid"), user.get("memory")
    name = f"{target}/{run}" if run else str(user.get("user") or "")
    if pid is None:
        return f"{name} (no process on it yet)" if whole else name
    facts = [f"pid {pid}", str(user.get("command") or "")]
    facts += [bytes_text(memory)] if memory and whole else []
    text = ", ".join(filter(None, facts))
    if run and not whole:
        return name
    return f"{name} ({text})" if name else f"{text} (not visible from here)"


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(texts[:MAX_USERS]) + (f" and {len(texts) - MAX_USERS} more" if len(texts) > MAX_USERS else "")
