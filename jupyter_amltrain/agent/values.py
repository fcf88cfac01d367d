"""Values of a notebook as files: JSON, arrays, frames, tensors, estimators, and containers of them.

The module travels alone, as ``_amltrain_values.py`` beside a job's script, so it imports only the standard library;
the library of a value (pandas, PyTorch, ...) is imported to read it, and is there already when it is written.
Nothing is pickled, and nothing that is read can run code, unless ``allow_pickle`` is true.

A value is described by a *node*, a JSON object: ``{"as": KIND, ...}``, with the names of its files. Each file is
named by the sha256 of its content, so that equal values are one file.
"""

import base64
import contextlib
import datetime
import decimal
import hashlib
import importlib
import importlib.util
import json
import math
import os
import sys
from typing import Any, Callable, Collection, Dict, Iterator, List, Optional, Tuple

#: This module, the folder with the files of values, and the file with the nodes by name; beside the script.
MODULE, FOLDER, INDEX = "_amltrain_values", "_amltrain_in", "_amltrain_in.json"
#: Most items of containers that are described one by one; longer ones are JSON, or no value that can be written.
MAX_NODES = 10000
#: Bytes of a node's own parts, which travel in requests; further ones, unless they are small, become files.
MAX_INLINE_BYTES, SMALL_BYTES = 1 << 20, 256
#: Advice for a value that its library cannot save, or that has no form.
_SEND_PARTS = "Send its parts as numbers, texts, arrays or frames."
#: Kinds of nodes whose reading can run code of the value.
PICKLES = ("pickle", "joblib", "graph")
#: Part of the node of a pickle that names classes of ``__main__``: they must be there before it is read.
NAMED = {"named": True}

Node = Dict[str, Any]


class CannotWrite(Exception):
    """A value has no form that can be written.

    Attributes
    ----------
    advice
        What would work, one sentence.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice


class NeedsConsent(Exception):
    """A file can run code while it is read."""


# ---- write


def write(
    value: Any,
    folder: str,
    allow_pickle: bool = False,
    known: Collection[str] = (),
    exact: bool = False,
    limit: Optional[int] = None,
) -> Node:
    """Write the files of `value` into `folder`, and return its node.

    Parameters
    ----------
    known
        Names of ``__main__`` that the reader has, too; see :func:`pickler`.
    exact
        Whether only forms are used that give back the same object in every part: the gradient of a tensor, the
        frequency of an index, the order of a mapping.
    limit
        Largest pickle, in bytes.

    Raises
    ------
    CannotWrite
        It has no form; no further file is left.
    """
    return _Writer(folder, allow_pickle, known, exact, limit).node(value, "the value", ())


def write_graph(group: Dict[str, Any], folder: str, known: Collection[str], limit: int) -> Dict[str, Node]:
    """Write values that share objects as one pickle of at most `limit` bytes; return a node for each name."""
    whole = _Writer(folder, True, known, True, limit).pickle(group, "the value")
    return {
        name: dict(whole, **{"as": "graph", "items": [], "name": name, "type": _type_name(value)})
        for name, value in group.items()
    }


def inline(value: Any) -> Optional[Node]:
    """Return the node of a small value that JSON would change (a tuple, keys that are numbers).

    Raises
    ------
    CannotWrite
        The value needs a file.
    """
    return None if _is_json(value) else _Writer("", False, ()).node(value, "the value", ())


class _Writer:
    def __init__(
        self,
        folder: str,
        allow_pickle: bool,
        known: Collection[str],
        exact: bool = False,
        limit: Optional[int] = None,
    ) -> None:
        self._folder, self._allow_pickle, self._nodes, self._inline = folder, allow_pickle, 0, 0
        self._known, self._exact, self._limit = known, exact, limit

    def node(self, value: Any, place: str, outer: Tuple[int, ...]) -> Node:
        """Return the node of a value; `outer` are the ids of the containers that it is in."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise CannotWrite("it has more than %d parts" % MAX_NODES, "Make an array or a DataFrame of it.")
        if id(value) in outer:
            raise CannotWrite("%s contains itself" % place, "Leave out the part that refers back.")
        if _is_json(value):
            if self._fits(len(json.dumps(value))):
                return {"as": "json", "value": value}
            return self._file(value, "json file", ".json", _write_json)
        simple = _simple(value)
        if simple is not None and (simple["as"] not in ("bytes", "bytearray") or self._fits(len(simple["value"]))):
            return simple
        if type(value) in (list, tuple, set, frozenset):
            inner = outer + (id(value),)
            items = [self.node(item, "%s[%d]" % (place, i), inner) for i, item in enumerate(value)]
            return {"as": type(value).__name__, "items": items}
        if type(value) is dict if self._exact else _is_mapping(value) and not _is_tensors(value):
            inner = outer + (id(value),)
            pairs = [
                [self.node(key, "a key of %s" % place, inner), self.node(item, "%s[%r]" % (place, key), inner)]
                for key, item in value.items()
            ]
            return {"as": "dict", "items": pairs}
        return self._leaf(value, place)

    def _fits(self, size: int) -> bool:
        """Whether a part of the value has room in the node itself."""
        if size > SMALL_BYTES and self._inline + size > MAX_INLINE_BYTES:
            return False
        self._inline += size
        return True

    def _leaf(self, value: Any, place: str) -> Node:
        if self._exact and not _is_exact(value):
            if self._allow_pickle:
                return self.pickle(value, place)
            raise CannotWrite("%s has no form that keeps all of it" % place)
        for applies, kind, ending, writer, facts in _FORMS:
            if applies(value):
                try:
                    return dict(self._file(value, kind, ending, writer), **facts(value))
                except OSError:
                    raise
                except Exception as error:  # the value's library can raise anything
                    if self._allow_pickle:
                        break
                    if isinstance(error, CannotWrite):
                        raise
                    reason = "%s cannot be saved (%s)" % (_named(value, place), _first_line(error))
                    raise CannotWrite(reason, _SEND_PARTS) from error
        if not self._allow_pickle:
            reason, advice = _refusal(value)
            raise CannotWrite("%s %s" % (place, reason), advice)
        return self.pickle(value, place)

    def pickle(self, value: Any, place: str) -> Node:
        """Return the node of a value that is written as a pickle."""
        named: List[Any] = []
        try:
            node = self._file(
                value, "pickle", ".pickle", lambda one, path: _write_pickle(one, path, self._known, named, self._limit)
            )
            return dict(node, **NAMED) if named else node
        except (CannotWrite, OSError):
            raise
        except (Exception, SystemExit) as error:  # whatever the value's own code raises
            raise CannotWrite("%s cannot be pickled (%s)" % (_named(value, place), _first_line(error))) from error

    def _file(self, value: Any, kind: str, ending: str, writer: Callable[[Any, str], None]) -> Node:
        if not self._folder:
            raise CannotWrite("it needs a file")
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        part = os.path.join(self._folder, ".part-%d-%d" % (os.getpid(), id(value)))
        if ending == ".tensors":
            ending = ".safetensors" if importlib.util.find_spec("safetensors") else ".pt"
        try:
            writer(value, part)
            name = _digest(part)[:32] + ending
            size = os.path.getsize(part)
            os.replace(part, os.path.join(self._folder, name))
        finally:
            if os.path.exists(part):
                os.remove(part)
        return {"as": kind, "file": name, "bytes": size, "type": _type_name(value)}


