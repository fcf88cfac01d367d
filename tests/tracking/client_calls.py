"""Public methods of MLflow's client, in an order in which each has what it needs; prints what each gives, without ids.

A script: it runs in a job, and beside a server of MLflow.
"""

import json
import math
import os
import tempfile
import time

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, LoggedModelInput, LoggedModelOutput, Metric, Param, RunTag, ViewType

mlflow.start_run()
c, s, out = MlflowClient(), {}, {}
d = tempfile.mkdtemp()
with open(d + "/a.txt", "w") as file:
    file.write("a")
os.makedirs(d + "/dir")
with open(d + "/dir/b.txt", "w") as file:
    file.write("bb")


def text_at(path):
    with open(path) as file:
        return file.read()


def step(name, call):
    try:
        value = call()
    except Exception as error:
        value = f"{type(error).__name__} {getattr(error, 'error_code', '')}"
    out[name] = value


def keep(key, value):
    s[key] = value
    return value


step("create_experiment", lambda: bool(keep("e", c.create_experiment("calls", tags={"k": "v"}))))
step("create_experiment again", lambda: c.create_experiment("calls"))
step("get_experiment", lambda: (c.get_experiment(s["e"]).name, c.get_experiment(s["e"]).tags.get("k")))
step("get_experiment_by_name", lambda: c.get_experiment_by_name("calls").experiment_id == s["e"])
step("get_experiment_by_name unknown", lambda: c.get_experiment_by_name("nothing-there"))
step("set_experiment_tag", lambda: (c.set_experiment_tag(s["e"], "t", "1"), c.get_experiment(s["e"]).tags.get("t")))
step("delete_experiment_tag", lambda: (c.delete_experiment_tag(s["e"], "t"), c.get_experiment(s["e"]).tags.get("t")))
step("rename_experiment", lambda: (c.rename_experiment(s["e"], "renamed"), c.get_experiment(s["e"]).name))
step("search_experiments", lambda: "renamed" in {e.name for e in c.search_experiments()})
step("search_experiments filter", lambda: [e.name for e in c.search_experiments(filter_string="name = 'renamed'")])
step("create_run", lambda: bool(keep("r", c.create_run(s["e"], tags={"x": "y"}, run_name="first").info.run_id)))
step("create_run second", lambda: bool(keep("r2", c.create_run(s["e"], run_name="second").info.run_id)))
step("create_run unknown experiment", lambda: c.create_run("98765432109"))
step(
    "get_run",
    lambda: (
        c.get_run(s["r"]).info.run_name,
        c.get_run(s["r"]).data.tags.get("x"),
        c.get_run(s["r"]).info.experiment_id == s["e"],
    ),
)
step("get_run unknown", lambda: c.get_run("f" * 32))
step(
    "log_metric",
    lambda: (
        [c.log_metric(s["r"], "m", v, step=i, timestamp=1000 + i) for i, v in enumerate((1.0, 3.0, 2.0))]
        and c.get_run(s["r"]).data.metrics
    ),
)
step("log_metric nan", lambda: (c.log_metric(s["r"], "n", math.nan), str(c.get_run(s["r"]).data.metrics["n"])))
step("log_metric inf", lambda: (c.log_metric(s["r"], "i", math.inf), c.get_run(s["r"]).data.metrics["i"] > 1e300))
step("get_metric_history", lambda: [(m.step, m.timestamp, m.value) for m in c.get_metric_history(s["r"], "m")])
step("get_metric_history unknown", lambda: c.get_metric_history(s["r"], "zzz"))
step("log_param", lambda: (str(c.log_param(s["r"], "p", 1)), c.get_run(s["r"]).data.params))
step("log_param other value", lambda: c.log_param(s["r"], "p", 2))
step("log_param empty", lambda: (str(c.log_param(s["r"], "empty", "")), c.get_run(s["r"]).data.params.get("empty")))
step("log_param long", lambda: c.log_param(s["r"], "long", "x" * 7000) and None)
step("log_metric bad name", lambda: c.log_metric(s["r"], "a?*b", 1))
step("set_tag", lambda: (c.set_tag(s["r"], "tag", "1"), c.get_run(s["r"]).data.tags.get("tag")))
step("delete_tag", lambda: (c.delete_tag(s["r"], "tag"), c.get_run(s["r"]).data.tags.get("tag")))
step("delete_tag unknown", lambda: c.delete_tag(s["r"], "never"))
step(
    "log_batch",
    lambda: (
        str(c.log_batch(s["r"], [Metric("b", 1, 5, 0)], [Param("q", "2")], [RunTag("u", "w")])),
        c.get_run(s["r"]).data.params.get("q"),
    ),
)
step("update_run", lambda: (c.update_run(s["r"], name="other"), c.get_run(s["r"]).info.run_name))
step(
    "log_inputs",
    lambda: (
        c.log_inputs(s["r"], [DatasetInput(Dataset("d", "abc", "local", "here"))]),
        [x.dataset.name for x in c.get_run(s["r"]).inputs.dataset_inputs],
    ),
)
step("log_artifact", lambda: c.log_artifact(s["r"], d + "/a.txt"))
step("log_artifacts", lambda: c.log_artifacts(s["r"], d + "/dir", "sub"))
step("log_text", lambda: c.log_text(s["r"], "hello", "t/x.txt"))
step("log_dict", lambda: c.log_dict(s["r"], {"a": 1}, "d.json"))
step("log_table", lambda: c.log_table(s["r"], {"a": [1, 2]}, "table.json"))
step("load_table", lambda: len(c.load_table(s["e"], "table.json", [s["r"]])))
step("list_artifacts", lambda: sorted((f.path, f.is_dir, f.file_size) for f in c.list_artifacts(s["r"])))
step("list_artifacts sub", lambda: sorted((f.path, f.file_size) for f in c.list_artifacts(s["r"], "sub")))
step("download_artifacts", lambda: text_at(c.download_artifacts(s["r"], "t/x.txt")))
step("search_runs", lambda: sorted(r.info.run_name for r in c.search_runs([s["e"]])))
step("search_runs metric", lambda: [r.info.run_name for r in c.search_runs([s["e"]], "metrics.m > 1")])
step("search_runs param", lambda: [r.info.run_name for r in c.search_runs([s["e"]], "params.p = '1'")])
step("search_runs like", lambda: [r.info.run_name for r in c.search_runs([s["e"]], "attributes.run_name LIKE 'sec%'")])
step("search_runs dataset", lambda: [r.info.run_name for r in c.search_runs([s["e"]], "dataset.name = 'd'")])
step(
    "search_runs order",
    lambda: [r.info.run_name for r in c.search_runs([s["e"]], order_by=["attributes.run_name DESC"])],
)
step(
    "search_runs pages",
    lambda: (lambda p: (len(p), bool(p.token), len(c.search_runs([s["e"]], max_results=1, page_token=p.token))))(
        c.search_runs([s["e"]], max_results=1)
    ),
)
step("search_runs bad filter", lambda: c.search_runs([s["e"]], "nonsense ==== 3"))
step("search_runs bad order", lambda: c.search_runs([s["e"]], order_by=["zzz.m"]))
step("get_parent_run", lambda: c.get_parent_run(s["r"]))
step(
    "set_terminated",
    lambda: (
        c.set_terminated(s["r2"], "FAILED", 5000),
        c.get_run(s["r2"]).info.status,
        c.get_run(s["r2"]).info.end_time,
    ),
)
step(
    "delete_run", lambda: (c.delete_run(s["r2"]), c.get_run(s["r2"]).info.lifecycle_stage, len(c.search_runs([s["e"]])))
)
step(
    "search_runs deleted",
    lambda: [r.info.run_name for r in c.search_runs([s["e"]], run_view_type=ViewType.DELETED_ONLY)],
)
step("log_metric deleted", lambda: c.log_metric(s["r2"], "m", 1))
step("restore_run", lambda: (c.restore_run(s["r2"]), c.get_run(s["r2"]).info.lifecycle_stage))
# models
step(
    "create_logged_model",
    lambda: bool(
        keep(
            "m",
            c.create_logged_model(s["e"], name="lm", source_run_id=s["r"], tags={"a": "b"}, params={"p": "1"}).model_id,
        )
    ),
)
step(
    "get_logged_model",
    lambda: (
        c.get_logged_model(s["m"]).name,
        c.get_logged_model(s["m"]).params,
        str(c.get_logged_model(s["m"]).status),
    ),
)
step("get_logged_model unknown", lambda: c.get_logged_model("m-" + "0" * 32))
step("log_model_params", lambda: (c.log_model_params(s["m"], {"z": "2"}), sorted(c.get_logged_model(s["m"]).params)))
step(
    "set_logged_model_tags",
    lambda: (c.set_logged_model_tags(s["m"], {"c": "d"}), c.get_logged_model(s["m"]).tags.get("c")),
)
step(
    "delete_logged_model_tag",
    lambda: (c.delete_logged_model_tag(s["m"], "c"), c.get_logged_model(s["m"]).tags.get("c")),
)
step("log_model_artifact", lambda: c.log_model_artifact(s["m"], d + "/a.txt"))
step("log_model_artifacts", lambda: c.log_model_artifacts(s["m"], d + "/dir"))
step("list_logged_model_artifacts", lambda: sorted(f.path for f in c.list_logged_model_artifacts(s["m"])))
step(
    "log_metric model",
    lambda: (
        c.log_metric(s["r"], "acc", 0.5, model_id=s["m"]),
        [(m.key, m.value) for m in c.get_logged_model(s["m"]).metrics],
    ),
)
step(
    "log_outputs",
    lambda: (c.log_outputs(s["r"], [LoggedModelOutput(s["m"], 0)]), len(c.get_run(s["r"]).outputs.model_outputs)),
)
step(
    "log_inputs model",
    lambda: (c.log_inputs(s["r"], models=[LoggedModelInput(s["m"])]), len(c.get_run(s["r"]).inputs.model_inputs)),
)
step(
    "finalize_logged_model",
    lambda: (c.finalize_logged_model(s["m"], "READY"), str(c.get_logged_model(s["m"]).status))[1],
)
step("search_logged_models", lambda: [m.name for m in c.search_logged_models([s["e"]])])
step("search_logged_models filter", lambda: [m.name for m in c.search_logged_models([s["e"]], "metrics.acc > 0.1")])
step(
    "search_logged_models order",
    lambda: [m.name for m in c.search_logged_models([s["e"]], order_by=[{"field_name": "metrics.acc"}])],
)


