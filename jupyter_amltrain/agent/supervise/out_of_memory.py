"""Errors for want of GPU memory (PyTorch, JAX, CuPy, TensorFlow): what was requested, what was free, who held it."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Match, NamedTuple, Optional, Sequence, Tuple

from ..telemetry.gpu_names import gpu_name

#: Kind of the cause.
OOM = "cuda-oom"

#: Fraction of the GPU memory above which other processes are named as the cause.
OTHERS_SHARE = 0.05

#: Fraction of the GPU memory that must be unaccounted for to report hidden processes.
HIDDEN_SHARE = 0.1

#: Max memory of the CUDA context of a process, which PyTorch does not count.
CONTEXT_BYTES = 3 << 29

#: Max characters of a message, which some consoles break into several lines.
_MESSAGE_CHARS = 1600

_SIZE = r"([\d.]+)\s*(bytes|KiB|MiB|GiB|TiB)"

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

#: Prefix that a launcher writes before the lines of its processes.
_PREFIX = r"(?:\[?(?:default|rank)?\d*\]?:\s?|\[\w+\]:\s?|\d{4}-\d\d-\d\d[ T][\d:.,]+ (?:\[?rank\d+\]?: )?)*"

_ERROR = re.compile(
    r"^" + _PREFIX + r"(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Raised\w*))(?::|\s*$)", re.MULTILINE
)

#: Errors that a launcher raises because one of its processes has failed.
_LAUNCHERS = ("ChildFailedError", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException")

_OOM = re.compile(
    r"(?:CUDA|HIP)\s+out\s+of\s+memory|(?:CUDA|HIP)\s+error:\s+out\s+of\s+memory|cuda\s+runtime\s+error\s+\(2\)"
    r"|CUDA_ERROR_OUT_OF_MEMORY|RESOURCE_EXHAUSTED:\s+[Oo]ut\s+of\s+memory|OOM\s+when\s+allocating|OutOfMemoryError\b"
    r"|CUBLAS_STATUS_ALLOC_FAILED"
)

_COLOR = re.compile(r"\x1b\[[0-9;]*m")

_TRIED = re.compile(r"(?:[Tt]ried|trying|failed)\s+to\s+allocate\s+" + _SIZE)

_GPU = re.compile(r"\bGPU[\s:]+(\d+)\b")

_TOTAL = re.compile(r"total\s+capac\w*ty\s+of\s+" + _SIZE + r"|;\s*" + _SIZE + r"\s+total\s+capacity")

_FREE = re.compile(r"of\s+which\s+" + _SIZE + r"\s+is\s+free|;\s*" + _SIZE + r"\s+free")

_OWN = re.compile(r"this\s+process\s+has\s+" + _SIZE + r"\s+memory\s+in\s+use")

_PROCESS = re.compile(r"Process\s+(\d+)\s+has\s+" + _SIZE + r"\s+memory\s+in\s+use")

_ALLOCATED = re.compile(_SIZE + r"\s+(?:is\s+allocated\s+by\s+PyTorch|already\s+allocated)")

_UNALLOCATED = re.compile(_SIZE + r"\s+is\s+reserved\s+by\s+PyTorch\s+but\s+unallocated")

_RESERVED = re.compile(_SIZE + r"\s+(?:reserved\s+in\s+total\s+by\s+PyTorch|cached\))")

#: CuPy.
_BYTES = re.compile(r"[Oo]ut\s+of\s+memory\s+allocating\s+([\d,]+)\s+bytes")

#: TensorFlow, which names a shape.
_TENSOR = re.compile(r"OOM\s+when\s+allocating\s+tensor\s+with\s+shape\s*\[([\d,\s]*)\]\s+and\s+type\s+(\w+)")

#: Bytes of an element by its type, for TensorFlow.
_ITEMS = {"double": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16, "half": 2, "bfloat16": 2,
          "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1}  # fmt: skip

#: TensorFlow's message has empty lines.
_LONG = "ResourceExhaustedError"


class CudaOom(NamedTuple):
    """An out-of-memory error; sizes in bytes, ``None`` where the message does not contain them.

    Attributes
    ----------
    gpu
        Index of the GPU as seen by the process.
    own
        Memory of the process itself; without `own_is_whole` only the memory reserved by PyTorch.
    others
        Memory of other processes named in the message, by pid.
    allocated, unallocated
        Memory of PyTorch tensors, and memory that PyTorch had reserved in addition.
    owner
        Who holds `own`, for the text.
    """

    tried: Optional[int] = None
    gpu: Optional[int] = None
    total: Optional[int] = None
    free: Optional[int] = None
    own: Optional[int] = None
    others: Dict[int, int] = {}
    allocated: Optional[int] = None
    unallocated: Optional[int] = None
    own_is_whole: bool = True
    owner: str = "this process"


def last_oom(log: str) -> Optional[CudaOom]:
    """Return the out-of-memory error with which the program that wrote `log` ended.

    ``None`` if it ended for another reason: a program may catch such an error and fail later.
    """
    log = _COLOR.sub("", log.replace("\r\n", "\n"))
    last: Optional[Tuple[int, str]] = None
    for match in _ERROR.finditer(log):
        if match["kind"].rpartition(".")[2] in _LAUNCHERS:
            continue
        line = log[match.start() : log.find("\n", match.start()) + 1 or len(log)]
        # The processes of a launcher report one after another: the first out-of-memory error counts.
        if last is not None and _is_oom(last[1]) and _of_other_rank(last[1], line):
            continue
        last = (match.start(), line)
    if last is None:
        return None
    text = _message(log, last[0])
    return parse(text) if _is_oom(text) else None


def parse(message: str) -> CudaOom:
    """Parse the sizes in a message; a message of an unknown form yields none."""
    total = _match_bytes(_TOTAL.search(message))
    others = {int(match[1]): _to_bytes(match[2], match[3]) for match in _PROCESS.finditer(message)}
    own, allocated = _match_bytes(_OWN.search(message)), _match_bytes(_ALLOCATED.search(message))
    unallocated, reserved = _match_bytes(_UNALLOCATED.search(message)), _match_bytes(_RESERVED.search(message))
    if unallocated is None and reserved is not None and allocated is not None:
        unallocated = max(0, reserved - allocated)
    if total is not None:  # under WSL2 the driver reports impossible sizes
        others = {pid: size for pid, size in others.items() if size <= total}
        own = own if own is None or own <= total else None
    own_is_whole = True
    if own is None and allocated is not None:
        # In a container PyTorch does not recognize its own pid and lists itself as another process.
        reserved_bytes = allocated + (unallocated or 0)
        large = [pid for pid, size in others.items() if size >= reserved_bytes]
        if len(large) == 1:
            own = others.pop(large[0])
        elif not others:
            own, own_is_whole = reserved_bytes, False
    tried = _requested(message)
    gpu = _GPU.search(message)
    return CudaOom(
        tried,
        int(gpu[1]) if gpu else None,
        total,
        _match_bytes(_FREE.search(message)),
        own,
        others,
        allocated,
        unallocated,
        own_is_whole,
        "this process" if own_is_whole else "PyTorch",
    )


def _requested(message: str) -> Optional[int]:
    """Return the bytes that were requested; ``None`` if the message does not say it."""
    tried = _match_bytes(_TRIED.search(message))
    if tried is None and (bytes_match := _BYTES.search(message)):
        tried = int(bytes_match[1].replace(",", ""))
    if tried is None and (tensor := _TENSOR.search(message)):
        tried = _ITEMS.get(tensor[2], 4)
        for size in tensor[1].replace(",", " ").split():
            tried *= int(size)
    return tried


def in_size(size: int) -> str:
    """Format a size: ``3.2 GiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return "%.0f %s" % (value, unit) if unit == "B" else "%.1f %s" % (value, unit)
        value /= 1024
    return "%.1f GiB" % value


