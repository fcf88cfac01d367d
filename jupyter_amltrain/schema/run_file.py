"""Files that a run has written, and which of them are models."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

import msgspec

#: Folders of a run that its script writes to, in the order of a list; ``pictures`` has the figures of ``plt.show()``.
RESULT_FOLDERS = ("outputs", "artifacts", "pictures", "log")
#: The agent's own file beside the logs.
NOT_RESULTS = frozenset({"log/agent.txt"})
#: File that marks a folder as an MLflow model.
_MLMODEL = "MLmodel"
_MODEL_SUFFIXES = (
    ".joblib",
    ".skops",
    ".pt",
    ".pth",
    ".ckpt",
    ".safetensors",
    ".onnx",
    ".keras",
    ".h5",
    ".pkl",
    ".pickle",
)


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a run has written.

    Attributes
    ----------
    path
        Path in the run's folder, or in the folder that was listed.
    size
        Bytes.
    modified
        Unix seconds.
    """

    path: str
    size: int
    modified: float = 0.0


def models_of(files: Sequence[RunFile]) -> list[str]:
    """Return the paths of models: folders with an ``MLmodel`` file, and files with a model's suffix in ``outputs/``."""
    folders = [posixpath.dirname(file.path) for file in files if posixpath.basename(file.path) == _MLMODEL]
    single = [
        file.path
        for file in files
        if file.path.startswith("outputs/")
        and file.path.endswith(_MODEL_SUFFIXES)
        and not any(file.path.startswith(f"{folder}/") for folder in folders)
    ]
    return [*folders, *single]
