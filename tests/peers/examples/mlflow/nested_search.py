"""As MLflow's grid_search_cv: a parent with nested trials, the best of which the parent repeats."""

import mlflow


def score(lr, depth):
    return lr * depth


with mlflow.start_run(run_name="search"):
    mlflow.log_param("kind", "grid")
    best = 0.0
    for lr in (0.25, 0.5):
        for depth in (2, 4):
            with mlflow.start_run(run_name=f"lr={lr} depth={depth}", nested=True):
                mlflow.log_params({"lr": lr, "depth": depth})
                mlflow.log_metric("score", score(lr, depth))
                best = max(best, score(lr, depth))
    mlflow.log_metric("best", best)