def _is_oom(text: str) -> bool:
    return _OOM.search(text) is not None


def _of_other_rank(first: str, line: str) -> bool:
    """Whether the lines name two different ranks."""
    ranks: List[str] = re.findall(r"rank(\d+)", first[:80])[:1] + re.findall(r"rank(\d+)", line[:80])[:1]
    return len(ranks) == 2 and ranks[0] != ranks[1]


def _message(log: str, start: int) -> str:
    """Return the message from `start` to the next empty line."""
    text = log[start : start + _MESSAGE_CHARS]
    end = -1 if _LONG in text.split("\n", 1)[0] else text.find("\n\n")
    return text if end < 0 else text[:end]


def _match_bytes(match: Optional[Match[str]]) -> Optional[int]:
    if match is None:
        return None
    number, unit = [group for group in match.groups() if group is not None][:2]
    return _to_bytes(number, unit)


def _to_bytes(number: str, unit: str) -> int:
    try:
        return int(float(number) * _UNITS[unit])
    except ValueError:  # "1.2.3"
        return 0


def cause_of(
    oom: CudaOom,
    processes: Sequence[Mapping[str, Any]],
    gpus: Sequence[Mapping[str, Any]],
    devices: Sequence[str],
    held: Optional[Mapping[int, int]] = None,
) -> Dict[str, str]:
    """Return the cause for an out-of-memory error: requested, free and used memory.

    ``title`` and ``figures`` are the two parts of ``text``: the kernel puts the line of the cell between them.

    Parameters
    ----------
    processes
        Processes on the GPUs that the sampler has seen.
    gpus
        GPUs of the telemetry header.
    devices
        UUIDs of the GPUs of the run, in the order in which it sees them.
    held
        Bytes in use on each GPU at the last readings, by its index: for messages without figures.
    """
    gpu = _gpu_of(oom, gpus, devices)
    listed = [one for one in processes if gpu is None or one["gpu"] == gpu["index"]]
    if gpu is not None and oom.total is None:
        oom = _with_readings(oom, gpu, listed, (held or {}).get(gpu["index"]))
    title = "CUDA out of memory"
    title += " on %s" % gpu_name(gpu) if gpu is not None else ""
    facts = []
    if oom.tried is not None:
        facts.append("%s more was requested" % in_size(oom.tried))
    if oom.free is not None:
        of = " of %s" % in_size(oom.total) if oom.total else ""
        facts.append("%s%s was free" % (in_size(oom.free), of))
    if oom.own is not None:
        facts.append("%s held %s" % (oom.owner, in_size(oom.own)))
    others, strangers = _others(oom, listed)
    facts += others
    figures = ", ".join(facts)
    text = "%s: %s" % (title, figures) if figures else title
    return {"kind": OOM, "text": text, "action": _oom_action(oom, strangers), "title": title, "figures": figures}


