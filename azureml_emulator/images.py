"""Container images of the emulator: the environment that a job finds.

There is no Docker here. An image is a set of facts about the place in which the job's processes run: whether Python is
on the PATH, who they are, and where they may write. Every name that the table does not have is an ordinary image.
"""

from __future__ import annotations

import atexit
import fnmatch
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from azureml_emulator.world import World

# The image that the service's own curated environments stand on.
DEFAULT = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"


@dataclass(frozen=True)
class Image:
    """What a job finds.

    Attributes
    ----------
    python
        The interpreter that runs the emulator is on the PATH as ``python`` and ``python3``.
    user
        ``root`` (uid 0), or the uid as text.
    readonly
        ``code``: the code folder cannot be written, ``./outputs`` and ``./logs`` can; ``all``: nor can those.
    refused
        The last line of its build's log; empty when it can be built.
    mlflow
        azureml-mlflow is installed: MLflow of the job's script logs to the workspace.
    """

    python: bool = True
    user: str = "root"
    readonly: str = ""
    refused: str = ""
    mlflow: bool = False


# Names as in fnmatch, without registry's digest; the first that fits holds.
IMAGES = {
    "*busybox*": Image(python=False),
    "*no-python*": Image(python=False),
    "*non-root-read-only*": Image(user="1000", readonly="all"),
    "*non-root*": Image(user="1000"),
    "*read-only-code*": Image(readonly="code"),
    "*read-only*": Image(readonly="all"),
    "*does-not-build*": Image(refused="ERROR: failed to solve: process returned a non-zero code: 100"),
}

# The curated environments: versions, newest last. Names: Azure's documentation of them, and
# github.com/Azure/azureml-assets (4b41f8c of 2026-07-23). The registry `azureml` has the same without "AzureML-".
CURATED = {
    "AzureML-acpt-pytorch-2.2-cuda12.1": ("10", "11", "25"),
    "AzureML-acpt-pytorch-2.8-cuda12.6": ("1", "4"),
    "AzureML-lightgbm-3.3": ("20", "61"),
    "AzureML-sklearn-1.0-ubuntu20.04-py38-cpu": ("33", "65"),
    "AzureML-sklearn-1.0": ("9", "17"),
    "AzureML-sklearn-1.1": ("8", "15"),
    "AzureML-sklearn-1.5": ("12", "29"),
    "AzureML-tensorflow-2.16-cuda12": ("7", "22"),
}


# What is installed in them, where their public definition has a conda file (github.com/Azure/azureml-assets, MIT,
# 4b41f8c of 2026-07-23; versions of the newest as they were then, tools left out).
CURATED_CONDA = {
    "AzureML-sklearn-1.5": """
name: sklearn-1.5
channels: [conda-forge, anaconda]
dependencies:
- python=3.10
- pip=26.1.2
- pandas~=1.5.3
- scipy~=1.10.0
- numpy~=1.22.0
- pip:
  - scikit-learn-intelex==2026.0.0
  - azureml-core==1.62.0
  - azureml-defaults==1.62.0
  - azureml-inference-server-http==1.5.1
  - azureml-mlflow==1.62.0.post2
  - azureml-telemetry==1.62.0
  - scikit-learn~=1.5.0
  - joblib~=1.2.0
  - ipykernel~=6.0
  - tensorboard
  - psutil~=5.8.0
  - matplotlib~=3.5.0
  - tqdm~=4.66.3
""",
    "AzureML-tensorflow-2.16-cuda12": """
name: tensorflow-2.16-cuda12
channels: [conda-forge, anaconda]
dependencies:
- python=3.11
- pandas=2.2.2
- numpy=1.23.5
- scipy~=1.14.0
- pip:
  - matplotlib~=3.5.0
  - azureml-core==1.62.0
  - azureml-defaults==1.62.0
  - azureml-mlflow==1.62.0.post2
  - tensorboard~=2.16.0
  - tensorflow[and-cuda]==2.16.2
  - keras>=3.13.2
""",
}


def find(name: str) -> Image:
    """Return an image by its name."""
    return next((image for pattern, image in IMAGES.items() if fnmatch.fnmatch(name.lower(), pattern)), Image())


def packages_refused(conda: str) -> str:
    """The last line of a build's log when a conda file names what no index has, else empty.

    Packages whose name starts with ``no-such-`` do not exist, so tests can provoke a failing build.
    """
    found = re.search(r"no-such-[\w.-]+", conda)
    if found is None:
        return ""
    return f"ERROR: Could not find a version that satisfies the requirement {found[0]} (from versions: none)"


@functools.cache
def _tools() -> str:
    """A folder with every program of the system but Python: the PATH of an image without it."""
    folder = Path(tempfile.mkdtemp(prefix="image-without-python-"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for place in ("/usr/local/bin", "/usr/bin", "/bin"):
        for program in os.scandir(place) if os.path.isdir(place) else ():
            if (
                not program.name.startswith(("python", "pip", "pypy", "conda", "uv"))
                and not (folder / program.name).exists()
            ):
                try:
                    (folder / program.name).symlink_to(program.path)
                except OSError:
                    pass
    return str(folder)


#: Python's path of a job whose image has azureml-mlflow.
SITE = Path(__file__).parent / "job_site"


class Programs:
    """A folder of programs that come before every image's own (control call ``/programs``): stubs of tests."""

    def __init__(self, world: World) -> None:
        del world
        self.folder = ""

    async def close(self) -> None:
        """Nothing runs."""


def path_of(image: Image) -> str:
    """``PATH`` in the container."""
    if not image.python:
        return _tools()
    return os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])


def words(image: Image) -> tuple[str, ...]:
    """Words before a command that make it run as the image's user, and without the right to write everywhere.

    A user namespace shows the uid of the image's user; the files of whoever runs the emulator (its interpreter above
    all) can still be read. Where there are no user namespaces, root's rights are dropped and the uid stays 0. Whoever
    runs the emulator without being root is already nobody special.
    """
    if (image.user == "root" and not image.readonly) or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return ()
    return _without_rights(image.user)


@functools.cache
def _without_rights(user: str) -> tuple[str, ...]:
    ways: list[tuple[str, ...]] = [("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")]
    if user != "root":
        ways.insert(0, ("unshare", "-U", f"--map-user={user}", f"--map-group={user}"))
    for way in ways:
        if shutil.which(way[0]) and subprocess.run([*way, "true"], capture_output=True).returncode == 0:
            return way
    return ()
