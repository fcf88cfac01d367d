"""A C compiler for the tests' fake NVIDIA driver: found, or installed by the system's package manager."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools import system_packages
from tools.environment import ROOT, say

NAMES = ("cc", "gcc", "clang")


def find() -> str | None:
    """Path of a C compiler on this machine, or None."""
    own = (sysconfig.get_config_var("CC") or "").split(" ")[0]
    return next((path for name in (*NAMES, own) if name and (path := shutil.which(name))), None)


def ensure() -> None:
    """Install a compiler when we may; otherwise say in one sentence that the tests with GPUs are skipped."""
    if not find():
        system_packages.install("a C compiler", "gcc", "libc6-dev")
    if not find():
        say("no C compiler: fake GPUs are left out, their tests skipped. Type: apt install gcc libc6-dev")


def driver_library(sources: Sequence[Path], options: Sequence[str], without: Iterable[str] = ()) -> Path:
    """Compile a fake driver library, or find it in ``build/fake-drivers`` since it was compiled last.

    Parameters
    ----------
    sources
        C files.
    options
        Of the compiler and linker.
    without
        Functions that the library does not export.

    Raises
    ------
    RuntimeError
        There is no C compiler.
    """
    cc = find()
    if cc is None:
        raise RuntimeError("no C compiler: install gcc or clang")
    hidden = "{ local: " + " ".join(f"{name};" for name in sorted(without)) + " };\n" if without else ""
    digest = hashlib.sha256("\0".join([cc, *options, hidden]).encode())
    for source in sorted({*sources, *(header for path in sources for header in path.parent.glob("*.h"))}):
        digest.update(b"\0" + source.read_bytes())
    folder = ROOT / "build" / "fake-drivers" / digest.hexdigest()[:16]
    library = folder / "libnvidia-ml.so.1"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as new:  # another process may be at it, too
        script, made = Path(new, "exports"), Path(new, library.name)
        script.write_text(hidden)
        scripted = [f"-Wl,--version-script={script}"] if hidden else []
        line = [cc, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-D_GNU_SOURCE", *scripted, "-o", str(made)]
        subprocess.run([*line, *map(str, sources), *options], check=True, timeout=60)
        os.replace(made, library)
    return library
