"""Train on JPEGs whose decoding takes longer than the training, with an own loader or a shared one.

The images are generated: 256×256 pixels, about 23 KB each. They are written once, into ``data``
beside this script, and used again by later runs. The crop depends on the image only, and the order
on the epoch, so that all arms train on the same pixels in the same order.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import convnet, mobilenet
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import radt
from radt.loaders import SharedLoader

CLASSES = 10
STORED_PX, TRAINED_PX = 256, 224
DATA = Path(__file__).resolve().parent / "data"
NAME = "jpegs"


@dataclass(frozen=True)
class Size:
    """Images of an epoch, samples of a batch, and worker processes of all loaders together."""

    images: int
    batch: int
    workers: int


SIZES = {"tiny": Size(96, 32, 1), "small": Size(1_024, 64, 4), "large": Size(10_240, 128, 8)}


def write_images(count: int) -> Path:
    """Return a folder with that many JPEGs; write them if they are missing.

    Of several processes, one writes; a writer that is killed leaves nothing that others use.
    """
    folder = DATA / f"{count}"
    DATA.mkdir(exist_ok=True)
    with (DATA / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            partial = DATA / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for number in range(count):
                drawn(number).save(partial / f"{number}.jpg", quality=85)
            partial.rename(folder)
    return folder


def drawn(number: int) -> Image.Image:
    """Return an image: a blob whose place and colour depend on the class, on texture and noise."""
    chance, label = np.random.default_rng(number), number % CLASSES
    rows, columns = np.mgrid[0:STORED_PX, 0:STORED_PX] / STORED_PX
    angle = 2 * np.pi * label / CLASSES
    place = 0.5 + 0.3 * np.cos(angle), 0.5 + 0.3 * np.sin(angle)
    blob = np.exp(-((rows - place[0]) ** 2 + (columns - place[1]) ** 2) / 0.02)
    colour = np.array([label, CLASSES - label, CLASSES / 2]) / CLASSES
    texture = np.kron(chance.normal(0, 0.1, (32, 32, 3)), np.ones((8, 8, 1)))
    noise = chance.normal(0, 0.035, (STORED_PX, STORED_PX, 1))
    image = np.clip(blob[..., None] * colour + 0.3 + texture + noise, 0, 1)
    return Image.fromarray((image * 255).astype(np.uint8))


class Jpegs(Dataset[tuple[Tensor, int, int]]):
    """JPEGs of a folder: a random crop, scaled to 224×224 bytes, its class, its number.

    The crop has 50 to 100 % of the image's area, as is usual for ImageNet.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, int, int]:
        chance = np.random.default_rng(number)
        edge = int(STORED_PX * chance.uniform(0.5, 1) ** 0.5)
        left, top = (int(at) for at in chance.integers(0, STORED_PX - edge + 1, 2))
        with Image.open(self.folder / f"{number}.jpg") as image:
            cropped = image.resize(
                (TRAINED_PX, TRAINED_PX),
                Image.Resampling.BICUBIC,
                (left, top, left + edge, top + edge),
            )
        pixels = np.asarray(cropped)[:, :: chance.choice((-1, 1))]
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), number % CLASSES, number


def make_loader(size: str = "small", workers: int | None = None) -> DataLoader[Any]:
    """Return the loader: that of one process, or the one that a server shares out."""
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores
    images, batch = SIZES[size].images, SIZES[size].batch
    count = SIZES[size].workers if workers is None else workers
    return DataLoader(
        Jpegs(write_images(images), images),
        batch,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        num_workers=count,
        persistent_workers=count > 0,
    )


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Iterable[Any]]:
    """Give the loader of the arm."""
    time.sleep(args.start_after)
    if args.loader == "own":
        yield make_loader(args.size, args.workers)
        return
    arguments = {} if args.size == "small" else {"size": args.size}
    device = "cuda" if args.on_gpu else None
    with SharedLoader(
        make_loader, name=NAME, arguments=arguments, join=args.join, device=device
    ) as loader:
        yield loader


@dataclass
class Seen:
    """Which images an epoch gave, and in which order."""

    numbers: set[int]
    count: int = 0
    order: int = 0

    def add(self, numbers: Tensor) -> None:
        """Note the images of a batch."""
        numbers = numbers.cpu()
        self.numbers.update(numbers.tolist())
        self.count += len(numbers)
        self.order = zlib.crc32(numbers.numpy().tobytes(), self.order)

    def metrics(self, images: int) -> dict[str, float]:
        """Return images that never came, those that came again, and a checksum of the order."""
        missing, twice = images - len(self.numbers), self.count - len(self.numbers)
        return {"missing": missing, "twice": twice, "order": self.order}


def network(args: argparse.Namespace) -> nn.Module:
    """Return the network: for a GPU a MobileNet, for CPUs one that costs less than the decoding."""
    heavy = args.network == "heavy"
    if args.size == "large":
        return mobilenet(width=4.0 if heavy else 1.0, classes=CLASSES)
    return convnet(stride=2 if heavy else 8, width=32 if heavy else 16, classes=CLASSES)


def train(args: argparse.Namespace) -> None:
    """Train and record."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = network(args).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    with radt.Run() as run, opened(args) as loader:
        run.log_param("device", str(device))
        for epoch in run.epochs(args.epochs):
            seen, number = Seen(set()), epoch
            for images, labels, numbers in run.batches(loader):
                seen.add(numbers)
                if isinstance(loader, SharedLoader):
                    number = loader.epoch + 1  # for who came late it is not the first one
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    scores = model(images.to(device, non_blocking=True))
                loss = functional.cross_entropy(scores.float(), labels.to(device))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                step += 1
                if step % args.log_every == 0:  # each value makes the CPU wait for the GPU
                    run.log_metric("loss", loss.item(), step)
                if step == args.die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            for name, value in seen.metrics(SIZES[args.size].images).items():
                run.log_metric(name, value, number)
            print(f"epoch {epoch}/{args.epochs}  loss {loss.item():.3f}", flush=True)


def train_and_die(args: argparse.Namespace) -> None:
    """Train in another process, which kills itself; this one is the run, and ends well."""
    command = [sys.executable, *sys.argv, "--killed-at", "0", "--die-at", str(args.killed_at)]
    with radt.Run() as run:
        done = subprocess.run(command, env={**os.environ, "RADT_MODE": "off"}, check=False)
        run.log_param("killed at step", args.killed_at)
    if done.returncode != -signal.SIGKILL:
        sys.exit(f"expected an end by SIGKILL, got exit code {done.returncode}")


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--size", choices=SIZES, default="small")
    made.add_argument("--loader", choices=["own", "shared"], default="own")
    made.add_argument("--on-gpu", action="store_true", help="the shared loader's batches, once")
    made.add_argument("--workers", type=int, help="processes of an own loader")
    made.add_argument("--network", choices=["light", "heavy"], default="light")
    made.add_argument("--epochs", type=int, default=3)
    made.add_argument("--join", choices=["epoch", "window", "now"], default="window")
    made.add_argument("--start-after", type=float, default=0, help="seconds, for a late joiner")
    made.add_argument("--killed-at", type=int, default=0, help="step at which SIGKILL ends it")
    made.add_argument("--die-at", type=int, default=0, help=argparse.SUPPRESS)
    made.add_argument("--log-every", type=int, default=1, help="steps")
    return made


def main() -> None:
    """Run the arm that the options name."""
    args = parser().parse_args()
    write_images(SIZES[args.size].images)
    if args.killed_at:
        train_and_die(args)
    else:
        train(args)


if __name__ == "__main__":
    main()
