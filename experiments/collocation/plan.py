"""Write the experiment files of the study: ``python plan.py`` writes all of them beside itself.

Which models are trained together, on what and how is that of chapter 4 of T. Robroek, Resourceful
Learning: Training More Models with Fewer Resources, 2024: tables 4.1, 4.3 and 4.4, section 4.3.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from study.data import Data
from study.models import Model

HEAD = ("Experiment", "Workload", "Status", "Run", "Devices", "Collocation", "Model", "Data")
TAIL = ("File", "Params")
NAIVE, MPS = "-", "MPS"
UNIFORM, MIXED, RECOMMENDER = "collocation", "collocation-mixed", "collocation-recommender"
CPU, CPU_EPOCHS = "collocation-cpu", 3
#: How many models are trained at once: as many as MIG profiles have room for.
DEGREES = (1, 2, 3, 7)


@dataclass(frozen=True, slots=True)
class Row:
    """A run. ``Status`` and ``Run`` are left to radt."""

    experiment: str
    workload: str
    collocation: str
    model: Model
    data: Data
    params: str
    device: str = "0"

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            *(self.experiment, self.workload, "", "", self.device, self.collocation),
            *(self.model, self.data, "train.py"),
            f"--model {{Model}} --data {{Data}} {self.params}",
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A model and what it is trained on.

    Attributes:
        samples: Training samples of an epoch; None for all that there are.
    """

    name: str
    model: Model
    data: Data
    batch_size: int
    samples: int | None = None

    def row(
        self, experiment: str, workload: str, collocation: str, epochs: int, *, extra: str = ""
    ) -> Row:
        """It as a run of a workload."""
        samples = "" if self.samples is None else f" --samples-per-epoch {self.samples}"
        params = f"--batch-size {self.batch_size} --epochs {epochs}{samples}{extra}"
        return Row(experiment, workload, collocation, self.model, self.data, params)


# One warm-up epoch and two that count. Of ImageNet64 an epoch takes a tenth, of ImageNet a
# fiftieth: what is measured does not change with the number of steps.
UNIFORM_EPOCHS = 3
_TENTH, _FIFTIETH = 128_116, 25_623
UNIFORM_CASES = (
    Case("resnet26-b32", Model.RESNET26, Data.CIFAR10, 32),
    Case("resnet26", Model.RESNET26, Data.CIFAR10, 128),
    Case("efficientnet-small", Model.EFFICIENTNET, Data.CIFAR10, 128),
    Case("resnet50-b32", Model.RESNET50, Data.IMAGENET64, 32, _TENTH),
    Case("resnet50", Model.RESNET50, Data.IMAGENET64, 128, _TENTH),
    Case("efficientnet-medium", Model.EFFICIENTNET, Data.IMAGENET64, 128, _TENTH),
    Case("resnet152-b32", Model.RESNET152, Data.IMAGENET, 32, _FIFTIETH),
    Case("cait", Model.CAIT, Data.IMAGENET, 128, _FIFTIETH),
    # These two had no room beside each other on 40 GB: OOM is the result.
    Case("efficientnet-large", Model.EFFICIENTNET, Data.IMAGENET, 128, _FIFTIETH),
    Case("resnet152", Model.RESNET152, Data.IMAGENET, 128, _FIFTIETH),
)

# Here the lengths of the runs matter to each other: of each data set an epoch takes a tenth.
MIXED_EPOCHS = 2
SMALL = Case("S", Model.RESNET26, Data.CIFAR10, 128, 5_000)
MEDIUM = Case("M", Model.RESNET50, Data.IMAGENET64, 128, _TENTH)
LARGE = Case("L", Model.RESNET152, Data.IMAGENET, 32, _TENTH)
#: Table 4.3.
MIXES = (
    (SMALL, MEDIUM),
    (SMALL, SMALL, MEDIUM),
    (SMALL, SMALL, MEDIUM, MEDIUM),
    (SMALL, SMALL, SMALL, MEDIUM),
    (SMALL, MEDIUM, MEDIUM, MEDIUM),
    (SMALL, LARGE),
    (MEDIUM, LARGE),
)

# A fiftieth of a training block of 102,400 batches, and of an epoch. ResNet152 takes a fifth of the
# recommender's time (table 4.4), so it gets five times as many epochs to be there all the while.
RECOMMENDING = Case("recommender", Model.RECOMMENDER, Data.CLICKS, 2_048, 2_048 * 2_048)
BESIDE = Case("resnet152", Model.RESNET152, Data.IMAGENET, 32, _FIFTIETH)
RECOMMENDER_EPOCHS, BESIDE_EPOCHS = 2, 10


@dataclass(frozen=True, slots=True)
class Profiles:
    """What a card calls its MIG profiles: memory in GB by compute slices."""

    memory_gb: Mapping[int, int]

    def __getitem__(self, slices: int) -> str:
        return f"{slices}g.{self.memory_gb[slices]}gb"

    def part(self, slices: int) -> str:
        """A compute instance of so many slices in the one that is the whole GPU."""
        return f"{slices}c.{self[7]}"


#: NVIDIA MIG User Guide, tables of supported profiles; an A100 with 80 GB has those of an H100.
A100_40GB = Profiles({1: 5, 2: 10, 3: 20, 4: 20, 7: 40})
H100_80GB = Profiles({1: 10, 2: 20, 3: 40, 4: 40, 7: 80})
H200_141GB = Profiles({1: 18, 2: 35, 3: 71, 4: 71, 7: 141})

