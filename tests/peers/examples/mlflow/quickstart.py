"""As MLflow's quickstart: one run, parameters, metrics, an artifact."""

import os
from tempfile import mkdtemp

import mlflow

if __name__ == "__main__":
    mlflow.log_param("config_value", 7)
    mlflow.log_params({"lr": 0.1, "layers": [8, 4]})
    for step in range(3):
        mlflow.log_metric("foo", step + 0.5, step=step)
    folder = mkdtemp()
    with open(os.path.join(folder, "test.txt"), "w") as file:
        file.write("hello world!")
    mlflow.log_artifacts(folder)
