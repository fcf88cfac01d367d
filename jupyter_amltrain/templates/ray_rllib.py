# %%aml_submit --timeout 30m --out reward
"""Learn to balance a pole with RLlib: proximal policy optimization on an environment of Gymnasium."""

import os

import mlflow
import ray
from ray.rllib.algorithms.ppo import PPOConfig

# Try other values without an edit: --param iterations=30
iterations = 10
lr = 0.0003
env_runners = 1
seed = 0

mlflow.log_params({"iterations": iterations, "lr": lr, "env_runners": env_runners, "seed": seed})
ray.init(include_dashboard=False, log_to_driver=False)
config = (
    PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=env_runners).training(lr=lr).debugging(seed=seed)
)
algorithm = config.build_algo()

reward = 0.0
for iteration in range(iterations):
    result = algorithm.train()["env_runners"]
    reward = float(result["episode_return_mean"])
    mlflow.log_metrics({"reward": reward, "episode_length": float(result["episode_len_mean"])}, step=iteration)
    print(f"iteration {iteration + 1}: mean reward {reward:.1f} of 500", flush=True)

algorithm.save_to_path(os.path.join(os.path.abspath(os.environ["AML_OUTPUT_DIR"]), "policy"))
algorithm.stop()
ray.shutdown()
