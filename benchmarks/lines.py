"""What it costs that a run's lines are sampled: wall and processor time of jobs with and without, in turn.

``python -m benchmarks.lines [ROUNDS] [NAME...]``. Where py-spy and Scalene are installed, they are
compared at 40 samples a second.

Two runs of a job differ by more than the price, so the processor time that the sampling thread itself used is measured,
too; with 0 rounds only that.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from benchmarks.timing import interleaved, line
from jupyter_amltrain.agent.supervise import job_hooks

#: Jobs of a fixed amount of work.
JOBS: Mapping[str, str] = {
    "nothing": "pass",
    "pure Python": "s = 0\nfor i in range(45_000_000): s += i & 3",
    "calls": "def f(x): return x + 1\ns = 0\nfor i in range(28_000_000): s = f(s)",
    "objects": "for _ in range(16):\n    d = [{'a': i, 'b': [i]} for i in range(280_000)]",
    "deep stack": (
        "def down(n): return down(n - 1) if n else sum(1 for _ in range(40_000_000))\n"
        "import sys; sys.setrecursionlimit(5000); down(400)"
    ),
    "NumPy, large": "import numpy\nx = numpy.ones(4_000_000)\nfor _ in range(320): y = x * 2 + x",
    "NumPy, small": "import numpy\nx = numpy.ones(50)\nfor _ in range(2_400_000): y = x * 2",
    "native with the lock": "for _ in range(7): s = sum(range(25_000_000))",
    "waiting": "import time\nfor _ in range(50): time.sleep(0.06)",
    "two threads": (
        "import threading\ndef f():\n    s = 0\n    for i in range(20_000_000): s += i & 3\n"
        "t = [threading.Thread(target=f) for _ in range(2)]\nfor x in t: x.start()\nfor x in t: x.join()"
    ),
    "files": "import os\nfor i in range(450_000):\n    with open('/dev/null', 'wb') as f: f.write(b'x')",
    "asyncio": (
        "import asyncio\nasync def f():\n    for _ in range(30_000): await asyncio.sleep(0)\n"
        "async def main(): await asyncio.gather(*(f() for _ in range(12)))\nasyncio.run(main())\nasyncio.run(main())"
    ),
    "PyTorch": (
        "import torch\ntorch.set_num_threads(1)\nm = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), "
        "torch.nn.Linear(256, 10))\no = torch.optim.SGD(m.parameters(), 0.1)\nx = torch.randn(128, 64)\n"
        "for _ in range(2500):\n    o.zero_grad(); m(x).square().mean().backward(); o.step()"
    ),
    "forks": "import os\nfor _ in range(700):\n    p = os.fork()\n    if not p: os._exit(0)\n    os.waitpid(p, 0)",
}
#: How often the work of a job is repeated where the sampling thread is measured: so that its start is a small part.
_REPEATED = 4
#: Around such a job: when it begins, the sampling thread is the only other one.
_BEFORE = """import os as _os, time as _time
_other = [_one for _one in _os.listdir("/proc/self/task") if int(_one) != _os.getpid()]
_begin = _time.monotonic()
"""
_AFTER = """
_used = sum(int(open("/proc/self/task/%s/schedstat" % _one).read().split()[0]) for _one in _other) / 1e9
print("OWN", _time.monotonic() - _begin, _used)
"""

#: The first one starts Python alone: what it costs counts in milliseconds.
START = "nothing"


def seconds_of(command: list[str], env: Mapping[str, str], folder: str) -> tuple[float, float]:
    """Run a job; return its wall and its processor time."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=env, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def contenders(script: Path, folder: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return commands and environments: without, with lines, and other samplers that are there."""
    found = {}
    command = [sys.executable, str(script)]
    base = {name: value for name, value in os.environ.items() if not name.startswith("AMLTRAIN_")}
    for name, value in (("without", "0"), ("lines", "1")):
        env = {**base, "AMLTRAIN_LINES": value}
        job_hooks.add(env, folder, os.path.join(folder, "hooks"), gpus=False)
        found[name] = command, env
    if shutil.which("py-spy"):
        spy = ["py-spy", "record", "--rate", "40", "--idle", "--format", "raw", "-o", f"{folder}/spy", "--", *command]
        found["py-spy"] = spy, found["without"][1]
    if importlib.util.find_spec("scalene"):
        scalene = [sys.executable, "-m", "scalene", "run", "--cpu-only", "--cpu-sampling-rate", "0.025"]
        scalene += ["-o", f"{folder}/scalene.json", str(script)]
        found["Scalene"] = scalene, base
    return found


