"""Files that a run has written, and which of them are models."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any

import msgspec

from jupyter_amltrain.agent.protocol import LEFT_LINK
from jupyter_amltrain.agent.values import description, literal

#: Folders of a run that its script writes to, in the order of a list; ``pictures`` has the figures of ``plt.show()``,
#: and ``work`` is the working folder, of which only the files that the run has left there are listed.
RESULT_FOLDERS = ("outputs", "logs", LEFT_LINK, "artifacts", "pictures", "log")
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


class SavedValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value of ``--out`` that is a file in the run's ``outputs/``, or a small one that JSON would change.

    Attributes
    ----------
    name
        Of the variable.
    file
        Name of the file; empty if `node` has the value.
    node
        How to read it, as :func:`jupyter_amltrain.agent.values.read_file` takes it; ``{"as": "values"}`` for a
        container, whose file has the node and whose parts are in ``NAME.values/``.
    folder
        Folder in ``outputs/`` with the files that `node` names; empty for a value in `file`.
    """

    name: str
    file: str
    node: dict[str, Any]
    folder: str = ""

    @property
    def text(self) -> str:
        """What it is: ``DataFrame 1797 x 65``."""
        return description(self.node)

    @property
    def typed(self) -> str:
        """The value as it is typed, ``{1, 2}``, if it is plain; else empty."""
        try:
            return repr(literal(self.node))
        except (ValueError, TypeError, KeyError, RecursionError):  # a job may write any node
            return ""


class OutValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value of ``--out`` as a target has it.

    Attributes
    ----------
    value
        Its JSON value.
    saved
        The value itself, if JSON does not have it.
    graph
        Name of the file in the run's ``outputs/`` with all the values that it shares objects with, a pickle; empty
        if it shares none.
    """

    value: Any = msgspec.UNSET
    saved: SavedValue | None = None
    graph: str = ""


#: Suffix of a file in ``outputs/`` -> how it is read; a parquet file by the type of the value.
_KINDS = {
    "value.json": "json file",
    "values.json": "values",
    "parquet": "frame",
    "csv": "csv",
    "npy": "array",
    "pt": "torch",
    "safetensors": "torch",
    "skops": "estimator",
    "joblib": "joblib",
    "pickle": "pickle",
    "png": "picture",
}


def saved_value(name: str, file: str, type_name: str, shape: Any, label: Any) -> SavedValue | None:
    """Return the value in a file that the agent has written; ``None`` for a file that is only its text.

    Parameters
    ----------
    type_name
        Module and name of the value's type.
    shape
        Its shape, if it has one.
    label
        Name of a Series.
    """
    kind = _KINDS.get(file[len(name) + 1 :])
    if kind is None or not file.startswith(f"{name}."):
        return None
    library, own = type_name.partition(".")[0], type_name.rpartition(".")[2]
    if kind == "frame" and library == "polars":
        kind = "polars series" if own == "Series" else "polars"
    elif kind == "frame" and own == "Series":
        kind = "series"
    node: dict[str, Any] = {"as": kind, "type": type_name or kind}
    if isinstance(shape, list) and all(isinstance(part, int) for part in shape):
        node["shape"] = shape
    if isinstance(label, str | int):
        node["name"] = label
    return SavedValue(name=name, file=file, node=node)


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
