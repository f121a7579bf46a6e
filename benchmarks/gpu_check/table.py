"""The claims, in the order in which they are checked."""

from benchmarks.gpu_check.model import Check

_HERE = "benchmarks.gpu_check"

#: All limits together are 10 minutes.
CHECKS = (
    Check(
        "devices",
        "CUDA's ordinals and every form of CUDA_VISIBLE_DEVICES mean the devices that PyTorch has",
        30,
        f"{_HERE}.devices:devices",
    ),
    Check(
        "listeners",
        "`smi` and `gpm` show what loads of known size do",
        50,
        f"{_HERE}.listeners:listeners",
    ),
    Check(
        "dcgm",
        "`dcgm` shows what loads of known size do",
        50,
        f"{_HERE}.listeners:dcgm",
    ),
    Check(
        "energy",
        "The energy counter agrees with power × time",
        25,
        f"{_HERE}.listeners:energy",
    ),
    Check(
        "naive",
        "Two rows share the GPU naively, side by side",
        35,
        f"{_HERE}.sharing:naive",
    ),
    Check(
        "mps",
        "MPS rows are clients of radt's daemon, with their percentage",
        35,
        f"{_HERE}.sharing:mps",
    ),
    Check(
        "mig",
        "MIG rows have instances of their own, which are gone afterwards",
        40,
        f"{_HERE}.sharing:mig",
    ),
    Check(
        "advise",
        "`radt advise` recommends how to share the GPU after a short study",
        60,
        f"{_HERE}.sharing:advise",
    ),
    Check(
        "auto",
        "Rows with the workload `auto` run together, sooner than one after the other",
        120,
        f"{_HERE}.sharing:auto",
    ),
    Check(
        "shared-loader",
        "`SharedLoader` gives all consumers the batches of the plain loader, on the device",
        35,
        f"{_HERE}.techniques:shared_loader",
    ),
    Check(
        "job",
        "`Job`, saved and resumed, equals plain training",
        20,
        f"{_HERE}.techniques:job",
    ),
    Check(
        "preemption",
        "Urgent work gets the device within a step, and training equals plain training",
        30,
        f"{_HERE}.techniques:preemption",
    ),
    Check(
        "offload",
        "`offload` trains in segments, and equals plain training",
        30,
        f"{_HERE}.techniques:offloading",
    ),
    Check(
        "validation",
        "`OverlappedValidator` gives the metrics of serial validation, and training is unchanged",
        35,
        f"{_HERE}.techniques:validation",
    ),
)
