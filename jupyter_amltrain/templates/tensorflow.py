# %%aml_submit --out loss
"""Fit a generated surface with TensorFlow: a training loop of your own with automatic gradients."""

import os

import mlflow
import tensorflow as tf

# Try other values without an edit: --param lr=0.003
steps = 1000
lr = 0.01
batch_size = 256
seed = 0

tf.random.set_seed(seed)
mlflow.log_params({"steps": steps, "lr": lr, "batch_size": batch_size, "seed": seed})
mlflow.log_param("gpus", len(tf.config.list_physical_devices("GPU")))


class Surface(tf.Module):
    """A network with one hidden layer of 64 units."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = tf.Variable(tf.random.normal([2, 64]), name="hidden")
        self.shift = tf.Variable(tf.zeros([64]), name="shift")
        self.out = tf.Variable(tf.random.normal([64, 1], stddev=0.1), name="out")

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32)])
    def __call__(self, points: tf.Tensor) -> tf.Tensor:
        """Return the heights at points."""
        return tf.tanh(points @ self.hidden + self.shift) @ self.out


def height(points: tf.Tensor) -> tf.Tensor:
    """Return the heights that the network learns."""
    return tf.sin(2 * points[:, :1]) * tf.cos(3 * points[:, 1:])


model = Surface()
# Adam, written out: averages of the gradients and of their squares.
means = [tf.zeros_like(variable) for variable in model.trainable_variables]
squares = [tf.zeros_like(variable) for variable in model.trainable_variables]
for step in range(1, steps + 1):
    points = tf.random.uniform([batch_size, 2], -1, 1)
    with tf.GradientTape() as tape:
        error = tf.reduce_mean((model(points) - height(points)) ** 2)
    gradients = tape.gradient(error, model.trainable_variables)
    for i, (variable, gradient) in enumerate(zip(model.trainable_variables, gradients, strict=True)):
        means[i] = 0.9 * means[i] + 0.1 * gradient
        squares[i] = 0.999 * squares[i] + 0.001 * gradient**2
        change = means[i] / (1 - 0.9**step) / (tf.sqrt(squares[i] / (1 - 0.999**step)) + 1e-7)
        variable.assign_sub(lr * change)
    if step % 20 == 0:
        mlflow.log_metric("train_loss", float(error), step=step)

points = tf.random.uniform([4096, 2], -1, 1)
loss = float(tf.reduce_mean((model(points) - height(points)) ** 2))
mlflow.log_metric("loss", loss)
print(f"mean squared error at 4,096 new points: {loss:.5f}")

tf.saved_model.save(model, os.path.join(os.environ["AML_OUTPUT_DIR"], "model"))
