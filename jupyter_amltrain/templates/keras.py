# %%aml_submit --out accuracy
"""Classify generated images of bars with Keras: a small convolutional network."""

import os

import keras
import mlflow
import numpy as np

# Try other values without an edit: --param lr=0.003
epochs = 10
lr = 0.001
batch_size = 64
seed = 0

keras.utils.set_random_seed(seed)
mlflow.log_params({"epochs": epochs, "lr": lr, "batch_size": batch_size, "seed": seed, "keras": keras.__version__})


def bars(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images of 16 x 16 pixels with a horizontal (0), vertical (1) or diagonal (2) bar."""
    images = np.random.normal(0, 0.3, (count, 16, 16, 1)).astype("float32")
    labels = np.random.randint(0, 3, count)
    for image, label in zip(images, labels, strict=True):
        at = np.random.randint(2, 14)
        along = np.arange(16)
        rows = (np.full(16, at), along, along)[label]
        columns = (along, np.full(16, at), (along + at) % 16)[label]
        image[rows, columns, 0] += 1.0
    return images, labels


train_x, train_y = bars(3000)
test_x, test_y = bars(1000)

model = keras.Sequential(
    [
        keras.Input((16, 16, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.GlobalMaxPooling2D(),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])


def log_epoch(epoch: int, logs: dict) -> None:
    """Log loss and accuracy after each epoch."""
    mlflow.log_metrics({name: float(value) for name, value in logs.items()}, step=epoch)


model.fit(
    train_x,
    train_y,
    batch_size=batch_size,
    epochs=epochs,
    validation_split=0.1,
    verbose=2,
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=log_epoch)],
)
accuracy = float(model.evaluate(test_x, test_y, verbose=0)[1])
mlflow.log_metric("test_accuracy", accuracy)
print(f"accuracy on 1,000 new images: {accuracy:.3f}")

model.save(os.path.join(os.environ["AML_OUTPUT_DIR"], "model.keras"))
