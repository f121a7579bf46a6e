"""Command line of `train.py`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from study.data import PUBLISHED, Data, Place, Sizes
from study.models import Model

_LR, _RECOMMENDER_LR = 0.05, 0.1


@dataclass(frozen=True, slots=True)
class Options:
    """What to train, on what, and for how long.

    Attributes:
        place: The data set.
        sizes: How large it is; of files only ``pixels`` counts.
        samples: Training samples of an epoch; None for all.
        validation_samples: Validation samples of an epoch; None for the share that training takes.
        max_rows: Rows of the recommender's largest tables.
    """

    model: Model
    place: Place
    sizes: Sizes
    batch_size: int
    epochs: int
    samples: int | None
    validation_samples: int | None
    lr: float
    seed: int
    workers: int
    threads: int | None
    device: torch.device
    max_rows: int
    log_every: int
    amp: bool
    compile: bool
    timm: bool


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; exits with code 2 and a message where it makes no sense."""
    parser = _parser()
    given = parser.parse_args(arguments)
    model = Model(given.model)
    try:
        place = _place(model, given.data)
        sizes = _sizes(place, given)
    except ValueError as error:
        parser.error(str(error))
    return Options(
        model=model,
        place=place,
        sizes=sizes,
        batch_size=given.batch_size,
        epochs=given.epochs,
        samples=given.samples_per_epoch,
        validation_samples=given.validation_samples,
        lr=given.lr or (_LR if model.sees_images else _RECOMMENDER_LR),
        seed=given.seed,
        workers=given.workers,
        threads=given.threads,
        device=torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu")),
        max_rows=given.max_rows,
        log_every=given.log_every,
        amp=given.amp,
        compile=given.compile,
        timm=given.timm,
    )


def _place(model: Model, text: str | None) -> Place:
    place = Place.parse(text or (Data.CIFAR10 if model.sees_images else Data.CLICKS))
    if model.sees_images == (place.data is Data.CLICKS):
        raise ValueError(f"{model} cannot be trained on {place.data}")
    return place


def _sizes(place: Place, given: argparse.Namespace) -> Sizes:
    names = ("train", "validation", "classes", "pixels")
    changed = {name: value for name in names if (value := getattr(given, name)) is not None}
    return replace(PUBLISHED[place.data], **changed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Train one model of the collocation study.")
    add = parser.add_argument
    add("--model", choices=[str(one) for one in Model], default=str(Model.RESNET26))
    names = ", ".join(Data)
    add("--data", metavar="NAME[=FOLDER]", help=f"{names}; generated unless a folder has its files")
    add("--batch-size", type=_count, default=128)
    add("--epochs", type=_count, default=3, help="the first one is warm-up")
    add("--samples-per-epoch", type=_count, help="training samples of an epoch; all if left out")
    add("--validation-samples", type=_count, help="the share that training takes if left out")
    add("--lr", type=float, help="learning rate: 0.05, of the recommender 0.1")
    add("--seed", type=int, default=0, help="of weights, generated data and their order")
    add("--workers", type=int, default=4, help="processes that make batches; 0 for none")
    add("--threads", type=_count, help="CPU threads of PyTorch")
    add("--device", help="cuda if there is one, else cpu")
    add(
        "--max-rows",
        type=_count,
        default=10_000_000,
        help="of the recommender's tables",
    )
    add(
        "--log-every",
        type=_count,
        default=20,
        metavar="STEPS",
        help="between losses recorded",
    )
    add("--amp", action="store_true", help="bfloat16 where PyTorch thinks it safe")
    add("--compile", action="store_true", help="torch.compile")
    add("--timm", action="store_true", help="timm's model instead of ours")
    sizes = parser.add_argument_group("size of generated data, as published if left out")
    for name, meaning in (
        ("train", "samples for training"),
        ("validation", "samples for validation"),
        ("classes", "of images"),
        ("pixels", "height and width of images; also of files in folders"),
    ):
        sizes.add_argument(f"--{name}", type=_count, help=meaning)
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"1 or more, not {text}")
    return count
