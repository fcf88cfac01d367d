"""Small programs that log with MLflow in every manner; the names say which."""

from __future__ import annotations

#: Before each program. `flush` waits for asynchronous logging; `tick` makes times differ, as those of real steps do.
HEAD = """
import math, random, time
import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
def tick():
    time.sleep(0.002)
def now():
    return int(time.time() * 1000)
"""

_CLASSIFIER = """
from sklearn.linear_model import LogisticRegression
X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
model = LogisticRegression().fit(X, y)
def log_model(**more):
    # Else MLflow imports the model in another process to find its requirements.
    mlflow.sklearn.log_model(model, **{NAME: "model"}, pip_requirements=["scikit-learn"], **more)
"""

PLAIN = {
    "one metric": "mlflow.log_metric('loss', 0.5)",
    "integer": "mlflow.log_metric('epochs', 3)",
    "boolean": "mlflow.log_metric('done', True)",
    "steps": "for i in range(5): mlflow.log_metric('loss', 1 / (1 + i), step=i)",
    "no steps": "for i in range(4): tick(); mlflow.log_metric('loss', 1 / (1 + i))",
    "steps backward": "for i in (4, 2, 0): mlflow.log_metric('loss', float(i), step=i)",
    "steps shuffled": "for i in (2, 0, 3, 1): mlflow.log_metric('loss', float(i), step=i)",
    "steps with gaps": "for i in (0, 100, 10_000): mlflow.log_metric('loss', float(i), step=i)",
    "negative steps": "for i in (-1, -3, -2): mlflow.log_metric('loss', float(i), step=i)",
    "large step": "mlflow.log_metric('loss', 1.0, step=2**40); mlflow.log_metric('loss', 2.0, step=7)",
    "step again later": "for v in (3.0, 1.0, 2.0): tick(); mlflow.log_metric('loss', v, step=1)",
    "steps of each epoch": """
for epoch in range(2):
    for i in range(3):
        tick(); mlflow.log_metric('loss', 10.0 * epoch + i, step=i)
""",
    "times backward": """
c, run = MlflowClient(), mlflow.start_run()
for i, at in enumerate((3000, 1000, 2000)):
    c.log_metric(run.info.run_id, 'loss', float(i), timestamp=at, step=0)
""",
    "point sent twice": """
c, run = MlflowClient(), mlflow.start_run()
for i in (0, 1, 0, 1, 0):
    c.log_metric(run.info.run_id, 'loss', float(10 - i), timestamp=1000 + i, step=i)
""",
    "point sent twice without steps": """
c, run = MlflowClient(), mlflow.start_run()
for i in (0, 1, 2, 1):
    c.log_metric(run.info.run_id, 'loss', float(10 - i), timestamp=1000 + i)
""",
    "history sent again": """
c, run = MlflowClient(), mlflow.start_run()
for i in range(4):
    c.log_metric(run.info.run_id, 'loss', 1 / (i + 1), step=i)
c.log_batch(run.info.run_id, metrics=c.get_metric_history(run.info.run_id, 'loss'))
""",
    "nan at the end": "for i, v in enumerate((1.0, 0.5, math.nan)): mlflow.log_metric('loss', v, step=i)",
    "nan in between": "for i, v in enumerate((1.0, math.nan, 0.5)): mlflow.log_metric('loss', v, step=i)",
    "nan only": "mlflow.log_metric('loss', math.nan)",
    "tiny and huge": "mlflow.log_metrics({'tiny': 5e-324, 'huge': 1e300, 'zero': -0.0})",
    "many digits": "mlflow.log_metric('pi', 3.141592653589793); mlflow.log_metric('third', 1 / 3)",
    "numpy numbers": "import numpy as np; mlflow.log_metrics({'a': np.float32(0.25), 'b': np.int64(3)})",
    "log_metrics": "mlflow.log_metrics({'a': 1.0, 'b': 2.0})",
    "log_metrics by steps": "for i in range(3): mlflow.log_metrics({'a': float(i), 'b': -float(i)}, step=i)",
    "log_metrics backward": "for i in (2, 1): mlflow.log_metrics({'a': float(i), 'b': -float(i)}, step=i)",
    "batch": """
run = mlflow.start_run()
points = [Metric('loss', 1 / (1 + i), 1000 + i, i) for i in range(50)]
MlflowClient().log_batch(run.info.run_id, metrics=points, params=[Param('lr', '0.1')], tags=[RunTag('a', 'b')])
""",
    "batch backward": """
run = mlflow.start_run()
MlflowClient().log_batch(run.info.run_id, metrics=[Metric('loss', float(i), 1000 + i, i) for i in range(9, -1, -1)])
""",
    "batch with repeats": """
run = mlflow.start_run()
points = [Metric('loss', float(i), 1000 + i, i) for i in (0, 1, 2, 0, 1)]
MlflowClient().log_batch(run.info.run_id, metrics=points)
""",
    "batches that overlap": """
run = mlflow.start_run()
for first in (0, 2, 1):
    points = [Metric('loss', float(i), 1000 + i, i) for i in range(first, first + 3)]
    MlflowClient().log_batch(run.info.run_id, metrics=points)
""",
    "batch of many metrics": """
run = mlflow.start_run()
MlflowClient().log_batch(run.info.run_id, metrics=[Metric(f'm{i}', float(i), 1000, 0) for i in range(120)])
""",
    "asynchronous": """
last = None
for i in range(20):
    last = mlflow.log_metric('loss', 1 / (1 + i), step=i, synchronous=False)
last.wait()
mlflow.flush_async_logging()
""",
    "asynchronous without steps": """
for i in range(5):
    tick(); mlflow.log_metric('loss', float(i), synchronous=False)
mlflow.flush_async_logging()
""",
    "asynchronous log_metrics and parameters": """
mlflow.log_params({'a': 1}, synchronous=False).wait()
for i in range(5):
    mlflow.log_metrics({'x': float(i)}, step=i, synchronous=False)
mlflow.flush_async_logging()
""",
    "asynchronous backward": """
for i in (3, 2, 1):
    mlflow.log_metric('loss', float(i), step=i, synchronous=False)
mlflow.flush_async_logging()
""",
    "threads": """
import threading
run = mlflow.start_run()
def work(k):
    for i in range(5):
        MlflowClient().log_metric(run.info.run_id, f'm{k}', float(i * k), step=i)
threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
for one in threads: one.start()
for one in threads: one.join()
""",
    "names": "mlflow.log_metrics({'val/loss': 1.0, 'a b': 2.0, 'a.b-c_d': 3.0, 'été': 4.0})",
    "system name": "mlflow.log_metric('system/mine', 1.0)",
    "parameters": "mlflow.log_params({'lr': 0.1, 'n': 3, 'flag': True, 'none': None, 'text': 'a b', 'list': [1, 2]})",
    "parameter twice": "mlflow.log_param('a', 1); mlflow.log_param('a', 1)",
    "parameter changed": """
mlflow.log_param('a', 1)
try:
    mlflow.log_param('a', 2)
except mlflow.MlflowException:
    mlflow.set_tag('refused', 'yes')
""",
    "empty parameter": "mlflow.log_param('empty', '')",
    "long parameter": "mlflow.log_param('long', 'x' * 500)",
    "tags": "mlflow.set_tags({'team': 'blue', 'number': 3}); mlflow.set_tag('team', 'red')",
    "tag removed": "mlflow.set_tags({'a': '1', 'b': '2'}); mlflow.delete_tag('a')",
    "named run": "\nwith mlflow.start_run(run_name='mine', tags={'k': 'v'}):\n    mlflow.log_metric('loss', 1.0)",
    "run with blocks": """
with mlflow.start_run() as run:
    mlflow.log_metric('loss', 1.0, step=0)
with mlflow.start_run(run_id=run.info.run_id):
    mlflow.log_metric('loss', 0.5, step=1)
""",
    "nested runs": """
with mlflow.start_run(run_name='parent'):
    mlflow.log_metric('loss', 9.0, step=0)
    for k in range(2):
        with mlflow.start_run(run_name=f'child {k}', nested=True):
            mlflow.log_param('k', k)
            for i in (1, 0):
                mlflow.log_metric('loss', float(10 * k + i), step=i)
    mlflow.log_metric('loss', 8.0, step=1)
""",
    "run that fails": """
try:
    with mlflow.start_run():
        mlflow.log_metric('loss', 1.0)
        raise ValueError
except ValueError:
    pass
""",
    "history read back": """
for i in (1, 0):
    mlflow.log_metric('loss', float(i), step=i)
run = mlflow.active_run()
history = MlflowClient().get_metric_history(run.info.run_id, 'loss')
mlflow.log_metric('sum', sum(point.value for point in history))
mlflow.log_metric('now', MlflowClient().get_run(run.info.run_id).data.metrics['loss'])
""",
    "artifacts": "mlflow.log_text('x', 'a.txt'); mlflow.log_dict({'a': 1}, 'd/a.json'); mlflow.log_metric('loss', 1.0)",
    "dataset": """
import pandas
mlflow.log_input(mlflow.data.from_pandas(pandas.DataFrame({'a': [1, 2]}), name='d'), context='training')
mlflow.log_metric('loss', 1.0)
""",
}

