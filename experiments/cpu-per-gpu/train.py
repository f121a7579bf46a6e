"""Train a small network on images whose loading takes more time than the training itself.

Each image is decompressed, cropped, scaled, mirrored and normalised by a worker of the loader, as
those of ImageNet are. The images are generated: blobs whose place and colour depend on the class.
"""

from __future__ import annotations

import argparse
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import radt

CLASSES = 10
#: Different images that are kept, compressed; an epoch takes them again and again.
KEPT = 64


@dataclass(frozen=True)
class Size:
    """Edges of the stored and of the trained images in pixels, and the width of the network."""

    stored: int
    trained: int
    width: int


SIZES = {"small": Size(192, 32, 8), "large": Size(384, 224, 32)}


class CompressedImages(Dataset[tuple[Tensor, int]]):
    """So many images of ten classes; all there is to do for one is done when it is asked for."""

    def __init__(self, size: Size, samples: int, seed: int) -> None:
        self.size, self.samples, self.seed = size, samples, seed
        chance = np.random.default_rng(seed)
        self.labels = [number % CLASSES for number in range(KEPT)]
        self.stored = [zlib.compress(self._drawn(label, chance).tobytes()) for label in self.labels]

    def _drawn(self, label: int, chance: np.random.Generator) -> np.ndarray:
        edge = self.size.stored
        rows, columns = np.mgrid[0:edge, 0:edge] / edge
        angle = 2 * np.pi * label / CLASSES
        place = 0.5 + 0.3 * np.cos(angle), 0.5 + 0.3 * np.sin(angle)
        blob = np.exp(-((rows - place[0]) ** 2 + (columns - place[1]) ** 2) / 0.02)
        colour = np.array([label, CLASSES - label, CLASSES / 2]) / CLASSES
        noise = chance.normal(0, 0.05, (edge, edge, 3))
        image = np.clip(blob[..., None] * colour + 0.2 + noise, 0, 1)
        return (image * 255).astype(np.uint8)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        number = index % KEPT
        edge, trained = self.size.stored, self.size.trained
        raw = np.frombuffer(bytearray(zlib.decompress(self.stored[number])), np.uint8)
        image = torch.from_numpy(raw).view(edge, edge, 3).permute(2, 0, 1).float() / 255
        chance = np.random.default_rng((self.seed, index))
        crop = int(chance.integers(edge * 3 // 4, edge + 1))
        top, left = (int(at) for at in chance.integers(0, edge - crop + 1, 2))
        image = image[:, top : top + crop, left : left + crop]
        image = functional.interpolate(
            image[None], (trained, trained), mode="bilinear", antialias=True
        )[0]
        if chance.random() < 0.5:
            image = image.flip(2)
        return (image - image.mean()) / (image.std() + 1e-6), self.labels[number]


def network(width: int) -> nn.Module:
    """Three convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * width, CLASSES),
    )


def main() -> None:
    """Train and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--workers", type=int, default=1, help="processes that load")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=0, help="in an epoch; 0 by the size")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = SIZES[args.size]
    samples = args.samples or (1_536 if args.size == "small" else 8_192)
    loader = DataLoader(
        CompressedImages(size, samples, args.seed),
        args.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(args.seed),
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        pin_memory=device == "cuda",
    )
    model = network(size.width).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    with radt.Run() as run:
        run.log_param("device", device)
        step = 0
        for epoch in run.epochs(args.epochs):
            for images, labels in run.batches(loader):
                scores = model(images.to(device, non_blocking=True))
                loss = functional.cross_entropy(scores, labels.to(device, non_blocking=True))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                run.log_metric("loss", loss.item(), step)
                step += 1
            print(f"epoch {epoch}/{args.epochs}  loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
