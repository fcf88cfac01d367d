"""A value of ``--out`` of 2 GiB: how long an empty cell takes while it is written, returned and loaded."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.kernels import Kernel, running_kernel
from benchmarks.timing import line
from tests.conftest import end_all

#: Bytes of the value, and milliseconds that an empty cell may take longer.
LARGE_BYTES, MORE_MS = 2 << 30, 20.0
_SUBMIT = f"""%%aml_submit --out big --as run
import numpy as np
big = np.arange({LARGE_BYTES // 8})
"""
_STATE = "print('STATE', run.state)"
_HANDLE = "print('HANDLE', repr(big))"
_LOAD = """
import threading
loaded = []
thread = threading.Thread(target=lambda: loaded.append(big.load()))
thread.start()
"""
_DONE = "print('DONE', not thread.is_alive(), sum(len(one) for one in loaded))"


def empty_cells(kernel: Kernel, is_over: str, word: str, least: int = 20) -> list[float]:
    """Milliseconds of empty cells until the cell `is_over` prints `word`."""
    found: list[float] = []
    while True:
        found += [kernel.latency() for _ in range(10)]
        if word in kernel.run(is_over) and len(found) >= least:
            return found
        time.sleep(0.05)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        places = {"AMLTRAIN_HOME": f"{folder}/home", "AMLTRAIN_QUEUE": f"{folder}/queue", "HOME": name}
        try:
            with running_kernel({**os.environ, **places}, name) as kernel:
                kernel.run("%load_ext jupyter_amltrain\nimport numpy")
                before = [kernel.latency() for _ in range(100)]
                kernel.run(_SUBMIT)
                written = empty_cells(kernel, _STATE, "completed")
                returned = [kernel.latency() for _ in range(100)]
                handle = kernel.run(_HANDLE).strip()
                kernel.run(_LOAD)
                loading = empty_cells(kernel, _DONE, "DONE True")
                size = kernel.run(_DONE).split()[-1]
        finally:
            end_all(folder / "home")
    print(f"A value of {LARGE_BYTES >> 30} GiB: {handle.removeprefix('HANDLE ')}; loaded: {int(size):,} numbers")
    print(line("empty cell before", before, "ms"))
    middle = statistics.median(before)
    for what, values in (("while it is written", written), ("after its handle", returned), ("while loading", loading)):
        print(line(f"empty cell {what}", values, "ms"))
        print(f"  {statistics.median(values) - middle:.1f} ms more (median)  goal <= {MORE_MS:g}")


if __name__ == "__main__":
    main()
