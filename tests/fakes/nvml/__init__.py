"""A fake ``libnvidia-ml.so.1`` of our own, for the real pynvml."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")


@functools.cache
def build() -> Path:
    """Compile the fake with the system's compiler; the folder for ``LD_LIBRARY_PATH``.

    Raises
    ------
    RuntimeError
        There is no C compiler.
    """
    compiler = next(
        (found for name in ("cc", "gcc", "clang", (sysconfig.get_config_var("CC") or "").split(" ")[0])
         if name and (found := shutil.which(name))),
        None,
    )  # fmt: skip
    if compiler is None:
        raise RuntimeError("no C compiler: install gcc or clang to run these tests")
    folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(SOURCE)],
        check=True,
        timeout=60,
    )
    return folder