def _digest(path: str) -> str:
    whole = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            whole.update(block)
    return whole.hexdigest()


def _is_json(value: Any) -> bool:
    """Whether JSON gives back an equal value of the same types."""
    seen: List[Any] = [value]
    count = 0
    while seen:
        count += 1
        if count > 200000:
            return False
        one = seen.pop()
        if one is None or type(one) in (bool, str):
            continue
        if type(one) is int:
            continue
        if type(one) is float:
            if not math.isfinite(one):
                return False
            continue
        if type(one) is list:
            seen.extend(one)
        elif type(one) is dict and all(type(key) is str for key in one):
            seen.extend(one.values())
        else:
            return False
    return True


def _simple(value: Any) -> Optional[Node]:
    """Return the node of a small value that JSON does not have."""
    kind = type(value)
    if kind is float:
        return {"as": "float", "value": repr(value)}
    if kind is complex:
        return {"as": "complex", "value": [repr(value.real), repr(value.imag)]}
    if kind in (bytes, bytearray) and len(value) <= 1 << 16:
        return {"as": kind.__name__, "value": base64.b64encode(value).decode()}
    if kind in (datetime.datetime, datetime.date, datetime.time) and getattr(value, "tzinfo", None) in (
        None,
        datetime.timezone.utc,
    ):
        return {"as": kind.__name__, "value": value.isoformat()}
    if kind is datetime.timedelta:
        return {"as": "timedelta", "value": [value.days, value.seconds, value.microseconds]}
    if kind is decimal.Decimal:
        return {"as": "Decimal", "value": str(value)}
    if kind is range:
        return {"as": "range", "value": [value.start, value.stop, value.step]}
    if isinstance(value, os.PathLike) and kind.__module__.startswith("pathlib"):
        return {"as": "Path", "value": os.fspath(value)}
    return _scalar_node(value) if isinstance(value, _loaded("numpy", "generic")) else None


def _scalar_node(value: Any) -> Optional[Node]:
    """Return the node of a number or time of numpy."""
    if value.dtype.kind not in "biufcmM":
        return None
    return {"as": "scalar", "value": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}


