"""A fake ``libnvidia-ml.so.1`` of our own, for the real pynvml. Its switches: ``library.c``."""

from __future__ import annotations

import functools
import struct
import subprocess
import tempfile
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
    cc = compiler.find()
    if cc is None:
        raise RuntimeError("no C compiler: install gcc or clang")
    folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-D_GNU_SOURCE"]
    if without:
        script = folder / "exports"
        script.write_text("{ local: " + " ".join(f"{name};" for name in without) + " };\n")
        options.append(f"-Wl,--version-script={script}")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([cc, *options, "-o", str(library), *map(str, SOURCES), "-lm"], check=True, timeout=60)
    return folder


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