def compare(name: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Print what a job costs with each contender; return the medians of the differences in percent, by contender."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(JOBS[name] + "\n")
        cpu: dict[str, list[float]] = {}

        def timed(key: str, command: list[str], env: Mapping[str, str]) -> Callable[[], float]:
            def run() -> float:
                wall, used = seconds_of(command, env, folder)
                cpu.setdefault(key, []).append(used)
                return wall

            return run

        runs = {key: timed(key, *one) for key, one in contenders(script, folder).items()}
        for run in runs.values():  # byte code, caches
            try:
                run()
            except subprocess.CalledProcessError as error:
                print(f"  {error.cmd[0]} does not run: {error.returncode}")
        cpu.clear()
        wall = interleaved(runs, rounds)
    print(name)
    more = {}
    for key in runs:
        print(line(f"{key}, wall", wall[key], "s"))
        print(line(f"{key}, processor", cpu[key], "s"))
        if key != "without":
            more[key] = (_more(wall[key], wall["without"], name), _more(cpu[key], cpu["without"], name))
    return more


def own_price(name: str) -> tuple[float, float]:
    """Return the wall time of a job, and the processor time of the sampling thread in it (s)."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(_BEFORE + "\n".join([JOBS[name]] * _REPEATED) + _AFTER)
        command, env = contenders(script, folder)["lines"]
        job = subprocess.run(command, env=env, cwd=folder, check=True, capture_output=True, text=True)
    words = next(line for line in job.stdout.splitlines() if line.startswith("OWN")).split()
    return float(words[1]), float(words[2])


def print_own_prices(names: Iterable[str]) -> None:
    """Print the part of a processor that the sampling thread used in each job."""
    print("\nprocessor time of the sampling thread, in percent of the wall time of the job")
    parts = []
    for name in names:
        if name != START:
            wall, used = own_price(name)
            parts.append(100 * used / wall)
            print(f"  {name:<22} {parts[-1]:5.2f} %   ({used:.3f} s of {wall:.1f} s)", flush=True)
    if parts:
        print(f"  median {statistics.median(parts):.2f} %, worst {max(parts):.2f} %")


def _more(values: list[float], base: list[float], name: str) -> float:
    """Return the median of what is more in a round, in percent; in milliseconds for the start alone."""
    if name == START:
        return statistics.median(1e3 * (value - one) for value, one in zip(values, base, strict=True))
    return statistics.median(100 * (value / one - 1) for value, one in zip(values, base, strict=True))


def main(argv: list[str]) -> None:
    """Compare all jobs, or those that are named."""
    rounds = int(argv[0]) if argv else 7
    print_own_prices(argv[1:] or JOBS)
    if not rounds:
        return
    found = {name: compare(name, rounds) for name in argv[1:] or JOBS}
    print("\nmore than without: wall, processor (median of the rounds)")
    for name, more in found.items():
        unit = "ms" if name == START else "%"
        text = "   ".join(f"{key} {wall:+.1f}, {used:+.1f} {unit}" for key, (wall, used) in more.items())
        print(f"  {name:<22} {text}")
    for key in next(iter(found.values())):
        walls = [more[key][0] for name, more in found.items() if name != START]
        cpus = [more[key][1] for name, more in found.items() if name != START]
        if walls:
            print(f"  {key}: median {statistics.median(walls):+.2f} % wall, {statistics.median(cpus):+.2f} % processor;"
                  f" worst {max(walls):+.2f} %, {max(cpus):+.2f} %")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