def _type_name(value: Any) -> str:
    return "%s.%s" % (type(value).__module__, type(value).__qualname__)


def _named(value: Any, place: str) -> str:
    kind = type(value).__qualname__
    return "%s, of type %s," % (place, kind)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0][:200].rstrip(".")
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__


def _loaded(module: str, *names: str) -> Tuple[type, ...]:
    """Return classes of a module that is imported already; nobody else can have made a value of them."""
    found = [getattr(sys.modules.get(module), name, None) for name in names]
    return tuple(kind for kind in found if isinstance(kind, type))


class _Is:
    """Whether a value is of one of these classes, which may not be loaded."""

    def __init__(self, module: str, *names: str) -> None:
        self._module, self._names = module, names

    def __call__(self, value: Any) -> bool:
        return isinstance(value, self.kinds())

    def kinds(self) -> Tuple[type, ...]:
        return _loaded(self._module, *self._names)


def _is_mapping(value: Any) -> bool:
    return type(value) is dict or _type_name(value) == "collections.OrderedDict"


def _is_tensors(value: Any) -> bool:
    """Whether a value is a mapping of names to tensors, such as a ``state_dict``."""
    tensor = _loaded("torch", "Tensor")
    if not tensor or not isinstance(value, dict) or not value:
        return False
    return all(type(key) is str and isinstance(item, tensor) for key, item in value.items())


def _write_array(value: Any, path: str) -> None:
    numpy = sys.modules["numpy"]
    with open(path, "wb") as file:
        numpy.save(file, numpy.asarray(value), allow_pickle=False)


def _write_sparse(value: Any, path: str) -> None:
    import scipy.sparse

    with open(path, "wb") as file:
        scipy.sparse.save_npz(file, value)


def _write_frame(value: Any, path: str) -> None:
    try:
        value.to_parquet(path)
    except ImportError:
        raise CannotWrite("a DataFrame needs pyarrow to be saved", "Install it: %pip install pyarrow") from None


def _write_pandas_series(value: Any, path: str) -> None:
    _write_frame(value.to_frame("value"), path)


def _write_polars_series(value: Any, path: str) -> None:
    value.to_frame().write_parquet(path)


def _write_table(value: Any, path: str) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(value, path)


def _write_tensors(value: Any, path: str) -> None:
    """Write a mapping of names to tensors, by safetensors if it is installed."""
    tensors = {name: item.detach().clone().contiguous() for name, item in value.items()}  # none share memory
    if importlib.util.find_spec("safetensors"):
        import safetensors.torch

        safetensors.torch.save_file(tensors, path)
    else:  # PyTorch's own file, which is read without running code
        with open(path, "wb") as file:  # of a path, the name would be in the file
            sys.modules["torch"].save(tensors, file)


def _write_tensor(value: Any, path: str) -> None:
    _write_tensors({"value": value}, path)


def _write_estimator(value: Any, path: str) -> None:
    try:
        import skops.io
    except ImportError:
        raise CannotWrite(
            "a scikit-learn estimator needs skops to be saved", "Install it: %pip install skops, or allow pickles."
        ) from None
    skops.io.dump(value, path)


def _write_lightgbm(value: Any, path: str) -> None:
    value.save_model(path, num_iteration=-1)


def _write_xgboost(value: Any, path: str) -> None:
    _write_bytes(bytes(value.save_raw("ubj")), path)


def _write_catboost(value: Any, path: str) -> None:
    value.save_model(path, format="cbm")


def _write_keras(value: Any, path: str) -> None:
    value.save(path + ".keras")  # the suffix says the form
    os.replace(path + ".keras", path)


def _write_picture(value: Any, path: str) -> None:
    value.savefig(path, format="png", bbox_inches="tight")


def _write_bytes(value: Any, path: str) -> None:
    with open(path, "wb") as file:
        file.write(value)


