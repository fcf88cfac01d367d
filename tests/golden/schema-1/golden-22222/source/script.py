lr = 0.1

import mlflow, time
mlflow.log_params({"lr": lr, "layers": 2})
for step in range(4):
    mlflow.log_metric("loss", 1 / (step + 1), step=step)
    print("epoch", step, flush=True)
    time.sleep(0.15)
mlflow.set_tag("kind", "golden")
mlflow.log_dict({"a": 1}, "notes/facts.json")
accuracy = 0.97
thing = object()

# ---- added by amltrain: the values of --out ----
def _amltrain_out(names, b=__import__("builtins")):
    import json, os, sys
    folder = os.environ.get("AML_OUTPUT_DIR")
    if not folder:
        return
    def plain(value):
        if b.isinstance(value, os.PathLike):
            return os.fspath(value)
        if b.tuple(b.getattr(value, "shape", (1,))) == () and b.hasattr(value, "item"):
            return value.item()
        raise b.TypeError(b.type(value).__name__)
    found = b.globals()
    for name in names:
        record = {"name": name}
        if name not in found:
            record["error"] = "never set"
        else:
            try:
                record["value"] = found[name]
                size = b.len(json.dumps(record, default=plain))
                if size > 1000000:
                    record = {"name": name, "error": "too large: %d bytes, limit 1000000" % size}
            except b.Exception as error:
                why = error if b.type(error) is b.TypeError else b.type(found[name]).__name__
                record = {"name": name, "error": "not JSON: %s" % why}
        path = os.path.join(folder, name + ".json")
        try:
            os.makedirs(folder, exist_ok=True)
            with b.open(path + ".tmp", "w", encoding="utf-8") as file:
                json.dump(record, file, default=plain)
            os.replace(path + ".tmp", path)
        except b.OSError as error:
            b.print("amltrain: --out %s was not written: %s" % (name, error), file=sys.stderr)
_amltrain_out(['accuracy', 'thing', 'never'])
