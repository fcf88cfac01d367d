"""What ``make`` does: ``python -m tools.tasks`` with the name of a task (``python -m tools.tasks`` lists them).

Standard library only: it starts on a bare Python 3.10+ and sets up ``.venv`` itself.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tools import azure_sdk, azurite, chromium, compiler, frontend, openmpi, openssh, slurm_cluster
from tools.environment import BIN, PYTHON, ROOT, TaskError, ensure, must, run, say, surroundings

#: The fast tier; `thorough` tests are left to ``make test-ui``, ``make test-azure``, ``make test-trust``,
#: ``make test-distributed`` and ``make test-slurm``.
FAST = "not soak and not gpu and not thorough"
#: Exit code of pytest where it has found no test.
_NO_TESTS = 5


def demo(arguments: list[str]) -> int:
    """Execute the first notebook headless and say where everything is."""
    ensure(["notebooks"])
    return run([PYTHON, "-m", "tools.demo", *arguments])


def test(arguments: list[str]) -> int:
    """Run the fast tier."""
    ensure(["test"])
    compiler.ensure()
    azurite.ensure()
    openssh.ensure()
    openmpi.ensure()
    slurm_cluster.ensure()
    if _ui_is_tested():
        chromium.ensure()
        frontend.ensure_bundle()
    return _pytest(FAST, [*_workers(), *arguments])


def test_ui(arguments: list[str]) -> int:
    """Run every browser test, the thorough ones too."""
    ensure(["test"])
    compiler.ensure()
    azurite.ensure()
    openssh.ensure()
    chromium.ensure()
    frontend.ensure_bundle()
    return _pytest("ui", [*_workers(), "tests/ui", *arguments])


def test_azure(arguments: list[str]) -> int:
    """Run the thorough tests on the Azure emulator; the core of them is in ``make test``."""
    ensure(["test"])
    compiler.ensure()
    azurite.ensure()
    azure_sdk.ensure()
    return _pytest(
        "thorough and not soak and not gpu and not ui",
        [*_workers(), "tests/azure", "tests/azureml_emulator", *arguments],
    )


def test_trust(arguments: list[str]) -> int:
    """Run all other thorough tests: whole runs, SSH, damage, hostile jobs, other users."""
    ensure(["test"])
    compiler.ensure()
    azurite.ensure()
    openssh.ensure()
    slurm_cluster.ensure()
    apart = ("azure", "azureml_emulator", "distributed", "slurm", "ui")
    where = ["tests", *(f"--ignore=tests/{name}" for name in apart)]
    return _pytest("thorough and not soak and not gpu", [*_workers(), *where, *arguments])


def test_distributed(arguments: list[str]) -> int:
    """Run the thorough tests of several processes and machines; the core of them is in ``make test``."""
    ensure(["test"])
    openssh.ensure()
    openmpi.ensure()
    marker = "thorough and not frameworks and not soak and not gpu"
    return _pytest(marker, [*_workers(), "tests/distributed", *arguments])


def test_slurm(arguments: list[str]) -> int:
    """Run the thorough tests on a real Slurm cluster of two nodes; the core of them is in ``make test``."""
    ensure(["test"])
    openssh.ensure()
    openmpi.ensure()
    slurm_cluster.ensure()
    return _pytest("thorough and not soak and not gpu", ["-n", "2", "--dist", "loadfile", "tests/slurm", *arguments])


def test_distributed_full(arguments: list[str]) -> int:
    """Run the tests with DeepSpeed, Ray and TensorFlow, which are installed for it (1 GB)."""
    ensure(["test", "frameworks"])
    compiler.ensure()
    openssh.ensure()
    openmpi.ensure()
    return _pytest("frameworks", ["tests/distributed", "tests/ssh/test_ssh_nodes.py", *arguments])


def azure_sandbox(arguments: list[str]) -> int:
    """Start an Azure ML of one's own on this machine, for practice, and say how to connect."""
    ensure(["test"])
    compiler.ensure()
    azurite.ensure()
    return run([PYTHON, "-m", "azureml_emulator.sandbox", *(arguments or ["--explain"])])


def ssh_sandbox(arguments: list[str]) -> int:
    """Start a machine with an SSH server on loopback, for practice, and say how to attach it."""
    ensure(["notebooks"])
    return run([PYTHON, "-m", "tools.openssh", *arguments])


def slurm_sandbox(arguments: list[str]) -> int:
    """Start a Slurm cluster of two nodes on loopback, for practice, and say how to attach it (needs root)."""
    ensure(["notebooks"])
    return run([PYTHON, "-m", "tools.slurm_cluster", *arguments])


def azure_live(arguments: list[str]) -> int:
    """Check on a real workspace what is only assumed of Azure (AMLTRAIN_AZURE_LIVE=1; costs less than 1 USD)."""
    ensure(["test"])
    return run([PYTHON, "-m", "tools.azure_live", *arguments])


def soak(arguments: list[str]) -> int:
    """Run the repetitions; they take long."""
    ensure(["test"])
    compiler.ensure()
    azurite.ensure()
    openssh.ensure()
    say(f"seed {os.environ.setdefault('AMLTRAIN_SOAK_SEED', '20261121')} (AMLTRAIN_SOAK_SEED sets another)")
    return _pytest("soak", ["-s", *arguments])