def _write_json(value: Any, path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def _write_pickle(value: Any, path: str, known: Collection[str], named: List[Any], limit: Optional[int] = None) -> None:
    try:
        kind = pickler(known, named, _to_host)
    except ImportError:
        from pickle import Pickler as kind
    with open(path, "wb") as file:
        kind(file if limit is None else _LimitedFile(file, limit), 4).dump(value)


def _to_host(value: Any) -> Any:
    """Return how a tensor of a GPU is pickled: as one of the host, which is read where there is no GPU."""
    if type(value) not in _loaded("torch", "Tensor") + _loaded("torch.nn", "Parameter") or not _is_elsewhere(value):
        return NotImplemented
    return host_tensor, (value.detach().cpu(), type(value).__name__ == "Parameter", value.requires_grad)


def _is_elsewhere(tensor: Any) -> bool:
    return tensor.device.type not in ("cpu", "meta")


def host_tensor(part: Any, is_parameter: bool, needs_grad: bool) -> Any:
    """Return a tensor with the numbers of `part`."""
    if is_parameter:
        return sys.modules["torch"].nn.Parameter(part, requires_grad=needs_grad)
    return part.requires_grad_(needs_grad)


class _LimitedFile:
    """A file that refuses to become larger than `limit` bytes."""

    def __init__(self, file: Any, limit: int) -> None:
        self._file, self._left = file, limit

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if size > self._left:
            raise CannotWrite("it is too large")
        self._left -= size
        self._file.write(data)
        return size


def pickler(known: Collection[str], named: List[Any], reduce: Optional[Callable[[Any], Any]] = None) -> Any:
    """Return a Pickler that includes classes and functions of ``__main__``, but only names those that the reader has.

    By value, a class would be another one for the reader: no ``isinstance`` with its own holds.

    Parameters
    ----------
    known
        Names of ``__main__`` that the reader has, too.
    named
        Gets what was pickled by its name.
    reduce
        Returns how an object is pickled, or ``NotImplemented``.

    Raises
    ------
    ImportError
        cloudpickle is not installed.
    """
    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, one: Any) -> Any:
            if known and getattr(one, "__module__", "") == "__main__" and _is_named(one, known):
                named.append(one)
                return NotImplemented
            made = NotImplemented if reduce is None else reduce(one)
            if made is not NotImplemented:
                return made
            return super().reducer_override(one)

    return Pickler


def _is_named(one: Any, known: Collection[str]) -> bool:
    first, *inner = str(getattr(one, "__qualname__", "")).split(".")
    found = getattr(sys.modules["__main__"], first, None) if first in known else None
    for name in inner:
        found = getattr(found, name, None)
    return found is one


def _no_facts(value: Any) -> Node:
    return {}


def _shape(value: Any) -> Node:
    return {"shape": list(value.shape)}


def _series(value: Any) -> Node:
    return {"shape": list(value.shape), "name": value.name if isinstance(value.name, (str, int)) else None}


def _best_iteration(value: Any) -> Node:
    return {"best_iteration": int(value.best_iteration)}


def _has_objects(array: Any) -> bool:
    return bool(array.dtype.hasobject)


def _is_plain_array(value: Any) -> bool:
    """Whether a value is an array that its file has whole: a subclass can have a mask, a unit, names of records."""
    kinds, scalar = _loaded("numpy", "ndarray", "memmap"), _loaded("numpy", "generic")
    return (type(value) in kinds or isinstance(value, scalar)) and not _has_objects(value)


def _is_exact(value: Any) -> bool:
    """Whether the form of a value gives back the same object in every part."""
    if type(value) in (bytes, bytearray):
        return True
    if type(value) in _loaded("numpy", "ndarray"):
        return not _has_objects(value) and value.dtype.names is None
    if type(value) in _loaded("torch", "Tensor"):
        is_plain = value.is_contiguous() and not value.requires_grad and value.device.type == "cpu"
        return is_plain and value.grad is None and value.layout == sys.modules["torch"].strided
    # A frame of pandas has blocks, whose memory a library may write to: only a pickle keeps them.
    return type(value) in _loaded("polars", "DataFrame") + _loaded("pyarrow", "Table")


#: Test, kind, ending, writer, and facts of each form; the first one that applies is used.
_FORMS: Tuple[Tuple[Callable[[Any], bool], str, str, Callable[[Any, str], None], Callable[[Any], Node]], ...] = (
    (_Is("pandas", "DataFrame"), "frame", ".parquet", _write_frame, _shape),
    (_Is("pandas", "Series"), "series", ".parquet", _write_pandas_series, _series),
    (_Is("polars", "DataFrame"), "polars", ".parquet", lambda value, path: value.write_parquet(path), _shape),
    (_Is("polars", "Series"), "polars series", ".parquet", _write_polars_series, _no_facts),
    (_Is("pyarrow", "Table"), "table", ".parquet", _write_table, _shape),
    (_is_plain_array, "array", ".npy", _write_array, _shape),
    (_Is("scipy.sparse", "spmatrix", "sparray"), "sparse", ".npz", _write_sparse, _shape),
    (_Is("torch", "Tensor"), "tensor", ".tensors", _write_tensor, _shape),
    (_is_tensors, "tensors", ".tensors", _write_tensors, _no_facts),
    (_Is("sklearn.base", "BaseEstimator"), "estimator", ".skops", _write_estimator, _no_facts),
    (_Is("lightgbm", "Booster"), "lightgbm", ".lightgbm.txt", _write_lightgbm, _best_iteration),
    (_Is("xgboost", "Booster"), "xgboost", ".ubj", _write_xgboost, _no_facts),
    (_Is("catboost", "CatBoost"), "catboost", ".cbm", _write_catboost, _no_facts),
    (_Is("keras", "Model"), "keras", ".keras", _write_keras, _no_facts),
    (_Is("matplotlib.figure", "Figure"), "picture", ".png", _write_picture, _no_facts),
    (lambda value: type(value) in (bytes, bytearray), "bytes file", ".bin", _write_bytes, _no_facts),
)


