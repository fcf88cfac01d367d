"""Versions of the NVIDIA driver and of the CUDA that it serves."""

from __future__ import annotations

from typing import Any, Dict, Optional

from .nvml import as_text, attempt


def versions(pynvml: Any) -> Dict[str, Optional[str]]:
    """``{"driver": "580.65.06", "cuda": "13.0"}`` of an initialized NVML; ``None`` where it does not tell."""
    number = attempt(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return {
        "driver": as_text(attempt(pynvml.nvmlSystemGetDriverVersion)),
        "cuda": "%d.%d" % (number // 1000, number % 1000 // 10) if isinstance(number, int) and number > 0 else None,
    }