def second_model():
    s["m2"] = c.create_logged_model(s["e"], name="lm2", model_type="t").model_id
    for value, at, number in ((0.1, 2000, 1), (0.9, 1000, 7)):  # the latest is that of the latest time
        c.log_metric(s["r"], "sized", value, timestamp=at, step=number, model_id=s["m2"])
        c.log_metric(s["r"], "sized", 0.5, timestamp=at, step=number, model_id=s["m"])
    c.log_metric(s["r"], "sized", 0.7, 1500, 3, model_id=s["m"], dataset_name="d", dataset_digest="abc")
    return c.get_logged_model(s["m2"]).name


def models_page():
    return c.search_logged_models([s["e"]], max_results=1)


def models(**how):
    return [m.name for m in c.search_logged_models([s["e"]], **how)]


step("create_logged_model second", second_model)
step("search_logged_models newest", lambda: models())
step(
    "search_logged_models pages",
    lambda: (lambda p: (len(p), models(page_token=p.token)))(models_page()),
)
for number, order in enumerate(
    (
        [{"field_name": "creation_timestamp"}],
        [{"field_name": "creation_time", "ascending": False}],
        [{"field_name": "name", "ascending": False}],
        [{"field_name": "metrics.sized"}],
        [{"field_name": "metrics.sized", "ascending": False}],
        [{"field_name": "metrics.sized", "dataset_name": "d", "dataset_digest": "abc"}],
        [{"field_name": "metrics.none"}, {"field_name": "model_type"}],
        [{"field_name": "params.p"}],
        [{"field_name": "nothing"}],
    )
):
    step(f"search_logged_models order {number}", lambda order=order: models(order_by=order))