MODELS = {
    "model before metrics": _CLASSIFIER
    + "log_model()\nfor i in range(3): mlflow.log_metric('loss', float(-i), step=i)",
    "model between metrics": _CLASSIFIER
    + """
for i in range(3): mlflow.log_metric('loss', float(-i), step=i)
log_model()
for i in range(3, 5): mlflow.log_metric('loss', float(-i), step=i)
""",
    "model after metrics": _CLASSIFIER + "for i in range(3): mlflow.log_metric('loss', float(-i), step=i)\nlog_model()",
    "model after metrics without steps": _CLASSIFIER
    + """
for i in range(3): tick(); mlflow.log_metric('loss', float(-i))
log_model()
""",
    "model after metrics backward": _CLASSIFIER
    + "for i in (2, 1, 0): mlflow.log_metric('loss', float(i), step=i)\nlog_model()",
    "several models": _CLASSIFIER
    + """
for i in range(3):
    mlflow.log_metric('loss', float(-i), step=i)
    log_model()
""",
    "model in nested run": _CLASSIFIER
    + """
with mlflow.start_run():
    mlflow.log_metric('loss', 2.0, step=0)
    with mlflow.start_run(run_name='child', nested=True):
        for i in range(2): mlflow.log_metric('loss', float(-i), step=i)
        log_model()
""",
    "model of autologging": """
import lightgbm, numpy
mlflow.lightgbm.autolog()
X, y = numpy.arange(60.0).reshape(-1, 1) % 7, (numpy.arange(60) % 7 > 3).astype(float)
data = lightgbm.Dataset(X, y)
lightgbm.train({'objective': 'binary', 'verbose': -1, 'num_threads': 1, 'min_data_in_leaf': 2}, data, 12,
               valid_sets=[data], valid_names=['train'])
""",
}