def _with_readings(
    oom: CudaOom, gpu: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], used: Optional[int]
) -> CudaOom:
    """Return the error with what the last readings say, where its message has no figures."""
    total = gpu.get("memory_total")
    if not isinstance(total, (int, float)) or total <= 0:
        return oom
    if used is None:
        return oom._replace(total=int(total) << 20)
    others = sum(int(one["memory"]) << 20 for one in listed if one["owner"] != "mine" and one["memory"])
    return oom._replace(
        total=int(total) << 20, free=max(0, (int(total) << 20) - used), own=max(0, used - others), owner="this run"
    )


def _others(oom: CudaOom, listed: Sequence[Mapping[str, Any]]) -> Tuple[List[str], int]:
    """Return descriptions of other processes with GPU memory, and the bytes of processes outside of the run."""
    words: List[str] = []
    strangers, named = 0, 0
    known = {int(one["pid"]): one for one in listed}
    sizes = {pid: int(one["memory"]) << 20 for pid, one in known.items() if one["owner"] != "mine" and one["memory"]}
    # The message has the sizes at the time of the error; the driver's list adds users and further processes.
    sizes = {**sizes, **oom.others}
    for pid, size in sorted(sizes.items(), key=lambda row: -row[1]):
        one = known.get(pid)
        named += size
        if one is not None and one["owner"] != "mine":
            strangers += size
        if len(words) < 3:
            words.append("%s held %s" % (_process_text(pid, one), in_size(size)))
    if len(sizes) > 3:
        words.append("%d more process%s" % (len(sizes) - 3, "es" if len(sizes) > 4 else ""))
    if oom.total and oom.free is not None and oom.own is not None:
        rest = oom.total - oom.free - oom.own - named
        if rest > max(HIDDEN_SHARE * oom.total, 0 if oom.own_is_whole else CONTEXT_BYTES):
            outside = "" if oom.own_is_whole else "outside of PyTorch, or "
            words.append("%s was held %sby processes that are not visible from here" % (in_size(rest), outside))
            strangers += rest
    return words, strangers


def _process_text(pid: int, one: Optional[Mapping[str, Any]]) -> str:
    if one is None or one["owner"] == "mine":
        return "pid %d%s" % (pid, "" if one is None else " (of this run)")
    owner = ": ".join(str(one[key]) for key in ("user", "program") if one.get(key))
    return "pid %d%s" % (pid, " (%s)" % owner if owner else "")


def _oom_action(oom: CudaOom, strangers: int) -> str:
    if oom.tried and oom.total and oom.tried > oom.total:
        return "The request is larger than the memory of the whole GPU: check the sizes of its arrays"
    if strangers and strangers >= (OTHERS_SHARE * oom.total if oom.total else 0):
        return "Use a GPU without other processes, or wait until they have ended"
    if oom.tried and oom.unallocated and oom.unallocated >= oom.tried:
        return (
            "PyTorch had enough memory, but in fragments that are too small: "
            "try --env-var PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    return "Make the batch smaller, accumulate gradients, or use bfloat16 or gradient checkpointing"


def _gpu_of(oom: CudaOom, gpus: Sequence[Mapping[str, Any]], devices: Sequence[str]) -> Optional[Mapping[str, Any]]:
    """Return the GPU of the telemetry header for the index that the process uses."""
    index = 0 if oom.gpu is None and len(devices) == 1 else oom.gpu
    if index is None or not devices and len(gpus) <= index:
        return None
    if not devices:
        return gpus[index]
    if index >= len(devices):
        return None
    return next((gpu for gpu in gpus if gpu.get("uuid") == devices[index]), None)