def is_data(value: Any) -> bool:
    """Whether a value without a form may be pickled for a job of one's own: it is no code, and can be read again."""
    is_code = callable(value) and hasattr(value, "__code__")
    is_query = isinstance(value, _loaded("polars", "LazyFrame"))
    return not (is_code or is_query or isinstance(value, (type, type(sys), Iterator)))


def has_only_pickle(kind: type) -> bool:
    """Whether no form but a pickle is known for the values of a class."""
    if kind.__module__.partition(".")[0] in ("builtins", "numpy", "datetime", "decimal", "pathlib"):
        return False
    if issubclass(kind, _loaded("sklearn.base", "BaseEstimator")):
        return not _is_data_type("%s.%s" % (kind.__module__, kind.__name__))
    if is_module_class(kind):
        return False
    return not any(isinstance(form[0], _Is) and issubclass(kind, form[0].kinds()) for form in _FORMS)


def _refusal(value: Any) -> Tuple[str, str]:
    """Return why a value has no form, and what would work."""
    name = getattr(value, "__name__", "") or "NAME"
    if isinstance(value, type(sys)):
        return "is a module", "Import it in the cell."
    if callable(value) and hasattr(value, "__code__") or isinstance(value, type):
        return "is a %s" % ("class" if isinstance(value, type) else "function"), "Send its source: --with %s" % name
    if isinstance(value, _loaded("torch.nn", "Module")):
        return (
            "is a %s, which has no form without pickle" % type(value).__name__,
            "Send its weights, state = model.state_dict(), and its class: --in state --with %s" % type(value).__name__,
        )
    if isinstance(value, _loaded("polars", "LazyFrame")):
        return "is a query", "Run it first: .collect()"
    if isinstance(value, _loaded("numpy.ma", "MaskedArray")):
        return "is a masked array", "Send its parts, x.data and x.mask, or its values with gaps: x.filled(numpy.nan)."
    if isinstance(value, _loaded("numpy", "ndarray")) and not _has_objects(value):
        return "is a %s, of which only the numbers have a form" % type(value).__name__, "Send numpy.asarray of it."
    if isinstance(value, _loaded("numpy", "ndarray")):
        return "has items of type object", "Make a DataFrame or a list of it, or add --allow-pickle."
    if isinstance(value, Iterator):
        return "can be read once only", "Make a list of it."
    kind = type(value).__qualname__
    return "is of type %s, which has no form without pickle" % kind, _SEND_PARTS


# ---- read


def read(node: Node, folder: str, allow_pickle: bool = False, trusted: bool = False) -> Any:
    """Return the value of a node, whose files are in `folder`.

    Parameters
    ----------
    trusted
        The files are this user's own: types of a scikit-learn estimator are not checked.

    Raises
    ------
    NeedsConsent
        Reading it can run code, and `allow_pickle` is false.
    ValueError, OSError
        The files are damaged, or gone.
    """
    kind, value = node["as"], node.get("value")
    if kind == "json":
        return value
    if kind in ("list", "tuple", "set", "frozenset"):
        items = [read(item, folder, allow_pickle, trusted) for item in node["items"]]
        return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)
    if kind == "dict":
        return {
            read(key, folder, allow_pickle, trusted): read(item, folder, allow_pickle, trusted)
            for key, item in node["items"]
        }
    if kind in _SIMPLE:
        return _SIMPLE[kind](value)
    name = str(node["file"])
    if os.path.basename(name) != name:
        raise ValueError("%r is not the name of a file" % name)
    return read_file(os.path.join(folder, name), node, allow_pickle, trusted)


def _path(text: str) -> Any:
    import pathlib

    return pathlib.Path(text)


def _scalar(value: Any) -> Any:
    import numpy

    return numpy.frombuffer(base64.b64decode(value[1]), numpy.dtype(value[0]))[0]


_SIMPLE: Dict[str, Callable[[Any], Any]] = {
    "scalar": _scalar,
    "float": float,
    "complex": lambda value: complex(float(value[0]), float(value[1])),
    "bytes": base64.b64decode,
    "bytearray": lambda value: bytearray(base64.b64decode(value)),
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": lambda value: datetime.timedelta(*value),
    "Decimal": decimal.Decimal,
    "range": lambda value: range(*value),
    "Path": _path,
}


