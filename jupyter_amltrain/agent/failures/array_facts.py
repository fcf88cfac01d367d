"""Facts about arrays, tensors and tables: shape, dtype, device, range, NaN, columns. Only exact known types are read.

A library is looked at only if the script has imported it. Values of a tensor are read only on the CPU: on a GPU that
would wait for it, and after an error of CUDA fail or hang. The module travels alone, as ``amltrain_array_facts.py``
among the hooks of a job.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:
    from . import safe_access
else:
    import amltrain_safe_access as safe_access

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Tuple

    Facts = Dict[str, Any]

#: Values that are shown one by one, and numbers that are read between two looks at the clock.
_FEW, _CHUNK = 6, 1 << 18
#: Seconds for the range of one array.
_RANGE_S = 0.1
#: Views of views of an array that are followed.
_MAX_VIEWS = 20
#: Numbers that are converted, where their type has no range of its own.
_MAX_CONVERTED = 1 << 20
#: Columns of a table, and rows up to which their NaN are counted.
_MAX_COLUMNS, _MAX_COUNTED_ROWS = 16, 200_000
#: Packages whose own subclasses of tensors tell their shape.
_TENSOR_PACKAGES = ("torch", "torchvision", "torchaudio")


def facts_of(value: Any, time_left: float) -> Optional[Facts]:
    """Return the facts about an array, a tensor or a table; ``None`` for anything else.

    Parameters
    ----------
    time_left
        Seconds that reading numbers may take; without, shape and type are read.
    """
    kind = type(value)
    for module, name, read in _KINDS:
        if kind is safe_access.module_member(module, name):
            facts: Facts = {"type": name}
            try:
                read(value, facts, time_left)
            except Exception:  # half built, or another version of the library
                pass
            return facts
    return _number(value) or _tensor_of_a_library(value)


def _number(value: Any) -> Optional[Facts]:
    """Return the facts about a scalar of NumPy."""
    kind, generic = type(value), safe_access.module_member("numpy", "generic")
    if generic is None or safe_access.type_module(kind) != "numpy" or not safe_access.is_subtype(kind, generic):
        return None
    plain = generic.item(value)
    is_short = type(plain) in (bool, int, float, complex)
    return {"type": "numpy." + safe_access.type_name(kind), "text": repr(plain) if is_short else ""}


def _tensor_of_a_library(value: Any) -> Optional[Facts]:
    """Return shape and dtype of a subclass of tensors that PyTorch itself has."""
    kind, tensor = type(value), safe_access.module_member("torch", "Tensor")
    package = safe_access.type_module(kind).partition(".")[0]
    if tensor is None or package not in _TENSOR_PACKAGES or not safe_access.is_subtype(kind, tensor):
        return None
    facts: Facts = {"type": safe_access.type_name(kind)}
    try:
        with safe_access.module_member("torch._C", "DisableTorchFunctionSubclass")():
            facts.update(shape=list(tensor.shape.__get__(value)), dtype=_short_dtype(tensor.dtype.__get__(value)))
    except Exception:  # private parts of PyTorch, of any version
        pass
    return facts


def _array(value: Any, facts: Facts, time_left: float) -> None:
    facts.update(shape=list(value.shape), dtype=str(value.dtype)[:80])
    if not _is_of_a_file(value):
        _add_numbers(value, facts, time_left)


def _is_of_a_file(array: Any) -> bool:
    """Whether an array is a view of a file, which may be slow, or shorter by now: reading that ends the process."""
    mapped = (safe_access.module_member("numpy", "memmap"), safe_access.module_member("mmap", "mmap"))
    ndarray = safe_access.module_member("numpy", "ndarray")
    for _ in range(_MAX_VIEWS):
        kind = type(array)
        if kind is not memoryview and not safe_access.is_subtype(kind, ndarray):
            return safe_access.is_any(kind, mapped)
        if safe_access.is_any(kind, mapped):
            return True
        array = array.obj if kind is memoryview else ndarray.base.__get__(array)
    return True


def _file_array(value: Any, facts: Facts, time_left: float) -> None:
    """A file that is mapped into memory is not read."""
    array = safe_access.module_member("numpy", "ndarray")
    facts.update(shape=list(array.shape.__get__(value)), dtype=str(array.dtype.__get__(value))[:80])


def _tensor(value: Any, facts: Facts, time_left: float) -> None:
    device = str(value.device)
    facts.update(shape=list(value.shape), dtype=_short_dtype(value.dtype), device=device)
    torch_strided = safe_access.module_member("torch", "strided")
    if device != "cpu" or value.layout is not torch_strided or not value.numel():
        return
    plain = value.detach()
    if plain.dtype is safe_access.module_member("torch", "bfloat16"):
        if plain.numel() > _MAX_CONVERTED:
            return
        plain = plain.float()
    _add_numbers(plain.numpy(), facts, time_left)


def _short_dtype(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2][:80]


def _add_numbers(array: Any, facts: Facts, time_left: float) -> None:
    """Add the values of a small array, else the range and the number of NaN."""
    kind = array.dtype.kind
    if kind not in "biuf" or not array.size:
        return
    if array.size <= _FEW:
        values = array.tolist()
        facts["text"] = _short(repr(values))
    if time_left <= 0:
        return
    with safe_access.module_member("numpy", "errstate")(all="ignore"):  # the script may let NaN raise
        found = _range(array, kind == "f", time.monotonic() + min(_RANGE_S, time_left / 2))
    if found is not None:
        low, high, nan = found
        if low is not None and array.size > _FEW:
            facts.update(low=_number_text(low), high=_number_text(high))
        if nan:
            facts["nan"] = nan


def _range(array: Any, has_nan: bool, until: float) -> Optional[Tuple[Any, Any, int]]:
    """Return least, most (``None`` if all are NaN) and the number of NaN; ``None`` if that takes too long."""
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        if array.size > _CHUNK:
            return None
        array = array.copy()
    flat = array.reshape(-1, order="A")
    is_nan: Any = safe_access.module_member("numpy", "isnan")
    low = high = None
    count = 0
    for start in range(0, flat.size, _CHUNK):
        if time.monotonic() > until:
            return None
        part = flat[start : start + _CHUNK]
        least = part.min()
        if has_nan and least != least:  # the least of numbers with a NaN is NaN
            mask = is_nan(part)
            count += int(mask.sum())
            part = part[~mask]
            least = part.min() if part.size else None
        if part.size:
            most = part.max()
            low = least if low is None or least < low else low
            high = most if high is None or most > high else high
    return low, high, count


def _number_text(number: Any) -> str:
    value = number.item()
    return "%.5g" % value if type(value) is float else str(value)


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _frame(value: Any, facts: Facts, time_left: float) -> None:
    """A DataFrame of pandas: its columns with their types."""
    rows, columns = value.shape
    facts["shape"] = [rows, columns]
    until = time.monotonic() + min(_RANGE_S, time_left / 2)
    first = value.iloc[:, :_MAX_COLUMNS]
    parts = []
    for at, (label, dtype) in enumerate(zip(list(first.columns), list(first.dtypes))):
        text = "%s %s" % (_label(label), _pandas_dtype(dtype))
        if getattr(dtype, "kind", "") == "f" and rows <= _MAX_COUNTED_ROWS and time.monotonic() < until:
            array = first.iloc[:, at].to_numpy()
            nan = int((array != array).sum()) if type(array) is safe_access.module_member("numpy", "ndarray") else 0
            text += " (%d NaN)" % nan if nan else ""
        parts.append(text)
    facts["text"] = _columns(parts, columns)


def _series(value: Any, facts: Facts, time_left: float) -> None:
    facts.update(shape=[len(value)], dtype=_pandas_dtype(value.dtype))
    if _is_numpy_dtype(value.dtype):
        _add_numbers(value.to_numpy(), facts, time_left)
    label = _label(value.name) if value.name is not None else ""
    facts.setdefault("text", "named %s" % label if label else "")


def _index(value: Any, facts: Facts, time_left: float) -> None:
    labels = [_label(one) for one in value[:_FEW]]
    facts.update(shape=[len(value)], dtype=_pandas_dtype(value.dtype))
    facts["text"] = ", ".join(labels) + (", …" if len(value) > _FEW else "")


def _columns(parts: Any, count: int) -> str:
    more = ", and %d more" % (count - len(parts)) if count > len(parts) else ""
    return "columns: " + ", ".join(parts) + more if parts else "no columns"


def _label(label: Any) -> str:
    """Return the label of a column or row: texts, numbers and tuples of them; of anything else its type."""
    kind = type(label)
    if kind is str:
        text = _short(label, 40)
        return text if text.strip() == text != "" and text.isprintable() else repr(text)
    if safe_access.is_any(kind, (int, float, bool, type(None))):
        return _short(repr(label), 40)
    if kind is tuple:
        return "(%s)" % ", ".join(_label(one) for one in label[:4])
    return safe_access.type_name(kind)


def _is_numpy_dtype(dtype: Any) -> bool:
    base = safe_access.module_member("numpy", "dtype")
    return base is not None and safe_access.is_subtype(type(dtype), base)


def _pandas_dtype(dtype: Any) -> str:
    """Return the name of a dtype of NumPy or pandas; of one of the user's its type."""
    if _is_numpy_dtype(dtype) or safe_access.type_module(type(dtype)).partition(".")[0] == "pandas":
        return _short(str(dtype).partition("(")[0], 60)
    return safe_access.type_name(type(dtype))


