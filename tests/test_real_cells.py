"""A notebook in the manner of public ones: each cell is submitted as it stands, and gives what the kernel gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import real_cells

CELLS = '''
import numpy as np
import pandas as pd
from sklearn.datasets import make_classification
np.set_printoptions(precision=3)
---
X, y = make_classification(n_samples=120, n_features=5, random_state=0)
frame = pd.DataFrame(X, columns=list("abcde")).assign(label=y)
frame.head(3)
---
def scale(values):
    """To zero mean and unit variance."""
    return (values - values.mean(axis=0)) / values.std(axis=0)
---
scaled = scale(X)
scaled[:2]
---
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
model = make_pipeline(StandardScaler(), LogisticRegression(C=0.5))
model.fit(X, y)
---
print(f"accuracy {model.score(X, y):.3f}")
model.predict_proba(X[:2])
---
frame["high"] = frame["a"] > frame["a"].median()
frame.groupby("high")["label"].agg(["mean", "size"])
---
class Running:
    """A mean that is updated."""
    def __init__(self):
        self.n, self.mean = 0, 0.0
    def add(self, x):
        self.n += 1
        self.mean += (x - self.mean) / self.n
        return self
---
running = Running()
for value in X[:, 0]:
    running.add(value)
running.n, round(running.mean, 4)
---
from scipy import optimize
found = optimize.minimize(lambda w: ((X @ w - y) ** 2).sum(), np.zeros(5))
found.success, found.x
---
import polars as pl
table = pl.from_pandas(frame)
table.group_by("label").agg(pl.col("a").mean()).sort("label")
---
words = !printf 'one\\ntwo\\n'
total = len(words)
%env KIND=test
total, words
---
history = {"loss": [], "step": []}
for step in range(3):
    history["loss"].append(float(((scaled @ np.ones(5)) ** 2).mean() / (step + 1)))
    history["step"].append(step)
pd.DataFrame(history)
'''


@pytest.mark.thorough
def test_cells_give_the_text_and_the_values_of_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "notebook.ipynb"
    cells = [{"cell_type": "code", "source": text.strip("\n")} for text in CELLS.split("\n---\n")]
    path.write_text(json.dumps({"cells": cells}))
    outcomes = real_cells.check(path, tmp_path / "home", len(cells), dry_run=False, prelude="")
    assert [one for one in outcomes if one.kind != "same" or one.other_values] == []
    assert len(outcomes) == len(cells) and sum(one.values for one in outcomes) >= 12