def lab(arguments: list[str]) -> int:
    """Build and link the labextension, then open JupyterLab in ``notebooks/`` (or ``$AMLTRAIN_NOTEBOOKS``)."""
    ensure(["notebooks"])
    frontend.ensure_bundle()
    as_root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    os.chdir(os.environ.get("AMLTRAIN_NOTEBOOKS") or ROOT / "notebooks")
    os.execve(BIN / "jupyter", ["jupyter", "lab", *as_root, *arguments], surroundings())


def check(arguments: list[str]) -> int:
    """Run every static check, all of them even when one fails."""
    ensure(["dev"])
    frontend.ensure_modules()
    python = ["jupyter_amltrain", "azureml_emulator", "tools", "tests", "benchmarks"]
    places = [name for name in python if any((ROOT / name).rglob("*.py"))]
    vermin = ["--target=3.8-", "--violations", "--quiet", "--no-tips", "--eval-annotations"]
    checks: dict[str, list[str | Path]] = {
        "ruff": [BIN / "ruff", "check", "--quiet", *places],
        "ruff format": [BIN / "ruff", "format", "--check", "--quiet", *places],
        "mypy --strict": [BIN / "mypy"],
        "import-linter": [BIN / "lint-imports", "--no-cache"],
        "circles, double names": [PYTHON, "-m", "tools.measure", "--check"],
        "vermin (agent: 3.8)": [BIN / "vermin", *vermin, "jupyter_amltrain/agent", "jupyter_amltrain/slurm/agent"],
        "protocol.ts is fresh": [PYTHON, "-m", "tools.protocol_types", "--check"],
        "words of docs/glossary.md": [PYTHON, "-m", "tools.words"],
        "names in docstrings": [PYTHON, "-m", "tools.docstrings"],
        "environment variables": [PYTHON, "-m", "tools.variables"],
        "tsc": [BIN / "jlpm", "run", "tsc", "-p", "labextension/tsconfig.json", "--noEmit"],
        "eslint": [BIN / "jlpm", "run", "eslint", "labextension"],
        "TypeScript tests": [BIN / "jlpm", "run", "test"],
    }
    chosen = [name for name in checks if not arguments or any(word in name for word in arguments)]
    results: list[tuple[str, int, float]] = []
    for name in chosen:
        say(name)
        began = time.monotonic()
        results.append((name, run(checks[name]), time.monotonic() - began))
    print()
    for name, code, seconds in results:
        print(f"{name:25} {'ok' if code == 0 else 'FAILED':7} {seconds:6.1f} s")
    return 1 if any(code for _, code, _ in results) else 0


def bench(arguments: list[str]) -> int:
    """Run the benchmarks: ratios against other tools, measured interleaved."""
    ensure(["bench", "test"])
    chromium.ensure()
    frontend.ensure_bundle()
    return run([PYTHON, "-m", "benchmarks", *arguments])


def build(arguments: list[str]) -> int:
    """Build sdist and wheel into ``dist/``."""
    ensure(["dev"])
    must([PYTHON, "-m", "build", *arguments, "."], "Cannot build")
    return 0


def clean(arguments: list[str]) -> int:
    """Remove what was built; with ``--all`` also ``.venv`` and ``node_modules``."""
    names = ["build", "dist", "labextension/lib", "jupyter_amltrain/labextension"]
    names += [".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "notebooks/.amltrain"]
    if "--all" in arguments:
        names += [".venv", "node_modules"]
    for name in names:
        shutil.rmtree(ROOT / name, ignore_errors=True)
    for place in ("jupyter_amltrain", "azureml_emulator", "tools", "tests", "benchmarks"):
        for cache in (ROOT / place).rglob("__pycache__"):
            shutil.rmtree(cache, ignore_errors=True)
    return 0


def _workers() -> list[str]:
    """Arguments for pytest: ``AMLTRAIN_TEST_WORKERS`` workers, or one more than cores, as tests often wait."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return ["-n", os.environ.get("AMLTRAIN_TEST_WORKERS") or str(cores + 1), "--dist", "loadfile"]


def _pytest(marker: str, arguments: list[str]) -> int:
    code = run([PYTHON, "-m", "pytest", "-p", "tools.skips", "-m", marker, *arguments])
    # A part of few files may be empty.
    return 0 if code == _NO_TESTS and os.environ.get("AMLTRAIN_TEST_PART") else code


def _ui_is_tested() -> bool:
    return any((ROOT / "tests" / "ui").glob("test_*.py"))


_TESTS = (test, test_ui, test_azure, test_trust, test_distributed, test_distributed_full, test_slurm)
_ALL = (demo, lab, *_TESTS, azure_sandbox, ssh_sandbox, slurm_sandbox, azure_live, check, soak, bench, build, clean)
TASKS: dict[str, Callable[[list[str]], int]] = {task.__name__.replace("_", "-"): task for task in _ALL}


def main(argv: list[str]) -> int:
    """Run one task and return its exit code; an expected failure is one sentence."""
    if not argv or argv[0] not in TASKS:
        print("usage: python -m tools.tasks " + "|".join(TASKS), file=sys.stderr)
        return 2
    try:
        return TASKS[argv[0]](argv[1:])
    except TaskError as error:
        print(f"make {argv[0]}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
