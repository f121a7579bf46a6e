"""Models and data of the collocation study; `train.py` trains one of them, `plan.py` lists all."""