#: Section 4.3.4: slices of the instances, and how many models are trained, each on its own.
_INSTANCES = ((7, 1), (4, 1), (3, 2), (2, 3), (1, 7))
#: Table 4.3.
_MIXED_SLICES = {SMALL.name: 1, MEDIUM.name: 2, LARGE.name: 4}


def uniform() -> Iterator[Row]:
    """Copies of a model, naive and under MPS."""
    for case in UNIFORM_CASES:
        for degree in DEGREES:
            for collocation, way in ((NAIVE, "naive"), (MPS, "mps")):
                label = f"{case.name} {way} {degree}x"
                yield from degree * [case.row(UNIFORM, label, collocation, UNIFORM_EPOCHS)]


def mixed() -> Iterator[Row]:
    """Models of different sizes, each alone, naive and under MPS."""
    for case in (SMALL, MEDIUM, LARGE):
        yield case.row(MIXED, case.name, NAIVE, MIXED_EPOCHS)
    for mix in MIXES:
        for collocation, way in ((NAIVE, "naive"), (MPS, "mps")):
            for case in mix:
                yield case.row(MIXED, f"{mix_name(mix)} {way}", collocation, MIXED_EPOCHS)


def recommending() -> Iterator[Row]:
    """A recommender and a ResNet152, each alone, naive and under MPS."""
    both = ((RECOMMENDING, RECOMMENDER_EPOCHS), (BESIDE, BESIDE_EPOCHS))
    for case, epochs in both:
        yield case.row(RECOMMENDER, case.name, NAIVE, epochs)
    for collocation, way in ((NAIVE, "naive"), (MPS, "mps")):
        for case, epochs in both:
            yield case.row(RECOMMENDER, f"both {way}", collocation, epochs)


def mig(profiles: Profiles) -> Iterator[Row]:
    """All three on MIG instances of a card."""
    for case in UNIFORM_CASES:
        for slices, degree in _INSTANCES:
            label = f"{case.name} {slices}g {degree}x"
            yield from degree * [case.row(UNIFORM, label, profiles[slices], UNIFORM_EPOCHS)]
    for mix in MIXES:
        for case in mix:
            profile = profiles[_MIXED_SLICES[case.name]]
            yield case.row(MIXED, f"{mix_name(mix)} mig", profile, MIXED_EPOCHS)
    for case, slices, epochs in (
        (RECOMMENDING, 3, RECOMMENDER_EPOCHS),
        (BESIDE, 4, BESIDE_EPOCHS),
    ):
        yield case.row(RECOMMENDER, "both mig", profiles.part(slices), epochs)


def cpu() -> Iterator[Row]:
    """Everything in small, on CPUs: copies, a mix, and a recommender beside a ResNet26."""
    small = Case("S", Model.RESNET26, Data.CIFAR10, 32, 256)
    medium = Case("M", Model.RESNET50, Data.IMAGENET64, 32, 128)
    clicks = Case("R", Model.RECOMMENDER, Data.CLICKS, 256, 6_144)
    for cases in (
        *((small,), (small, small), (small, small, small)),
        *((medium,), (small, medium), (clicks,), (small, clicks)),
    ):
        for case in cases:
            extra = f" --validation-samples {2 * case.batch_size} --workers 0 --threads 1"
            if case.data is Data.CLICKS:
                extra += " --max-rows 10000"
            if case.data is Data.IMAGENET64:
                extra += " --classes 10 --pixels 32"
            row = case.row(CPU, mix_name(cases), NAIVE, CPU_EPOCHS, extra=extra)
            yield replace(row, device="cpu")


def mix_name(mix: Iterable[Case]) -> str:
    """``S+M+M``."""
    return "+".join(case.name for case in mix)


def table(comments: Sequence[str], rows: Iterable[Row]) -> str:
    """An experiment file with aligned columns."""
    lines = [(*HEAD, *TAIL), *(row.cells for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = (
        ", ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    return "\n".join((*(f"# {comment}" for comment in comments), *aligned)) + "\n"


def files() -> dict[str, str]:
    """Names and contents of all experiment files."""
    on_mig = "The study on MIG instances of a card with"
    return {
        "uniform.csv": table(
            [
                "Copies of one model, 1, 2, 3 and 7 at once, naive and under MPS (README.md).",
                "Runs on GPU 0: cp uniform.csv demo.csv && radt demo.csv",
            ],
            uniform(),
        ),
        "mixed.csv": table(
            [
                "Small (S), medium (M) and large (L) models side by side, naive and under MPS.",
                "Runs on GPU 0: cp mixed.csv demo.csv && radt demo.csv",
            ],
            mixed(),
        ),
        "recommender.csv": table(
            [
                "A recommender, which takes 28 GB of memory, and a ResNet152 on the same GPU.",
                "Runs on GPU 0: cp recommender.csv demo.csv && radt demo.csv",
            ],
            recommending(),
        ),
        "mig.csv": table([f"{on_mig} 40 GB: A100."], mig(A100_40GB)),
        "mig-80gb.csv": table([f"{on_mig} 80 GB: A100, H100."], mig(H100_80GB)),
        "mig-141gb.csv": table([f"{on_mig} 141 GB: H200."], mig(H200_141GB)),
        "cpu.csv": table(
            [
                "The study in small, for two CPU cores: cp cpu.csv demo.csv && radt demo.csv",
                "S: ResNet26, M: ResNet50, R: recommender; all side by side with a + between.",
            ],
            cpu(),
        ),
    }


def main() -> None:
    """Write them, without statuses: what has been run is forgotten."""
    for name, text in files().items():
        (Path(__file__).parent / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
