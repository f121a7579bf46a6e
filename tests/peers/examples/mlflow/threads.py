"""As MLflow's parallel runs: a run in each thread, without names."""

from concurrent.futures import ThreadPoolExecutor

import mlflow


def train(n):
    with mlflow.start_run(run_name=f"worker {n}"):
        mlflow.log_param("n", n)
        for step in range(5):
            mlflow.log_metric("loss", 10 * n + step, step=step)


mlflow.set_experiment("threads")
with ThreadPoolExecutor(3) as pool:
    list(pool.map(train, range(3)))
