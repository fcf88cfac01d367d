"""Numbers and names of GPUs and MIG instances."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping

#: Machines with fewer GPUs number the instances of GPU g from 100 (g + 1); others from 10,000 (g + 1).
_FEW = 100
_STEPS = (100, 10000)


def instance_number(parent: int, instance: int, gpus: int) -> int:
    """Return the number of a MIG instance, unique among all devices of a machine.

    Parameters
    ----------
    parent, instance
        Numbers of its GPU, and of the instance in this GPU, as the driver counts.
    gpus
        GPUs of the machine.
    """
    return _STEPS[gpus > _FEW] * (parent + 1) + instance


def gpu_name(gpu: Mapping[str, Any]) -> str:
    """Return ``GPU 3`` or ``GPU 0 MIG 1``.

    Parameters
    ----------
    gpu
        ``label`` if it has one, else ``parent`` and ``instance`` of a MIG instance, else ``index``. Files and
        records of earlier versions have an ``index`` only, from 100 on for instances.
    """
    if gpu.get("label"):
        return str(gpu["label"])
    index, parent, instance = gpu.get("index"), gpu.get("parent"), gpu.get("instance")
    if parent is not None and instance is not None:
        return "GPU %d MIG %d" % (parent, instance)
    if gpu.get("mig", True) and isinstance(index, int) and index >= _STEPS[0]:
        return "GPU %d MIG %d" % (index // _STEPS[0] - 1, index % _STEPS[0])
    return "GPU %s" % (0 if index is None else index)


def gpu_counts(gpus: Iterable[Mapping[str, Any]], times: str = "x") -> str:
    """Return ``2 x NVIDIA A100, 3 x NVIDIA A100 MIG 1g.10gb``, GPUs and instances separately; empty for none.

    Parameters
    ----------
    gpus
        Each with ``name``, and the keys that `gpu_name` needs.
    times
        Text between number and name.
    """
    counts: Dict[str, int] = {}
    for gpu in gpus:
        name = str(gpu.get("name") or "GPU")
        if " MIG " in gpu_name(gpu) and " MIG" not in name:
            name += " MIG instance"
        counts[name] = counts.get(name, 0) + 1
    return ", ".join("%d %s %s" % (count, times, name) for name, count in counts.items())