for text in (
    "metrics.sized < 0.4", "name = 'lm2'", "model_type = 't'", "params.p = '1'", "tags.a = 'b'", "name LIKE 'lm%'",
    "creation_timestamp > 5", "attributes.name = 'lm'", "nothing = 'x'", "zzz.m = 'x'", "nonsense ==== 3",
):  # fmt: skip
    step(f"search_logged_models {text}", lambda text=text: models(filter_string=text))
data = [{"dataset_name": "d", "dataset_digest": "abc"}]
step("search_logged_models dataset", lambda: models(datasets=data))
step("search_logged_models dataset metric", lambda: models(datasets=data, filter_string="metrics.sized < 0.6"))
# registry
step("create_registered_model", lambda: c.create_registered_model("reg", {"a": "b"}, "about").name)
step("create_registered_model again", lambda: c.create_registered_model("reg"))
step("get_registered_model", lambda: (c.get_registered_model("reg").description, c.get_registered_model("reg").tags))
step("get_registered_model unknown", lambda: c.get_registered_model("none-such"))
step(
    "create_model_version",
    lambda: str(c.create_model_version("reg", f"models:/{s['m']}", s["r"], tags={"v": "1"}, model_id=s["m"]).version),
)
step("create_model_version second", lambda: str(c.create_model_version("reg", f"runs:/{s['r']}/sub", s["r"]).version))
step(
    "get_model_version",
    lambda: (c.get_model_version("reg", "1").run_id == s["r"], c.get_model_version("reg", "1").tags.get("v")),
)
step("get_model_version unknown", lambda: c.get_model_version("reg", "77"))
step("update_model_version", lambda: c.update_model_version("reg", "1", "text").description)
step(
    "set_model_version_tag",
    lambda: (c.set_model_version_tag("reg", "1", "k", "v"), c.get_model_version("reg", "1").tags.get("k")),
)
step(
    "delete_model_version_tag",
    lambda: (c.delete_model_version_tag("reg", "1", "k"), c.get_model_version("reg", "1").tags.get("k")),
)
step("search_model_versions", lambda: sorted(str(v.version) for v in c.search_model_versions("name = 'reg'")))
step(
    "search_model_versions run", lambda: sorted(str(v.version) for v in c.search_model_versions(f"run_id = '{s['r']}'"))
)
step("get_latest_versions", lambda: [str(v.version) for v in c.get_latest_versions("reg")])
step("get_model_version_download_uri", lambda: bool(c.get_model_version_download_uri("reg", "1")))
step("get_model_version_stages", lambda: c.get_model_version_stages("reg", "1"))
step("transition_model_version_stage", lambda: c.transition_model_version_stage("reg", "1", "Staging").current_stage)
step(
    "set_registered_model_alias",
    lambda: (
        c.set_registered_model_alias("reg", "best", "1"),
        str(c.get_model_version_by_alias("reg", "best").version),
    ),
)
step("get_model_version_by_alias unknown", lambda: c.get_model_version_by_alias("reg", "nope"))
step(
    "delete_registered_model_alias",
    lambda: (c.delete_registered_model_alias("reg", "best"), c.get_registered_model("reg").aliases),
)
step(
    "set_registered_model_tag",
    lambda: (c.set_registered_model_tag("reg", "k", "v"), c.get_registered_model("reg").tags.get("k")),
)
step(
    "delete_registered_model_tag",
    lambda: (c.delete_registered_model_tag("reg", "k"), c.get_registered_model("reg").tags.get("k")),
)
step("update_registered_model", lambda: c.update_registered_model("reg", "new").description)
step("copy_model_version", lambda: str(c.copy_model_version("models:/reg/1", "copy").version))
step("rename_registered_model", lambda: c.rename_registered_model("copy", "copy2").name)
step("search_registered_models", lambda: sorted(m.name for m in c.search_registered_models("name LIKE '%reg%' ")))
step("search_registered_models all", lambda: {"reg", "copy2"} <= {m.name for m in c.search_registered_models()})
step(
    "delete_model_version",
    lambda: (
        c.delete_model_version("reg", "2"),
        sorted(str(v.version) for v in c.search_model_versions("name = 'reg'")),
    ),
)
step(
    "delete_registered_model",
    lambda: (c.delete_registered_model("copy2"), [m.name for m in c.search_registered_models("name = 'copy2'")]),
)
# prompts
step("register_prompt", lambda: str(c.register_prompt("greet", "Hi {{name}}").version))
step("register_prompt second", lambda: str(c.register_prompt("greet", "Hello {{name}}").version))
step("load_prompt", lambda: c.load_prompt("prompts:/greet/1").template)
step(
    "set_prompt_alias", lambda: (c.set_prompt_alias("greet", "live", 2), c.load_prompt("prompts:/greet@live").template)
)
step("delete_prompt_alias", lambda: c.delete_prompt_alias("greet", "live"))
step("get_prompt", lambda: c.get_prompt("greet").name)
step("search_prompts", lambda: [p.name for p in c.search_prompts()])
step("get_prompt_version", lambda: c.get_prompt_version("greet", "1").template)
step("set_prompt_tag", lambda: c.set_prompt_tag("greet", "a", "b"))
step("delete_prompt_tag", lambda: c.delete_prompt_tag("greet", "a"))
step("set_prompt_version_tag", lambda: c.set_prompt_version_tag("greet", "1", "a", "b"))
step("delete_prompt_version_tag", lambda: c.delete_prompt_version_tag("greet", "1", "a"))
step("link_prompt_version_to_run", lambda: c.link_prompt_version_to_run(s["r"], "prompts:/greet/1"))
step("list_logged_prompts", lambda: [p.name for p in c.list_logged_prompts(s["r"])])
step("delete_prompt_version", lambda: c.delete_prompt_version("greet", "2"))
# datasets of evaluation
step("create_dataset", lambda: bool(keep("ds", c.create_dataset("evals", experiment_id=s["e"]).dataset_id)))
step("get_dataset", lambda: c.get_dataset(s["ds"]).name)
step("search_datasets", lambda: [x.name for x in c.search_datasets(experiment_ids=[s["e"]])])
step("set_dataset_tags", lambda: c.set_dataset_tags(s["ds"], {"a": "b"}))
step("delete_dataset_tag", lambda: c.delete_dataset_tag(s["ds"], "a"))
step("delete_dataset", lambda: c.delete_dataset(s["ds"]))


