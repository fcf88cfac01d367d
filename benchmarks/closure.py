"""What a cell takes from the notebook: 100 MiB of arrays against ``cloudpickle``, and the analysis of a long cell.

Rounds are interleaved. Memory is the growth of the peak of this process, as a multiple of the values.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.timing import line, verdict

#: Arrays of the cell, and numbers in each: 100 MiB in all.
_ARRAYS, _NUMBERS = 4, 13_107_200 // 4
#: Cells of the notebook, and lines of the cell that is analyzed.
_CELLS, _LINES = 300, 500


def _peak_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _ms(function: Any, *arguments: Any) -> float:
    begin = time.perf_counter()
    function(*arguments)
    return (time.perf_counter() - begin) * 1000


def _arrays(rounds: int) -> None:
    import cloudpickle
    import numpy

    from jupyter_amltrain.jobs import closure

    names = [f"a{i}" for i in range(_ARRAYS)]
    cell = f"print({' + '.join(f'{name}.sum()' for name in names)})"
    first: list[float] = []
    unchanged: list[float] = []
    peer: list[float] = []
    folder = Path(tempfile.mkdtemp())
    closure.closure_of("x", closure.Notebook({"x": 1}))  # imports
    growth = 0.0
    for _ in range(rounds):
        namespace = {name: numpy.random.default_rng().random(_NUMBERS) for name in names}
        notebook = closure.Notebook(namespace)
        before = _peak_bytes()
        first.append(_ms(closure.closure_of, cell, notebook))
        growth = max(growth, (_peak_bytes() - before) / (100 << 20))
        unchanged.append(_ms(closure.closure_of, cell, notebook))
        peer.append(_ms(lambda values: (folder / "peer").write_bytes(cloudpickle.dumps(values)), namespace))
    print("A cell takes 100 MiB of arrays")
    for name, values in (("first", first), ("unchanged", unchanged), ("cloudpickle to a file", peer)):
        print(line(name, values, "ms"))
    ratio = statistics.median(first) / statistics.median(peer)
    print(verdict("first / cloudpickle to a file", ratio, 2.0, 4.0))
    print(verdict("unchanged / first", statistics.median(unchanged) / statistics.median(first), 0.2, 0.4))
    print(f"  peak memory while it is written +{growth:.2f} x of the values")


def _analysis(rounds: int) -> None:
    from jupyter_amltrain.jobs import closure

    functions = "\n".join(f"def f{j}(a):\n    b = a + {j}\n    return [b * c for c in range(b)]" for j in range(5))
    history = ["", *(f"x{i} = {i}\n{functions}" for i in range(_CELLS))]
    cell = "\n".join(f"y{i} = x{i % _CELLS} + abs({i})\nfor k in range(3):\n    y{i} += k" for i in range(_LINES // 3))
    notebook = closure.Notebook({f"x{i}": i for i in range(_CELLS)}, lambda: history)
    times = [_ms(closure.closure_of, cell, notebook) for _ in range(rounds)]
    print(f"A cell of {_LINES} lines in a notebook of {_CELLS} cells is analyzed")
    print(line("the first time", times[:1], "ms"))
    print(line("again", times[1:], "ms"))


def main(rounds: int = 9) -> None:
    """Print the table."""
    os.environ["AMLTRAIN_HOME"] = tempfile.mkdtemp()
    _arrays(rounds)
    _analysis(rounds)


if __name__ == "__main__":
    main()