def read_file(path: str, node: Node, allow_pickle: bool = False, trusted: bool = False) -> Any:
    """Return the value of one file; see :func:`read`."""
    kind = node["as"]
    if kind in PICKLES and not allow_pickle:
        raise NeedsConsent("it is a pickle, which can run any code when it is read")
    if kind == "estimator":
        return _read_estimator(path, allow_pickle or trusted)
    if kind == "keras":
        return _read_keras(path, allow_pickle or trusted)
    if kind == "torch":
        return _read_tensors(path, allow_pickle)
    if kind in ("tensor", "tensors"):
        tensors = _read_tensors(path, allow_pickle)
        return tensors["value"] if kind == "tensor" else tensors
    return _READERS[kind](path, node)


def _read_array(path: str, node: Node) -> Any:
    import numpy

    array = numpy.load(path, allow_pickle=False)
    return array if node.get("type", "numpy.ndarray") == "numpy.ndarray" else array[()]


def _read_sparse(path: str, node: Node) -> Any:
    import scipy.sparse

    return scipy.sparse.load_npz(path)


def _read_frame(path: str, node: Node) -> Any:
    import pandas

    return pandas.read_parquet(path)


def _read_series(path: str, node: Node) -> Any:
    series = _read_frame(path, node).iloc[:, 0]
    series.name = node.get("name")
    return series


def _read_csv(path: str, node: Node) -> Any:
    import pandas

    return pandas.read_csv(path, index_col=0)


def _read_json(path: str, node: Node) -> Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _read_polars(path: str, node: Node) -> Any:
    import polars

    frame = polars.read_parquet(path)
    return frame.to_series() if node["as"] == "polars series" else frame


def _read_table(path: str, node: Node) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path)


def _read_tensors(path: str, allow_pickle: bool) -> Any:
    with open(path, "rb") as file:
        is_zip = file.read(2) == b"PK"
    if not is_zip:
        import safetensors.torch

        return safetensors.torch.load_file(path)
    import types

    import torch

    try:
        if allow_pickle:
            own = types.SimpleNamespace(Unpickler=_unpickler(), __name__="pickle")
            return torch.load(path, map_location="cpu", weights_only=False, pickle_module=own)
        parts = _module_parts(path)
        with torch.serialization.safe_globals(parts) if parts else contextlib.nullcontext():
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the file has more than tensors
        if allow_pickle or "weights_only" not in str(error):
            raise
        raise NeedsConsent("it has more than tensors, which can run any code when it is read") from error


def _module_parts(path: str) -> List[Any]:
    """Return the classes of modules in a file of PyTorch with which it can be read by class and weights.

    PyTorch then makes the modules from tensors, numbers and texts; hooks and other objects remain refused.
    """
    import torch

    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # an older PyTorch, or no file of it: the reader says so
        return []
    return [part for name in names for part in _module_part(name)]


def _module_part(name: str) -> Iterator[Any]:
    """Yield what a dotted name means, if it is a module's class that this process has, or a function of modules."""
    module, _, own = name.rpartition(".")
    found = getattr(sys.modules.get(module), own, None)
    # Only its own functions: names that it imports could call others.
    is_function = module == "torch.nn.functional" == getattr(found, "__module__", "") and callable(found)
    if is_function or (isinstance(found, type) and is_module_class(found)):
        yield found


def is_module_class(kind: type) -> bool:
    """Whether a class is of PyTorch's modules, and leaves to PyTorch how they are restored."""
    own = [one for one in kind.__mro__ if not one.__module__.startswith("torch.nn.") and one is not object]
    restores = ("__setstate__", "__reduce__", "__reduce_ex__", "__new__", "__setattr__")
    # Other packages of torch have modules that are made from code (torch.fx, torch.jit).
    changes = any(name in vars(one) or one.__module__.startswith("torch.") for one in own for name in restores)
    return issubclass(kind, _loaded("torch.nn", "Module")) and not changes


def _read_estimator(path: str, trust_all: bool) -> Any:
    import skops.io

    unknown = skops.io.get_untrusted_types(file=path)
    foreign = [] if trust_all else sorted(name for name in unknown if not _is_data_type(name))
    if foreign:
        raise NeedsConsent("it has objects of unknown types (%s)" % ", ".join(foreign[:5]))
    return skops.io.load(path, trusted=unknown)


#: Packages whose own classes are data: their state are arrays, numbers, and the model files of boosters.
_DATA_PACKAGES = ("sklearn", "scipy", "numpy", "lightgbm", "xgboost")


def _is_data_type(name: str) -> bool:
    """Return whether a dotted name is a class that one of :data:`_DATA_PACKAGES` defines itself.

    skops creates such objects from their own state. A function, or a name that these packages only import, may do
    anything.
    """
    module, _, own = name.rpartition(".")
    if name == "collections.OrderedDict":
        return True
    if module.partition(".")[0] not in _DATA_PACKAGES:
        return False
    try:
        kind = getattr(importlib.import_module(module), own, None)
    except ImportError:
        return False
    return isinstance(kind, type) and kind.__module__.partition(".")[0] == module.partition(".")[0]