# traces
def trace():
    span = c.start_trace("tr", inputs={"a": 1}, experiment_id=s["e"])
    inner = c.start_span("in", trace_id=span.trace_id, parent_id=span.span_id)
    c.end_span(inner.trace_id, inner.span_id, outputs={"b": 2})
    c.end_trace(span.trace_id, outputs={"c": 3})
    mlflow.flush_trace_async_logging()
    s["t"] = span.trace_id
    return True


step("start_trace end_trace", trace)
step("get_trace", lambda: sorted(x.name for x in c.get_trace(s["t"]).data.spans))
step("search_traces", lambda: len(c.search_traces(locations=[s["e"]])))


def second_trace():
    time.sleep(0.01)
    with mlflow.start_run(run_id=s["r"], nested=True):
        span = c.start_trace("tr2", experiment_id=s["e"], tags={"kind": "a b"})
        time.sleep(0.1)
        c.end_trace(span.trace_id, status="ERROR")
        mlflow.flush_trace_async_logging()
    return bool(keep("t2", span.trace_id))


def traces(filter_string=None, **how):
    found = c.search_traces(locations=[s["e"]], filter_string=filter_string, include_spans=False, **how)
    return [x.info.tags["mlflow.traceName"] for x in found]


def traces_page():
    return c.search_traces(locations=[s["e"]], max_results=1, include_spans=False)


