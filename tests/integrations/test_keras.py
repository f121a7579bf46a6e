"""Keras 3 on PyTorch."""

from __future__ import annotations

from radt.model import RunStatus
from tests.integrations.kit import NO_STEP, steps_of, trainings
from tests.run.conftest import Alone

SCRIPT = """\
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import radt
from radt.integrations.keras import RadtCallback

x = np.arange(300.0, dtype="float32").reshape(100, 3) / 300
y = x.sum(1)

def made():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", metrics=["mae"])
    return model

model = made()
callbacks = [RadtCallback(batch_size=20)]
history = model.fit(x, y, 20, 3, verbose=0, validation_split=0.2, callbacks=callbacks)
model.evaluate(x, y, verbose=0, callbacks=callbacks)
model.predict(x, verbose=0)
radt.finish()

os.environ["RADT_MAX_EPOCH"] = "1"
radt.init(name="limited")
assert len(made().fit(x, y, epochs=3, verbose=0, callbacks=RadtCallback()).epoch) == 1
radt.finish()
del os.environ["RADT_MAX_EPOCH"]

radt.autolog()
radt.autolog()
with radt.Run(name="autolog"):
    model = made()
    model.fit(x, y, epochs=2, verbose=0)
    model.evaluate(x, y, verbose=0)
    try:
        model.fit(x, y, nothing=3)
    except TypeError as error:
        assert "nothing" in str(error)
    else:
        raise SystemExit(4)
with radt.Run(name="given"):
    made().fit(x, y, verbose=0, callbacks=[RadtCallback()])
print(history.history["loss"][-1])
"""


def test_fit_and_evaluate(alone: Alone) -> None:
    out, _ = alone.run(SCRIPT)
    runs = trainings(alone.reader)
    assert {run.status for run in runs.values()} == {RunStatus.FINISHED}
    (first,) = [run for name, run in runs.items() if name.startswith("script0")]
    assert set(first.metrics) == {
        *("loss", "mae", "val_loss", "val_mae", "test_loss", "test_mae"),
    }
    assert steps_of(first.metrics["loss"]) == steps_of(first.metrics["val_mae"]) == [1, 2, 3]
    assert steps_of(first.metrics["test_loss"]) == [NO_STEP]
    assert first.metrics["loss"][-1] == (3, float(out.splitlines()[-1]))
    assert (first.epochs, first.spans) == ([1, 2, 3], {"validate": 3, "test": 1})
    assert first.measured["step.time"] == 12 and "samples_per_s" in first.measured
    expected = {"epochs": "3", "batch_size": "20", "optimizer": "SGD", "learning_rate": "0.01"}
    assert (expected | {"loss": "mse", "parameters": "4"}).items() <= first.params.items()

    assert runs["limited"].epochs == [1]
    autolog = runs["autolog"]
    assert (steps_of(autolog.metrics["loss"]), autolog.epochs) == ([1, 2], [1, 2])
    assert autolog.measured["step.time"] == 8 and "samples_per_s" in autolog.measured
    assert autolog.params["batch_size"] == "32"
    assert (steps_of(runs["given"].metrics["loss"]), runs["given"].epochs) == ([1], [1])