def _read_lightgbm(path: str, node: Node) -> Any:
    import lightgbm

    booster = lightgbm.Booster(model_file=path)
    booster.best_iteration = int(node.get("best_iteration", -1))
    return booster


def _read_xgboost(path: str, node: Node) -> Any:
    import xgboost

    return xgboost.Booster(model_file=path)


def _read_catboost(path: str, node: Node) -> Any:
    import catboost

    kind = getattr(catboost, str(node.get("type", "")).rpartition(".")[2], catboost.CatBoost)
    return kind().load_model(path)


def _read_keras(path: str, trust: bool) -> Any:
    import keras

    try:
        with _own_classes():
            return keras.models.load_model(path, safe_mode=not trust)
    except ValueError as error:
        if trust or "safe_mode" not in str(error):
            raise
        raise NeedsConsent("it has code of its own, a Lambda layer") from error


def _read_bytes(path: str, node: Node) -> Any:
    with open(path, "rb") as file:
        data = file.read()
    return bytearray(data) if node.get("type") == "builtins.bytearray" else data


def _read_picture(path: str, node: Node) -> Any:
    try:
        from IPython.display import Image
    except ImportError:
        return _read_bytes(path, node)
    image: Any = Image
    return image(filename=path, embed=True)


def _read_pickle(path: str, node: Node) -> Any:
    with open(path, "rb") as file, _own_classes():
        return _unpickler()(file).load()