step("start_trace in a run", second_trace)
step("search_traces pages", lambda: (lambda p: (len(p), traces(page_token=p.token)))(traces_page()))
for text in (
    "timestamp > 5", "timestamp_ms < 5", "trace.timestamp_ms >= 5", "status = 'OK'", "trace.status = 'ERROR'",
    "attributes.status != 'OK'", "status IN ('OK', 'ERROR')", "name = 'tr2'", "trace.name LIKE 'tr%'",
    "name RLIKE '2$'", f"run_id = '{s.get('r')}'", f"request_metadata.`mlflow.sourceRun` = '{s.get('r')}'",
    "run_id = 'none'", "tags.kind = 'a b'", "tag.`kind` ILIKE 'A%' AND status = 'ERROR'", "tags.kind IS NULL",
    "tags.kind IS NOT NULL",
    "execution_time >= 0", "execution_time_ms < 0", "end_time > 5", "metadata.none = 'x'", "nothing = 'x'",
    "zzz.m = 'x'", "nonsense ==== 3",
):  # fmt: skip
    step(f"search_traces {text.replace(s.get('r', '-'), 'RUN')}", lambda text=text: traces(text))
for text in (
    "timestamp", "timestamp_ms DESC", "trace.timestamp ASC", "status", "status DESC", "name DESC",
    "tags.kind", "nothing", "zzz.m",
):  # fmt: skip
    step(f"search_traces order {text}", lambda text=text: traces(order_by=[text]))
step("set_trace_tag", lambda: (c.set_trace_tag(s["t"], "k", "v"), c.get_trace(s["t"]).info.tags.get("k")))
step("delete_trace_tag", lambda: (c.delete_trace_tag(s["t"], "k"), c.get_trace(s["t"]).info.tags.get("k")))
step("link_traces_to_run", lambda: c.link_traces_to_run([s["t"]], s["r"]))
step("unlink_traces_from_run", lambda: c.unlink_traces_from_run([s["t"]], s["r"]))
step("delete_traces", lambda: c.delete_traces(s["e"], trace_ids=[s["t"], s["t2"]]))
step("list_webhooks", lambda: len(c.list_webhooks()))
step("delete_logged_model", lambda: (c.delete_logged_model(s["m"]), [m.name for m in c.search_logged_models([s["e"]])]))
step("delete_experiment", lambda: (c.delete_experiment(s["e"]), c.get_experiment(s["e"]).lifecycle_stage))
step("restore_experiment", lambda: (c.restore_experiment(s["e"]), c.get_experiment(s["e"]).lifecycle_stage))
print("CALLS" + json.dumps(out, default=str))
