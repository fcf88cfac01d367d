"""Names of files by their content, found again without reading all of it twice.

SHA-256 of 100 MiB takes a tenth of a second; sums of the same memory take a fifth of that. A buffer at the same address
whose sums of rows and columns are those of the last time has the name of the last time.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

#: Smaller buffers are hashed each time.
MIN_BYTES = 1 << 20
#: Numbers of 8 bytes in a row of the sums.
_ROW = 1024
#: Names that are remembered.
_MAX_NAMES = 1000

_names: dict[tuple[int, int], tuple[bytes, str]] = {}
_lock = threading.Lock()


def name_of(data: memoryview) -> str:
    """Return the first 32 digits of the SHA-256 of a buffer.

    Parameters
    ----------
    data
        Bytes, contiguous.
    """
    if data.nbytes < MIN_BYTES:
        return hashlib.sha256(data).hexdigest()[:32]
    key, sums = _sums(data)
    known = _names.get(key)
    if known is not None and known[0] == sums:
        return known[1]
    name = hashlib.sha256(data).hexdigest()[:32]
    with _lock:
        if len(_names) >= _MAX_NAMES:
            _names.clear()
        _names[key] = sums, name
    return name


def _sums(data: memoryview) -> tuple[tuple[int, int], bytes]:
    """Return address and size of a buffer, and a digest of its sums by row and by column."""
    import numpy

    whole = numpy.frombuffer(data, "u1")
    rows = whole.nbytes // (8 * _ROW)
    table = whole[: rows * 8 * _ROW].view("u8").reshape(rows, _ROW)
    sums = hashlib.sha256(numpy.add.reduce(table, axis=0))
    sums.update(numpy.add.reduce(table, axis=1))
    sums.update(data[rows * 8 * _ROW :])
    return (whole.__array_interface__["data"][0], whole.nbytes), sums.digest()


def store(folder: Path, data: memoryview, ending: str) -> str:
    """Write a file that is named by its content, unless it exists; return its name."""
    name = name_of(data) + ending
    path = folder / name
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = folder / f".part-{os.getpid()}-{threading.get_ident()}-{name}"
        try:
            part.write_bytes(data)
            part.chmod(0o400)  # runs have links to it
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    return name
