lr = 0.1

import mlflow
mlflow.log_metric("loss", float("nan"), step=0)
print("before", flush=True)
raise ValueError("no such digit")
