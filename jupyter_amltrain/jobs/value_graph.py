"""Values of ``--in`` that share objects travel as one pickle; see :mod:`jupyter_amltrain.agent.shared_objects`.

Large buffers (arrays) are files beside the pickle, named by their content like all files of values.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from jupyter_amltrain.agent import values as agent_values
from jupyter_amltrain.agent.shared_objects import Walk, memory_of, root_of
from jupyter_amltrain.agent.values import NAMED, CannotWrite, Node, pickler
from jupyter_amltrain.jobs.content_names import store

#: Buffers of at least so many bytes are files of their own.
MIN_BUFFER_BYTES = 64 * 1024


def write(values: Mapping[str, Any], folder: Path, known: Collection[str] = ()) -> dict[str, Node]:
    """Write values that share objects as one pickle, and return a node for each name.

    Parameters
    ----------
    known
        Names of ``__main__`` that the reader has, too; see :func:`jupyter_amltrain.agent.values.pickler`.

    Raises
    ------
    CannotWrite
        A value cannot be pickled.
    """
    buffers: list[Node] = []

    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        data = buffer.raw()
        if data.nbytes < MIN_BUFFER_BYTES:
            return True
        buffers.append({"as": "buffer", "file": store(folder, data, ".buffer"), "bytes": data.nbytes})
        return False

    walk = Walk()
    for name, value in values.items():
        walk.add(name, value)
    try:
        named: list[Any] = []
        target = io.BytesIO()
        pickler(known, named, _Memory(walk.memory).reduce)(target, 5, buffer_callback=keep_inside).dump(dict(values))
        data = target.getvalue()
    except (Exception, SystemExit) as error:  # whatever the values' own code raises
        first = next(iter(str(error).strip().splitlines()), "")[:200].rstrip(".")
        shares = f"shares objects with {', '.join(values)}, and " if len(values) > 1 else ""
        reason = f"{shares}cannot be pickled ({type(error).__name__}{f': {first}' if first else ''})"
        raise CannotWrite(reason, "Send the parts that the cell needs.") from error
    packages = set().union(*walk.packages.values()) - {"builtins", "__main__", *sys.stdlib_module_names}
    packages -= {"IPython"} if b"SList" in data else set()  # a job has lines of its own
    packages |= {name for name in ("cloudpickle", "pyarrow") if name.encode() in data}  # texts of pandas are Arrow's
    node = {"as": "graph", "file": store(folder, memoryview(data), ".graph"), "bytes": len(data), "items": buffers}
    node["made"] = {"python": sys.version.split()[0], **_versions(packages)}
    node.update({"code": True} if b"_make_function" in data else {})
    node.update(NAMED if named or not {*walk.own}.isdisjoint(known) else {})  # Keras names classes in its own way
    return {
        name: {**node, "name": name, "type": _type_name(value), "needs": sorted(packages), **_shape(value)}
        for name, value in values.items()
    }


class _Memory:
    """Pickles arrays and tensors that share memory as parts of it.

    Parameters
    ----------
    shared
        What identifies the memory (:func:`..agent.shared_objects.memory_of`) of several arrays.
    """

    def __init__(self, shared: Collection[Any]) -> None:
        self._shared = frozenset(shared)
        self._bytes: dict[Any, Any] = {}  #: memory of tensors as arrays of bytes

    def reduce(self, value: Any) -> Any:
        """Return how a value is pickled; ``NotImplemented`` for its own way."""
        kind = type(value)
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            root = root_of(value) if self._shared else None
            if root is None or root is value or memory_of(value) not in self._shared:
                return NotImplemented
            if not (root.flags.c_contiguous or root.flags.f_contiguous):
                return NotImplemented
            offset = value.__array_interface__["data"][0] - root.__array_interface__["data"][0]
            return agent_values.array_view, (root, value.dtype, value.shape, value.strides, offset)
        if kind.__module__.partition(".")[0] == "torch" and kind.__name__ in ("Tensor", "Parameter"):
            return self._tensor(value, kind.__name__)
        return NotImplemented

    def _tensor(self, value: Any, kind: str) -> Any:
        import torch

        key = memory_of(value)
        if key is None or value.is_quantized or value.is_conj() or value.is_neg() or not value.is_leaf:
            return NotImplemented
        part, offset = value.detach(), value.storage_offset()
        if key not in self._shared:  # only what the tensor has of its memory
            part, offset = part.contiguous().clone(), 0
        if key not in self._bytes or key not in self._shared:
            storage = part.untyped_storage().cpu()
            self._bytes[key] = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        dtype, device = str(value.dtype).partition(".")[2], value.device.type
        parts = (self._bytes[key], dtype, tuple(part.shape), part.stride(), offset, device, kind)
        return agent_values.tensor_view, (*parts, value.requires_grad, value.grad)


def _versions(packages: Collection[str]) -> dict[str, str]:
    """Return the versions of loaded packages that say theirs."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in sorted(packages)}
    return {name: str(version) for name, version in found.items() if isinstance(version, str)}  # TorchVersion is one


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _shape(value: Any) -> Node:
    shape = getattr(value, "shape", None)
    return {"shape": list(shape)} if isinstance(shape, tuple) and all(isinstance(n, int) for n in shape) else {}
