# %%aml_submit --gpus 0 --out rmse
"""Predict generated house prices with LightGBM: gradient-boosted trees with early stopping."""

import os

import lightgbm
import mlflow
import numpy as np

# Try other values without an edit: --param leaves=63
rounds = 500
leaves = 31
learning_rate = 0.05
seed = 0

mlflow.log_params({"rounds": rounds, "leaves": leaves, "learning_rate": learning_rate, "seed": seed})
random = np.random.default_rng(seed)


def houses(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return size, age, rooms and distance of houses, and their prices in thousands."""
    size, age = random.uniform(40, 250, count), random.uniform(0, 100, count)
    rooms, distance = random.integers(1, 9, count), random.exponential(10, count)
    price = 2.5 * size + 15 * rooms - 0.8 * age + 200 * np.exp(-distance / 8) + random.normal(0, 20, count)
    return np.column_stack([size, age, rooms, distance]), price


train = lightgbm.Dataset(*houses(8000))
valid = lightgbm.Dataset(*houses(2000), reference=train)
test_x, test_y = houses(2000)


def log_round(state: lightgbm.callback.CallbackEnv) -> None:
    """Log the errors of every tenth round."""
    if state.iteration % 10 == 0:
        for name, metric, value, *_ in state.evaluation_result_list:
            mlflow.log_metric(f"{name}_{metric}", value, step=state.iteration)


model = lightgbm.train(
    {"objective": "regression", "metric": "rmse", "num_leaves": leaves, "learning_rate": learning_rate, "seed": seed,
     "verbosity": -1},
    train,
    num_boost_round=rounds,
    valid_sets=[train, valid],
    valid_names=["train", "valid"],
    callbacks=[log_round, lightgbm.early_stopping(30, verbose=False)],
)  # fmt: skip
rmse = float(np.sqrt(np.mean((model.predict(test_x) - test_y) ** 2)))
mlflow.log_metric("rmse", rmse)
print(f"root mean squared error on 2,000 new houses: {rmse:.1f} after {model.best_iteration} rounds")

model.save_model(os.path.join(os.environ["AML_OUTPUT_DIR"], "model.txt"))
