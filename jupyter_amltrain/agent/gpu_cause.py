"""Why a run may not have used its GPUs: what its processes have loaded, and which devices they may see.

Of their environment only ``CUDA_VISIBLE_DEVICES`` is ever told.
"""

from __future__ import annotations

import os
from typing import Any, Collection, Mapping, NamedTuple, Optional, Sequence, Set

from .processes import LINUX

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: A run of many processes is told by its first ones.
MAX_PROCESSES = 64
#: CUDA in a process: torch's own half, the runtime, the driver.
_CUDA = ("libtorch_cuda", "libcudart", "libcuda.so", "libcublas", "libcudnn", "xla_cuda_plugin")
#: Framework -> libraries that show that it was imported, and how to get one with CUDA.
_FRAMEWORKS = (
    (
        "torch",
        ("libtorch_cpu",),
        "pip install torch from the CUDA index (https://pytorch.org/get-started)",
    ),
    (
        "tensorflow",
        ("libtensorflow_framework", "libtensorflow_cc", "_pywrap_tensorflow_internal"),
        "pip install 'tensorflow[and-cuda]'",
    ),
    ("jax", ("xla_extension", "jaxlib/_jax", "libjax_common"), "pip install -U 'jax[cuda12]'"),
)
_MOVE = {
    "torch": "nothing was moved to the GPU: model.to('cuda'), batch.to('cuda')",
    "tensorflow": "tensorflow has CUDA libraries and used no GPU: see tf.config.list_physical_devices('GPU')",
    "jax": "jax has CUDA libraries and used no GPU: see jax.devices()",
}
THREE = (
    "one of three, mostly: a CPU-only wheel of the framework, no .to('cuda') for model and batches,"
    " or a CUDA_VISIBLE_DEVICES that hides the GPU"
)


class _Seen(NamedTuple):
    """One process."""

    pid: int
    libraries: str  #: names of mapped files
    visible: Optional[str]  #: CUDA_VISIBLE_DEVICES at its start


def likely(pids: Collection[int], gpus: Sequence[Mapping[str, Any]], proc: str = "/proc") -> str:
    """The likely cause and what to do, one sentence.

    Parameters
    ----------
    pids
        Processes of the run.
    gpus
        The devices that it was given: ``index`` and ``uuid``.
    """
    if not LINUX:
        return THREE
    seen = [_look(pid, proc) for pid in sorted(pids)[:MAX_PROCESSES]]
    frameworks = {pid: name for pid, name in ((one.pid, _framework(one.libraries)) for one in seen) if name}
    # Where a framework is loaded its processes matter, not the shell that started them.
    judged = [one for one in seen if one.pid in frameworks] or seen
    hidden = [text for text in (_hides(one.visible, gpus) for one in judged) if text]
    if hidden and len(hidden) == len(judged):
        return hidden[0]
    for name, _, cure in _FRAMEWORKS:
        users = [one for one in judged if frameworks.get(one.pid) == name]
        if not users:
            continue
        if any(library in one.libraries for one in users for library in _CUDA):
            return _MOVE[name]
        return "%s is installed without CUDA (CPU-only wheel): %s" % (name, cure)
    if any(library in one.libraries for one in judged for library in _CUDA):
        return _MOVE["torch"]
    return hidden[0] if hidden else THREE


def _framework(libraries: str) -> str:
    for name, signs, _ in _FRAMEWORKS:
        if any(sign in libraries for sign in signs):
            return name
    return ""


def _hides(visible: Optional[str], gpus: Sequence[Mapping[str, Any]]) -> str:
    """What a value of the variable says against us; empty when it is as it should be."""
    if visible is None:
        return ""
    where = "the script's process was started with %s=" % VISIBLE
    if visible.strip() in ("", "-1"):
        return "%s%r, which hides every GPU: leave the variable alone" % (where, visible.strip())
    names = [str(gpu.get("uuid") or "") for gpu in gpus]
    indices: Set[str] = {str(gpu.get("index")) for gpu in gpus}
    for part in (text.strip() for text in visible.split(",")):
        # CUDA takes the beginning of a UUID as well.
        if part and (part in indices or any(name.startswith(part) for name in names)):
            return ""
    given = ",".join(names)
    return "%s%r and not the assigned %s: leave the variable alone" % (where, visible[:120], given[:120])


def _look(pid: int, proc: str) -> _Seen:
    libraries = set()
    try:
        with open(os.path.join(proc, str(pid), "maps"), "rb") as file:
            for line in file:
                at = line.find(b"/")
                if at > 0:
                    libraries.add(line[at:].rstrip(b"\n"))
    except OSError:  # another user's, or gone
        pass
    visible: Optional[str] = None
    try:
        with open(os.path.join(proc, str(pid), "environ"), "rb") as file:
            pairs = [item.partition(b"=") for item in file.read().split(b"\0")]
        found = [value for name, _, value in pairs if name == VISIBLE.encode()]
        visible = found[0].decode("utf-8", "replace") if found else None
    except OSError:
        pass
    return _Seen(pid, b"\n".join(sorted(libraries)).decode("utf-8", "replace"), visible)
