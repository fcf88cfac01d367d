"""What a summary says of PyTorch's allocator and of errors of the GPUs, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

#: Counters of a summary that are told when they have risen during a run, and their words (one, several).
_ERRORS = (
    ("ecc_uncorrectable", "uncorrectable memory error", "uncorrectable memory errors"),
    ("ecc_correctable", "correctable memory error", "correctable memory errors"),
    ("rows_remapped", "replaced memory row", "replaced memory rows"),
    ("remap_failures", "memory row that could not be replaced", "memory rows that could not be replaced"),
    ("pages_retired", "retired memory page", "retired memory pages"),
)


def allocator_words(gpus: Iterable[Mapping[str, Any]], size: Callable[[float | None], str]) -> list[str]:
    """Return ``PyTorch peak 30.1 GiB allocated, 35.0 GiB reserved``, of the GPU where it was highest.

    Parameters
    ----------
    gpus
        Of a summary or a record's ``now``; MiB.
    size
        Bytes as text.
    """
    found = [
        (float(gpu["torch_reserved_peak"]), float(gpu.get("torch_allocated_peak") or 0))
        for gpu in gpus
        if isinstance(gpu.get("torch_reserved_peak"), int | float) and gpu["torch_reserved_peak"] > 0
    ]
    if not found:
        return []
    reserved, allocated = max(found)
    return [f"PyTorch peak {size(allocated * 2**20)} allocated", f"{size(reserved * 2**20)} reserved"]


def error_words(gpus: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return ``Xid 79, 45`` and what the counters of memory errors have counted, summed over the GPUs."""
    gpus = list(gpus)
    numbers = dict.fromkeys(text for gpu in gpus for text in str(gpu.get("xids") or "")[:100].split(", ") if text)
    words = [f"Xid {' and '.join(numbers)}"] if numbers else []
    for name, one, several in _ERRORS:
        count = sum(int(gpu[name]) for gpu in gpus if isinstance(gpu.get(name), int | float))
        words += [f"{count:,} {one if count == 1 else several}"] if count else []
    return words
