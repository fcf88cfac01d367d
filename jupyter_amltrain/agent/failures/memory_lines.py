"""The lines whose tensors fill the memory of the GPUs when a script ends for want of it.

PyTorch's allocator knows where each of its blocks was made, if the script has called
``torch.cuda.memory._record_memory_history()``. Its snapshot is a figure of the host: nothing asks the GPU.
``supervise/job_hooks.py`` puts this file into a job's Python as ``amltrain_memory_lines.py``.
"""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

    Json = Dict[str, Any]

#: Lines that are kept, and seconds for the blocks.
_MAX_LINES, _READ_S = 8, 0.3
#: State of a block that a tensor uses.
_USED = "active_allocated"


def read(is_library: Callable[[str], bool]) -> List[Json]:
    """Return bytes, number of blocks and place of the lines with the most memory; none without a history.

    Parameters
    ----------
    is_library
        Whether a file is of a library: its blocks count for the line that has called it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    return lines_of(torch.cuda.memory._snapshot(), is_library)


def lines_of(snapshot: Json, is_library: Callable[[str], bool]) -> List[Json]:
    """Return the lines of a snapshot with the most memory, by device."""
    end = time.monotonic() + _READ_S
    sums: Dict[Tuple[int, str, int, str], List[int]] = {}
    for segment in snapshot["segments"]:
        if time.monotonic() > end:
            break
        for block in segment["blocks"]:
            frames = block.get("frames") or ()
            if block["state"] != _USED or not frames:
                continue
            frame = next((one for one in frames if not is_library(one["filename"])), frames[0])
            place = segment.get("device", 0), frame["filename"], frame["line"], frame["name"]
            known = sums.setdefault(place, [0, 0])
            known[0] += block.get("requested_size", block["size"])
            known[1] += 1
    largest = sorted(sums.items(), key=lambda one: -one[1][0])[:_MAX_LINES]
    return [
        {"device": device, "file": file[:500], "line": line, "function": name[:200], "bytes": size, "count": count}
        for (device, file, line, name), (size, count) in largest
    ]
