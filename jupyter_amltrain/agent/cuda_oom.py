"""CUDA's out-of-memory errors, as frameworks write them into a job's log.

PyTorch's message has changed with its versions: a parenthesis with the caching allocator's
figures (1.x to 2.0), sentences that also name the processes on the GPU (2.1 and later).
"""

from __future__ import annotations

import re
from typing import Dict, List, Match, NamedTuple, Optional, Tuple

#: Bytes of a log's end in which the error is looked for.
TAIL_BYTES = 64 << 10
#: Characters of a message: some consoles break it into several lines.
_MESSAGE_CHARS = 1600

_SIZE = r"([\d.]+)\s*(bytes|KiB|MiB|GiB|TiB)"
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
#: How lines begin that a launcher writes for one of its processes.
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

_TRIED = re.compile(r"Tried\s+to\s+allocate\s+" + _SIZE)
_GPU = re.compile(r"\bGPU\s+(\d+)\b")
_TOTAL = re.compile(r"total\s+capac\w*ty\s+of\s+" + _SIZE + r"|;\s*" + _SIZE + r"\s+total\s+capacity")
_FREE = re.compile(r"of\s+which\s+" + _SIZE + r"\s+is\s+free|;\s*" + _SIZE + r"\s+free")
_OWN = re.compile(r"this\s+process\s+has\s+" + _SIZE + r"\s+memory\s+in\s+use")
_PROCESS = re.compile(r"Process\s+(\d+)\s+has\s+" + _SIZE + r"\s+memory\s+in\s+use")
_ALLOCATED = re.compile(_SIZE + r"\s+(?:is\s+allocated\s+by\s+PyTorch|already\s+allocated)")
_UNALLOCATED = re.compile(_SIZE + r"\s+is\s+reserved\s+by\s+PyTorch\s+but\s+unallocated")
_RESERVED = re.compile(_SIZE + r"\s+(?:reserved\s+in\s+total\s+by\s+PyTorch|cached\))")
_BYTES = re.compile(r"(?:trying\s+to\s+allocate|failed\s+to\s+allocate)\s+(\d+)\s*bytes")


class CudaOom(NamedTuple):
    """One error; sizes in bytes, ``None`` where the message does not tell.

    Attributes
    ----------
    gpu
        As the process counts them.
    own
        What the process itself held; only what PyTorch had reserved where not `own_is_whole`.
    others
        Bytes by pid, of other processes as far as the message names them.
    allocated, unallocated
        What PyTorch's tensors held, and what PyTorch had reserved beside.
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


def last_oom(log: str) -> Optional[CudaOom]:
    """Return the out-of-memory error with which the program that wrote `log` ended.

    ``None`` when it ended otherwise: a program may catch one and go on, and fail of something else.
    """
    log = _COLOR.sub("", log.replace("\r\n", "\n"))
    last: Optional[Tuple[int, str]] = None
    for found in _ERROR.finditer(log):
        if found["kind"].rpartition(".")[2] in _LAUNCHERS:
            continue
        line = log[found.start() : log.find("\n", found.start()) + 1 or len(log)]
        # The processes of a launcher report one after the other: the first that ran out of memory counts.
        if last is not None and _is_oom(last[1]) and _of_other_rank(last[1], line):
            continue
        last = (found.start(), line)
    if last is None:
        return None
    text = _message(log, last[0])
    return parse(text) if _is_oom(text) else None


def parse(message: str) -> CudaOom:
    """Read the figures of one message; a message of any other form has none."""
    total = _bytes(_TOTAL.search(message))
    others = {int(found[1]): _size(found[2], found[3]) for found in _PROCESS.finditer(message)}
    own, allocated = _bytes(_OWN.search(message)), _bytes(_ALLOCATED.search(message))
    unallocated, reserved = _bytes(_UNALLOCATED.search(message)), _bytes(_RESERVED.search(message))
    if unallocated is None and reserved is not None and allocated is not None:
        unallocated = max(0, reserved - allocated)
    if total is not None:  # under WSL2 the driver gives sizes that no board has
        others = {pid: size for pid, size in others.items() if size <= total}
        own = own if own is None or own <= total else None
    whole = True
    if own is None and allocated is not None:
        # In a container PyTorch does not find itself by its pid, and names itself like any other.
        least = allocated + (unallocated or 0)
        large = [pid for pid, size in others.items() if size >= least]
        if len(large) == 1:
            own = others.pop(large[0])
        elif not others:
            own, whole = least, False
    tried = _bytes(_TRIED.search(message))
    if tried is None:
        plain = _BYTES.search(message)
        tried = int(plain[1]) if plain else None
    gpu = _GPU.search(message)
    return CudaOom(
        tried,
        int(gpu[1]) if gpu else None,
        total,
        _bytes(_FREE.search(message)),
        own,
        others,
        allocated,
        unallocated,
        whole,
    )


def in_size(size: int) -> str:
    """``3.2 GiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return "%.0f %s" % (value, unit) if unit == "B" else "%.1f %s" % (value, unit)
        value /= 1024
    return "%.1f GiB" % value


def _is_oom(text: str) -> bool:
    return _OOM.search(text) is not None


def _of_other_rank(first: str, line: str) -> bool:
    """Whether both lines name a rank, and not the same."""
    ranks: List[str] = re.findall(r"rank(\d+)", first[:80])[:1] + re.findall(r"rank(\d+)", line[:80])[:1]
    return len(ranks) == 2 and ranks[0] != ranks[1]


def _message(log: str, start: int) -> str:
    """The message that begins at `start`, to the next empty line."""
    text = log[start : start + _MESSAGE_CHARS]
    end = text.find("\n\n")
    return text if end < 0 else text[:end]


def _bytes(found: Optional[Match[str]]) -> Optional[int]:
    if found is None:
        return None
    number, unit = [group for group in found.groups() if group is not None][:2]
    return _size(number, unit)


def _size(number: str, unit: str) -> int:
    try:
        return int(float(number) * _UNITS[unit])
    except ValueError:  # "1.2.3"
        return 0