def _own_classes() -> Any:
    """Return a context in which Keras finds the layers of ``__main__`` by their names, as its own."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "utils"):
        return contextlib.nullcontext()
    own = {name: one for name, one in vars(sys.modules["__main__"]).items() if isinstance(one, type)}
    return keras.utils.custom_object_scope({name: one for name, one in own.items() if one.__module__ == "__main__"})


def _unpickler() -> Any:
    """Return an Unpickler that leaves the classes of this process as they are.

    For a class that this process has sent by value, cloudpickle finds the class itself again, and would give it the
    methods of the copy, with globals of their own.
    """
    import pickle

    whole: List[Any] = []

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module in _NAMES:  # this module has other names in a job
                return globals()[name]
            if (module, name) in _LINES:
                return _lines()
            found = super().find_class(module, name)
            if module.partition(".")[0] == "cloudpickle" and name in ("_make_skeleton_class", "_make_skeleton_enum"):
                return lambda *parts: noted(found(*parts))
            if module.partition(".")[0] == "cloudpickle" and name == "_class_setstate":
                return lambda kind, state: kind if any(kind is one for one in whole) else found(kind, state)
            return found

    def noted(kind: Any) -> Any:
        if getattr(sys.modules["__main__"], getattr(kind, "__name__", ""), None) is kind:
            whole.append(kind)
        return kind

    return Unpickler


#: Class of ``lines = !command`` in a job and in a notebook.
_LINES = (("_amltrain_notebook", "Lines"), ("IPython.utils.text", "SList"))


def _lines() -> Any:
    """Return the class of lines that this process has."""
    for module, name in reversed(_LINES):
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError:
            continue
    return list


#: Values that share objects, by the path of their file: each name of a group gives its part of one graph.
_GRAPHS: Dict[str, Dict[str, Any]] = {}


def array_view(root: Any, dtype: Any, shape: Any, strides: Any, offset: int) -> Any:
    """Return an array in the memory of another one."""
    import numpy

    memory = root if root.flags.c_contiguous else root.T
    return numpy.ndarray(shape, dtype, memory, offset, strides)


def tensor_view(
    memory: Any, dtype: str, shape: Any, strides: Any, offset: int, device: str, kind: str, needs_grad: bool, grad: Any
) -> Any:
    """Return a tensor in memory that is an array of bytes, on a device of the same type if there is one."""
    import torch

    storage = _STORAGES.get(id(memory))
    if storage is None:
        storage = torch.from_numpy(memory).untyped_storage()
        if device != "cpu" and getattr(torch, device).is_available():
            storage = torch.from_numpy(memory).to(device).untyped_storage()
        _STORAGES[id(memory)] = storage
        _MEMORY.append(memory)  # so that no other one gets its id
    tensor = torch.empty(0, dtype=getattr(torch, dtype), device=storage.device).set_(storage, offset, shape, strides)
    if kind == "Parameter":
        tensor = torch.nn.Parameter(tensor, requires_grad=needs_grad)
    else:
        tensor.requires_grad_(needs_grad)
    tensor.grad = grad
    return tensor


_STORAGES: Dict[int, Any] = {}
_MEMORY: List[Any] = []
#: Names of this module in the kernel, beside a script and among the hooks, by which pickles name its functions.
_NAMES = ("jupyter_amltrain.agent.values", MODULE, "amltrain_values")


def _read_graph(path: str, node: Node) -> Any:
    if path not in _GRAPHS:
        buffers = []
        for part in node["items"]:
            with open(os.path.join(os.path.dirname(path), os.path.basename(part["file"])), "rb") as file:
                buffers.append(bytearray(file.read()))  # arrays of it can be changed
        if "keras" in node.get("needs", ()):
            import keras  # noqa: F401  # its classes are looked up by name
        with open(path, "rb") as file, _own_classes():
            _GRAPHS[path] = _unpickler()(file, buffers=buffers).load()
    return _GRAPHS[path][node["name"]]


def _read_joblib(path: str, node: Node) -> Any:
    import joblib

    return joblib.load(path)


_READERS: Dict[str, Callable[[str, Node], Any]] = {
    "array": _read_array,
    "sparse": _read_sparse,
    "frame": _read_frame,
    "series": _read_series,
    "csv": _read_csv,
    "json file": _read_json,
    "polars": _read_polars,
    "polars series": _read_polars,
    "table": _read_table,
    "bytes file": _read_bytes,
    "lightgbm": _read_lightgbm,
    "xgboost": _read_xgboost,
    "catboost": _read_catboost,
    "picture": _read_picture,
    "pickle": _read_pickle,
    "graph": _read_graph,
    "joblib": _read_joblib,
}


# ---- facts of a value and of a node


def memory_of(value: Any, depth: int = 3) -> int:
    """Return the bytes that an array or frame has in memory, also those in lists and dicts; 0 for other values."""
    if type(value) in (list, tuple, dict):
        items = list(value.values()) if type(value) is dict else list(value)
        return sum(memory_of(one, depth - 1) for one in items) if len(items) <= 1000 and depth else 0
    try:
        if hasattr(value, "memory_usage") and hasattr(value, "columns"):
            return int(value.memory_usage(deep=False).sum())
        return int(getattr(value, "nbytes", 0))
    except (TypeError, ValueError, AttributeError):  # another kind of object with such a name
        return 0


def files_of(node: Node) -> Iterator[Node]:
    """Yield the nodes of a value that have a file."""
    if "file" in node:
        yield node
    for item in node.get("items", ()):
        for part in item if isinstance(item, list) else [item]:
            yield from files_of(part)


def description(node: Node) -> str:
    """Return what a value is: ``DataFrame 1797 x 65``."""
    if node["as"] == "json":
        value = node["value"]
        count = " of %d" % len(value) if isinstance(value, (list, dict)) else ""
        return type(value).__name__ + count
    kind = str(node.get("type") or node["as"]).rpartition(".")[2]
    shape = " x ".join(map(str, node["shape"])) if node.get("shape") else ""
    if node["as"] in ("list", "tuple", "set", "frozenset", "dict"):
        shape = "of %d" % len(node["items"])
    return ("%s %s" % (kind, shape)).strip()


def literal(node: Node) -> Any:
    """Return a container all of whose parts are plain, without reading a file.

    Raises
    ------
    ValueError
        It has other parts.
    """
    kind = node["as"]
    if kind == "json":
        return node["value"]
    if kind == "dict":
        return {literal(key): literal(value) for key, value in node["items"]}
    if kind not in ("list", "tuple", "set", "frozenset"):
        raise ValueError(kind)
    make = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind]
    return make(literal(item) for item in node["items"])


def value_of(name: str) -> Any:
    """Return a value of the notebook, in the script of a job."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, INDEX), encoding="utf-8") as file:
        node = json.load(file)[name]
    try:
        return read(node, os.path.join(folder, FOLDER), allow_pickle=True, trusted=True)
    except ImportError as error:
        text = "%s: reading it needs %s, which is not installed here%s"
        raise ImportError(text % (name, error.name or error, _made_with(node)), name=error.name) from error
    except Exception as error:  # a pickle may run any code of a package
        if not _made_with(node):
            raise
        raise ValueError("%s cannot be read here%s: %s" % (name, _made_with(node), _first_line(error))) from error


def _made_with(node: Node) -> str:
    """Return the versions that wrote a pickle, where these are others."""
    made = dict(next((file["made"] for file in files_of(node) if "made" in file), {}))
    here = {name: getattr(sys.modules.get(name), "__version__", None) for name in made}
    here["python"] = sys.version.split()[0]
    other = ["%s %s" % (name, version) for name, version in made.items() if here.get(name, version) != version]
    return " (it was made with %s)" % ", ".join(other) if other else ""
