"""A fake ``libnvidia-ml.so.1`` of our own, for the real pynvml. Its switches: ``library.c``."""

from __future__ import annotations

import functools
import struct
from pathlib import Path

from tools import compiler

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
_RECORD = struct.Struct("56sQ")


@functools.cache
def build(without: tuple[str, ...] = ()) -> Path:
    """Compile the fake with the system's compiler; the folder for ``LD_LIBRARY_PATH``.

    Parameters
    ----------
    without
        Functions that the library does not export, as an older driver's (Linux).

    Raises
    ------
    RuntimeError
        There is no C compiler.
    """
    return compiler.driver_library(SOURCES, ["-lm"], without).parent


def needed(without: tuple[str, ...] = ()) -> Path:
    """The same for a test, which is skipped where there is no compiler."""
    try:
        return build(without)
    except RuntimeError as error:
        import pytest

        pytest.skip(str(error))


def calls(path: Path) -> dict[str, int]:
    """Calls of each function, from a file named by ``AMLTRAIN_FAKE_NVML_CALLS``."""
    found = {}
    for name, count in _RECORD.iter_unpack(path.read_bytes()):
        if name.rstrip(b"\0"):
            found[name.rstrip(b"\0").decode()] = count
    return found


def set_clock(path: Path, seconds: float) -> None:
    """Set the time of the curves in a file named by ``AMLTRAIN_FAKE_NVML_CLOCK``."""
    data = struct.pack("d", seconds)
    if path.exists():
        with path.open("r+b") as file:  # in place: the library has it mapped
            file.write(data)
    else:
        path.write_bytes(data)
