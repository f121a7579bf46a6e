"""Images, tables and texts that a script logs, with and without steps."""

from __future__ import annotations

import io
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from radt.run.media import png_of
from tests.run.conftest import Joined

LOGGED = """\
import radt, numpy as np, torch, pandas as pd
from PIL import Image
ramp = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
Image.fromarray(ramp).save("photo.JPG", quality=95)
with radt.Run() as run:
    run.log_image("val/samples", ramp, step=0)
    run.log_image("val/samples", torch.ones(2, 2, requires_grad=True, dtype=torch.bfloat16), 10)
    run.log_image("val/samples", Image.fromarray(ramp).convert("CMYK"), step=np.int64(20))
    run.log_image("mask", np.eye(3) > 0)
    run.log_image("mask", np.eye(2) > 0)
    run.log_image("photo", "photo.JPG", step=-1)
    run.log_table("errors", pd.DataFrame({"x": [1, 2], "y": [np.nan, np.inf], "z": ["a", None]}), 5)
    run.log_table("counts", {"n": torch.tensor([1, 2]), "ok": np.array([True, False])})
    run.log_text("first", "notes/said.txt", step=1)
    run.log_text("always", "notes/said.txt")
"""

MISTAKES = {
    "run.log_image('a', np.zeros((3, 8, 8)))": "UsageError an image must have the shape",
    "run.log_image('a', np.zeros((2, 3, 8, 8)))": "UsageError an image must have the shape",
    "run.log_image('a', np.zeros((8, 8), int))": "UsageError an image must be uint8 or float",
    "run.log_image('a', np.full((8, 8), np.nan))": "UsageError values of a float image",
    "run.log_image('a', 3)": "TypeError an image must be an array",
    "run.log_image('../a', np.zeros((8, 8)), 1)": "UsageError 'images/../a/step-1.png' is not",
    "run.log_image(np.zeros((8, 8)), 'a.png')": "TypeError the name of a logged image",
    "run.log_image('a', np.zeros((8, 8)), 1.5)": "TypeError the step of 'images/a.png'",
    "run.log_image('a', __file__)": "UsageError",
    "run.log_image('a', 'missing.png')": "FileNotFoundError",
    "run.log_table('a', {'x': [1], 'y': []})": "UsageError the columns of a table",
    "run.log_table('a', [1])": "TypeError a table must be a DataFrame",
    "run.log_text('a', 'a.txt', 'x')": "TypeError the step of 'a.txt'",
}


def test_what_is_logged_becomes_artifacts_by_name_and_step(joined: Joined) -> None:
    assert joined.run(LOGGED) == ("", "")
    root = joined.run_dir.artifacts
    files = {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}
    assert files == {
        *(f"images/val/samples/step-{step}.png" for step in (0, 10, 20)),
        *("images/mask.png", "images/photo/step--1.jpg"),
        *("tables/errors/step-5.json", "tables/counts.json"),
        *("notes/said/step-1.txt", "notes/said.txt"),
    }

    def pixels(name: str) -> list[object]:
        return np.asarray(Image.open(root / "images" / name)).tolist()  # type: ignore[no-any-return]

    assert pixels("val/samples/step-0.png") == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
    assert pixels("val/samples/step-10.png") == [[255, 255], [255, 255]]
    assert pixels("mask.png") == [[255, 0], [0, 255]]  # the later one
    photo = (root / "images/photo/step--1.jpg").read_bytes()
    assert photo == (joined.folder / "photo.JPG").read_bytes()
    assert json.loads((root / "tables/errors/step-5.json").read_text()) == {
        "columns": ["x", "y", "z"],
        "data": [[1, None, "a"], [2, "inf", None]],
    }
    assert json.loads((root / "tables/counts.json").read_text()) == {
        "columns": ["n", "ok"],
        "data": [[1, True], [2, False]],
    }
    assert (root / "notes/said/step-1.txt").read_text() == "first"


@given(
    st.sampled_from([(), (1,), (3,), (4,)]).flatmap(
        lambda channels: arrays.arrays(
            np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), *map(st.just, channels))
        )
    )
)
def test_a_png_has_the_pixels_of_the_array(pixels: np.ndarray) -> None:
    image = Image.open(io.BytesIO(png_of(pixels)))
    assert np.array_equal(np.asarray(image).reshape(pixels.shape), pixels)
    floats = Image.open(io.BytesIO(png_of(pixels / np.float32(255))))
    assert np.array_equal(np.asarray(floats).reshape(pixels.shape), pixels)


def test_mistakes_are_raised_and_record_nothing(joined: Joined) -> None:
    out, _ = joined.run(
        "import numpy as np, radt\n"
        "with radt.Run() as run:\n"
        f"    for call in {list(MISTAKES)}:\n"
        "        try: eval(call)\n"
        "        except Exception as error: print(type(error).__name__, error)\n"
    )
    for line, (call, said) in zip(out.splitlines(), MISTAKES.items(), strict=True):
        assert line.startswith(said), call
    assert list(joined.run_dir.artifacts.iterdir()) == []