#: By library that must be installed.
AUTOLOG = {
    "sklearn": "mlflow.sklearn.autolog(log_models=False)\n" + _CLASSIFIER,
    "sklearn search": """
mlflow.sklearn.autolog(log_models=False)
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
search = GridSearchCV(LogisticRegression(), {'C': [0.1, 1.0]}, cv=2)
search.fit([[float(i)] for i in range(8)], [0, 0, 0, 0, 1, 1, 1, 1])
""",
    "lightgbm": """
import lightgbm, numpy
mlflow.lightgbm.autolog(log_models=False)
X, y = numpy.arange(60.0).reshape(-1, 1) % 7, (numpy.arange(60) % 7 > 3).astype(float)
data = lightgbm.Dataset(X, y)
lightgbm.train({'objective': 'binary', 'verbose': -1, 'num_threads': 1, 'min_data_in_leaf': 2}, data, 12,
               valid_sets=[data], valid_names=['train'])
""",
    "xgboost": """
import numpy, xgboost
mlflow.xgboost.autolog(log_models=False)
X, y = numpy.arange(40.0).reshape(-1, 1), (numpy.arange(40) > 20).astype(float)
data = xgboost.DMatrix(X, y)
xgboost.train({'objective': 'binary:logistic', 'nthread': 1}, data, 8, evals=[(data, 'train')], verbose_eval=False)
""",
    "statsmodels": """
import numpy, statsmodels.api as sm
mlflow.statsmodels.autolog(log_models=False)
x = numpy.arange(20.0)
sm.OLS(2 * x + 1 + numpy.sin(x), sm.add_constant(x)).fit()
""",
    "keras": """
import os
os.environ['KERAS_BACKEND'] = 'torch'
import numpy, keras
import mlflow.keras
mlflow.keras.autolog(log_models=False)
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(optimizer='sgd', loss='mse')
x = numpy.arange(8.0).reshape(-1, 1) / 8
model.fit(x, 2 * x, epochs=3, verbose=0)
""",
}
PACKAGE = {"sklearn search": "sklearn"}