def _polars_frame(value: Any, facts: Facts, time_left: float) -> None:
    rows, count = value.shape
    facts["shape"] = [rows, count]
    parts = ["%s %s" % (_label(name), _short(str(dtype), 60)) for name, dtype in value.schema.items()]
    facts["text"] = _columns(parts[:_MAX_COLUMNS], count)


def _polars_series(value: Any, facts: Facts, time_left: float) -> None:
    facts.update(shape=[len(value)], dtype=_short(str(value.dtype), 60))
    nulls = int(value.null_count())
    facts["text"] = ", ".join(
        ["named %s" % _short(value.name, 40)] * bool(value.name) + ["%d null" % nulls] * bool(nulls)
    )


def _plain_text(value: Any, facts: Facts, time_left: float) -> None:
    """Something of a library whose own text is short: a dtype, a device."""
    facts["text"] = _short(str(value))


#: Module, name and reader of each type.
_KINDS: Tuple[Tuple[str, str, Callable[[Any, Facts, float], None]], ...] = (
    ("numpy", "ndarray", _array),
    ("numpy", "memmap", _file_array),
    ("torch", "Tensor", _tensor),
    ("torch.nn.parameter", "Parameter", _tensor),
    ("torch.nn.parameter", "Buffer", _tensor),
    ("torch", "device", _plain_text),
    ("torch", "dtype", _plain_text),
    ("pandas", "DataFrame", _frame),
    ("pandas", "Series", _series),
    ("pandas", "Index", _index),
    ("pandas", "RangeIndex", _index),
    ("pandas", "DatetimeIndex", _index),
    ("polars", "DataFrame", _polars_frame),
    ("polars", "Series", _polars_series),
)
