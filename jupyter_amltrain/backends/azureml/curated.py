"""What Azure's curated environments hold, as far as their public definitions say; which of them fits a script.

Source: github.com/Azure/azureml-assets, ``assets/training/general/environments``, commit 4b41f8c of 2026-07-23;
read on 2026-11-21. A name there is the service's name without ``AzureML-`` (so in the jobs of
github.com/Azure/azureml-examples, 085cd6e of 2026-07-31). The images are built anew every few weeks with the same
packages in newer versions. None of them has both PyTorch and scikit-learn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from jupyter_amltrain.backends.azureml.packages import lacking


class Curated(NamedTuple):
    """One environment.

    Attributes
    ----------
    python
        Its version.
    conda
        What conda installs, as conda writes it.
    pip
        What pip installs; without a version it is the newest at the time of the image's build.
    gpu
        Whether it is made for GPUs.
    """

    python: str
    conda: tuple[str, ...]
    pip: tuple[str, ...]
    gpu: bool = False


_AZURE = ("azureml-core", "azureml-defaults", "azureml-mlflow")
_TOOLS = ("py-spy", "debugpy", "ipykernel", "tensorboard", "psutil", "matplotlib", "tqdm", "py-cpuinfo")
_PLAIN = ("pandas=1.5.3", "scipy=1.10.0", "numpy=1.22")
_OLD = ("pandas=1.3", "scipy=1.10", "numpy=1.22")
_ACPT = (
    *_AZURE, *_TOOLS, "torch-tb-profiler", "azureml-dataset-runtime", "azureml-contrib-services", "inference-schema",
    "regex", "pybind11",
)  # fmt: skip

#: In the order in which they are taken for a script that says nothing: the first without GPUs, then with.
KNOWN: Mapping[str, Curated] = {
    "sklearn-1.5": Curated(
        "3.10", _PLAIN, (*_AZURE, *_TOOLS, "scikit-learn~=1.5.0", "scikit-learn-intelex", "joblib~=1.2.0")
    ),
    # torch comes with the image; the file torch 2.10 takes the place of the 2.8 in its name.
    "acpt-pytorch-2.8-cuda12.6": Curated(
        "3.10",
        (),
        (*_ACPT, "torch==2.10.0", "torchvision==0.25.0", "torchaudio==2.10.0", "deepspeed", "transformers", "aiohttp"),
        gpu=True,
    ),
    "lightgbm-3.3": Curated(
        "3.10",
        _PLAIN,
        (*_AZURE, *_TOOLS, "scikit-learn~=1.5.1", "xgboost~=1.7.6", "lightgbm>=4.6.0", "distributed", "adlfs~=0.7.0"),
    ),
    "tensorflow-2.16-cuda12": Curated(
        "3.11",
        ("pandas=2.2.2", "numpy=1.23.5", "scipy=1.14"),
        (
            *_AZURE,
            "matplotlib~=3.5.0",
            "psutil",
            "tqdm",
            "ipykernel",
            "debugpy",
            "tensorboard~=2.16.0",
            "tensorflow==2.16.2",
            "tensorflow-datasets~=4.9.0",
            "keras>=3.13.2",
            "tf-keras==2.16.0",
            "pillow",
            "horovod==0.28.1",
            "flask-cors==6.0.0",
        ),
        gpu=True,
    ),  # fmt: skip
    "acpt-pytorch-2.2-cuda12.1": Curated(
        "3.10",
        (),
        (*_ACPT, "torch==2.10.0", "torchvision==0.25.0", "torchaudio==2.10.0", "deepspeed", "transformers", "onnx"),
        gpu=True,
    ),
    "sklearn-1.1": Curated("3.9", _OLD, (*_AZURE, *_TOOLS, "scikit-learn~=1.1.0", "scikit-learn-intelex", "joblib")),
    "sklearn-1.0": Curated("3.9", _OLD, (*_AZURE, *_TOOLS, "scikit-learn~=1.0.0", "joblib~=1.2.0")),
}
#: Those that are chosen by themselves; the others are older.
_CHOSEN = ("sklearn-1.5", "acpt-pytorch-2.8-cuda12.6", "lightgbm-3.3", "tensorflow-2.16-cuda12")

#: What a job gets that names none and imports nothing in particular, without and with GPUs.
DEFAULT_ENVIRONMENT = "AzureML-sklearn-1.5@latest"
DEFAULT_GPU_ENVIRONMENT = "AzureML-acpt-pytorch-2.8-cuda12.6@latest"

_NAME = re.compile(r"(?:azureml:)?(?:azureml-)?(?P<name>[\w.-]+)(?:[:@].*)?", re.I)
_REGISTRY = re.compile(r"azureml://registries/azureml/environments/(?P<name>[^/]+)/.*", re.I)
_ID = re.compile(r".*/environments/azureml-(?P<name>[^/]+)/versions/.*", re.I)


def is_curated(reference: str) -> bool:
    """Return whether a name is one of Azure's own environments (the SDK's ``CURATED_ENV_PREFIX``)."""
    return re.match(r"(azureml:)?azureml-", reference, re.I) is not None


def find(reference: str) -> Curated | None:
    """What is known of a named environment; ``None`` for one of the workspace's own."""
    match = _REGISTRY.fullmatch(reference) or _ID.fullmatch(reference)
    if match is None and is_curated(reference):
        match = _NAME.fullmatch(reference)
    return KNOWN.get(match["name"].lower()) if match else None


def pins_of(known: Curated) -> list[str]:
    """Its packages, as pip writes them."""
    return [*(re.sub(r"=(.+)", r"==\1.*", one) for one in known.conda), *known.pip]


def conda_of(known: Curated) -> str:
    """A conda file (YAML) of the same packages."""
    lines = [f"python={known.python}", "pip", *known.conda]
    return "\n".join(
        [
            "channels: [conda-forge]",
            "dependencies:",
            *(f"- {line}" for line in lines),
            "- pip:",
            *(f"  - {line}" for line in known.pip),
            "",
        ]
    )


def default(gpus: bool) -> str:
    """The environment of a job of which nothing is known."""
    return DEFAULT_GPU_ENVIRONMENT if gpus else DEFAULT_ENVIRONMENT


def covering(needs: Iterable[str], gpus: bool) -> tuple[str, list[str]]:
    """The curated environment that has what a script imports, and what it lacks (see :func:`.packages.lacking`).

    Parameters
    ----------
    needs
        Modules, as they are imported.
    """
    needs = list(needs)
    order = sorted(_CHOSEN, key=lambda name: KNOWN[name].gpu != gpus)
    found = {name: lacking(needs, pins_of(KNOWN[name])) for name in order}
    best = min(order, key=lambda name: len(found[name]))  # the first of several
    return f"AzureML-{best}@latest", found[best]
