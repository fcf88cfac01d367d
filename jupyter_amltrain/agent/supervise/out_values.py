"""Code that the script of a cell runs after its last line to write the values of ``--out``.

:func:`_amltrain_out` is not called here: its source is appended to the script. So it uses nothing of this
module, reads builtins from `b` (a script may have redefined ``open``, ``type``, ``len``), and imports no library
that the script has not imported.
"""

from typing import Any, Callable, Iterator, List, Tuple

_ = (Any, Callable, Iterator, List, Tuple)  # annotations are strings: in a script these names may be missing


def _amltrain_out(names: "List[str]", limit: "Any", b: "Any", known: "Any" = ()) -> None:
    import json
    import os
    import sys

    folder = os.environ.get("AML_OUTPUT_DIR")
    if not folder:
        return

    def plain(value: "Any") -> "Any":
        if b.isinstance(value, os.PathLike):
            return os.fspath(value)
        if b.tuple(b.getattr(value, "shape", (1,))) == () and b.hasattr(value, "item"):
            return value.item()
        raise b.TypeError(b.type(value).__name__)

    def is_a(value: "Any", module: "str", *kinds: "str") -> "Any":
        variables = [b.getattr(sys.modules.get(module), kind, None) for kind in kinds]
        return b.any(b.isinstance(kind, b.type) and b.isinstance(value, kind) for kind in variables)

    def frames(name: "str", value: "Any") -> "Iterator[Tuple[str, Callable[[str], Any]]]":
        if is_a(value, "pandas", "Series"):
            value = value.to_frame(name if value.name is None else b.str(value.name))
        if is_a(value, "polars", "Series"):
            value = value.to_frame()
        if is_a(value, "pandas", "DataFrame"):
            yield ".parquet", value.to_parquet
            yield ".csv", value.to_csv
        if is_a(value, "polars", "DataFrame"):
            yield ".parquet", value.write_parquet
            yield ".csv", value.write_csv

    def ways(name: "str", value: "Any", text: "str") -> "Iterator[Tuple[str, Callable[[str], Any]]]":
        """Yield file suffixes with their writers; the first writer that succeeds is used."""
        if text:
            yield ".value.json", form(text.encode())
        yield from frames(name, value)
        kinds = [b.getattr(sys.modules.get("numpy"), kind, None) for kind in ("ndarray", "memmap")]
        if b.any(b.type(value) is kind for kind in kinds) or is_a(
            value, "numpy", "generic"
        ):  # a subclass has more than its numbers
            yield ".npy", lambda path: array(path, value)
        if is_a(value, "torch", "Tensor") or is_a(value, "torch.nn", "Module"):
            yield ".pt", lambda path: torch_save(value, path)
        if is_a(value, "matplotlib.figure", "Figure"):
            yield ".png", lambda path: value.savefig(path, format="png", bbox_inches="tight")
        if is_state_dict(value):
            yield ".safetensors", lambda path: b.__import__("safetensors.torch").torch.save_file(apart(value), path)
            yield ".pt", lambda path: sys.modules["torch"].save(value, path)
        if is_a(value, "sklearn.base", "BaseEstimator"):
            yield ".skops", lambda path: b.__import__("skops.io").io.dump(value, path)
            yield ".joblib", lambda path: b.__import__("joblib").dump(value, path)
        yield ".values.json", lambda path: parts(path, name, value)
        yield ".pickle", lambda path: dump(value, path)
        yield ".pickle", lambda path: write(path, b.__import__("pickle").dumps(value, 4))
        yield ".txt", lambda path: write(path, b.repr(value).encode("utf-8", "replace"))

    def pickler() -> "Any":
        try:
            return b.__import__("amltrain_values").pickler(known, [])
        except b.ImportError:  # a script without the hooks
            return b.__import__("cloudpickle").CloudPickler

    def dump(value: "Any", path: "str") -> None:
        kind = pickler()
        with b.open(path, "wb") as file:
            kind(file, 4).dump(value)

    def torch_save(value: "Any", path: "str") -> None:
        torch = sys.modules["torch"]
        try:
            kind = pickler()
        except b.ImportError:  # readable only where the class is
            torch.save(value, path)
            return
        torch.save(value, path, pickle_module=b.__import__("types").SimpleNamespace(Pickler=kind, __name__="pickle"))

    def shared() -> "Any":
        """Write each group of values that share objects to one more file; return the file by name."""
        found: Any = {}
        try:
            groups = b.__import__("amltrain_shared").groups({one: variables[one] for one in names if one in variables})
        except b.Exception:  # a script without the hooks
            return found
        for group in groups:
            if b.len(group) > 1:
                file = b.next(b.iter(group)) + ".graph"
                try:
                    put(file, b.__import__("functools").partial(dump, group))
                except b.Exception:  # each alone may have a form
                    continue
                found.update(dict.fromkeys(group, file))
        return found

    def is_state_dict(value: "Any") -> "Any":
        return (
            b.isinstance(value, b.dict)
            and b.bool(value)
            and b.all(b.isinstance(key, b.str) and is_a(value[key], "torch", "Tensor") for key in value)
        )

    def apart(value: "Any") -> "Any":
        """Return tensors that share no memory."""
        return {key: value[key].detach().clone().contiguous() for key in value}

    def parts(path: "str", name: "str", value: "Any") -> None:
        """Write the arrays, frames and tensors in a value each to a file; a small one is in `path` itself."""
        place = os.path.join(folder, name + ".values")
        try:
            node = b.__import__("amltrain_values").write(value, place)
        except b.BaseException:
            b.__import__("shutil").rmtree(place, True)
            raise
        write(path, json.dumps(node).encode())

    def exact(name: "str", value: "Any", most: "Any") -> "Any":
        """Return what a record needs to have a value that JSON would change, as far as there is a way."""
        try:
            values = b.__import__("amltrain_values")
        except b.ImportError:  # a script without the hooks
            return {}
        try:
            node = values.inline(value)
            return {"node": node} if b.len(json.dumps(node)) <= most else {}
        except values.CannotWrite:  # a class of its own, such as a Counter
            file = saved(name, value, "")
            return {"file": file, "type": kind(value)} if b.isinstance(file, b.str) and file[-4:] != ".txt" else {}
        except b.Exception:  # a user's object may raise anything
            return {}

    def kind(value: "Any") -> "str":
        return "%s.%s" % (b.type(value).__module__, b.type(value).__qualname__)

    def write(path: "str", data: "bytes") -> None:
        with b.open(path, "wb") as file:
            file.write(data)

    def form(data: "bytes") -> "Callable[[str], Any]":
        return lambda path: write(path, data)

    def array(path: "str", value: "Any") -> None:
        numpy = sys.modules["numpy"]
        with b.open(path, "wb") as file:
            numpy.save(file, numpy.asarray(value), allow_pickle=False)

    def put(file: "str", make: "Callable[[str], Any]") -> None:
        """Write a file atomically."""
        path = os.path.join(folder, file)
        part = "%s.%d.part" % (path, os.getpid())  # other processes of the job may write the same value
        try:
            os.makedirs(folder, exist_ok=True)
            make(part)
            os.replace(part, path)
        except b.BaseException:  # whatever the value's own code raises, no part stays
            if os.path.exists(part):
                os.remove(part)
            raise

    def saved(name: "str", value: "Any", text: "str") -> "Any":
        """Write `value`; return the file name, or the error if no form could be written."""
        failed: Any = None
        try:
            for ending, make in ways(name, value, text):
                try:
                    put(name + ending, make)
                    return name + ending
                except b.OSError as error:  # no space left: a smaller form may still fit
                    failed = error
                except b.Exception as error:  # a user's object may raise anything when it is written
                    failed = failed or error
        except b.Exception as error:  # ... or when its forms are listed
            failed = error
        return failed

    def shape(value: "Any") -> "Any":
        try:
            return [b.int(part) for part in value.shape]
        except b.Exception:  # it has none
            return None

    def is_series(value: "Any") -> "Any":
        return is_a(value, "pandas", "Series") and b.isinstance(value.name, b.str)

    def article(word: "str") -> "str":
        return ("an " if word[:1].lower() in ("a", "e", "i", "o", "u") or word[:2] == "nd" else "a ") + word

    variables = b.globals()
    graphs = shared() if b.len(names) > 1 else {}
    for name in names:
        record: Any = {"amltrain": 1, "name": name}
        if name in graphs:
            record["graph"] = graphs[name]
        text, problem = "", ""
        if name not in variables:
            record["error"] = "never set"
        else:
            value = variables[name]
            try:
                text = json.dumps(value, default=plain)
                if b.len(text) > limit:
                    problem = "%d bytes, over the limit of %d" % (b.len(text), limit)
                else:
                    record["value"] = json.loads(text)
                    if b.isinstance(value, (b.dict, b.list, b.tuple, os.PathLike)):
                        record.update(exact(name, value, limit - b.len(text)))
            except b.Exception as error:  # a user's object may raise anything when it is converted
                problem = article(b.type(value).__name__) + ", which is not JSON"
                if b.type(error) is b.TypeError and b.isinstance(value, (b.dict, b.list, b.tuple)):
                    problem += " (%s)" % error
            if problem and b.isinstance(value, (b.set, b.frozenset)):
                found = exact(name, value, limit)
                if found.get("node"):  # a small one
                    record["value"], problem = [b.str(item) for item in value], ""
                    record.update(found)
            if problem:
                file = saved(name, value, text)
                if b.isinstance(file, b.str):
                    if file.endswith(".txt"):
                        problem += " and cannot be pickled: its text"
                    record["error"], record["file"] = problem, file
                    record["type"] = kind(value)
                    record["shape"] = shape(value)
                    record["label"] = b.str(b.getattr(value, "name", "")) if is_series(value) else None
                else:
                    record["error"] = "%s; it could not be saved: %s: %s" % (problem, b.type(file).__name__, file)
        try:
            put(name + ".json", form(json.dumps(record).encode()))
        except b.Exception as error:  # the script has succeeded; a lost value must not change that
            b.print("amltrain: --out %s was not written: %s" % (name, error), file=sys.stderr)
