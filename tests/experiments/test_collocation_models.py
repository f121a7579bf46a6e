"""Models of the collocation study: as large as published, of the right shape, trainable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

FOLDER = Path(__file__).parents[2] / "experiments" / "collocation"
sys.path.insert(0, str(FOLDER))  # as for `python train.py`

from study.models import Model, image_model, parameter_count, recommender  # noqa: E402
from study.recommender import CRITEO_ROWS, DENSE_FEATURES, Recommender, capped  # noqa: E402
from study.resnet import STAGES, ResNet  # noqa: E402

IMAGES = [model for model in Model if model.sees_images]

#: For 1,000 classes at 224×224. ResNet-50, ResNet-152 and EfficientNetV2-S: torchvision's table of
#: weights. All five: timm 1.0.31, counted of the models that `TIMM_NAMES` names.
PUBLISHED = {
    Model.RESNET26: 15_995_176,
    Model.RESNET50: 25_557_032,
    Model.RESNET152: 60_192_808,
    Model.EFFICIENTNET: 21_458_488,
    Model.CAIT: 11_956_264,
}


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("model", IMAGES)
def test_parameters_are_those_of_the_published_model(model: Model) -> None:
    with torch.device("meta"):
        assert parameter_count(image_model(model, 1000, 224)) == PUBLISHED[model]


def test_few_classes_make_only_the_last_layer_smaller() -> None:
    with torch.device("meta"):
        assert parameter_count(image_model(Model.RESNET26, 10, 32)) == 13_966_666


def test_the_recommender_has_24_billion_parameters_and_fits_40_gb_when_capped() -> None:
    with torch.device("meta"):
        whole, smaller = recommender(40_000_000), recommender(10_000_000)
    assert parameter_count(whole) == pytest.approx(24e9, rel=0.005), "table 4.1 of the study"
    assert parameter_count(smaller) * 4 == pytest.approx(27.7e9, rel=0.001)
    assert capped(CRITEO_ROWS, 100)[:6] == (100, 100, 100, 100, 100, 3)


def _step(model: nn.Module, *inputs: Tensor) -> tuple[Tensor, set[str]]:
    """Scores, and the parameters that get no gradient by them."""
    model.train()
    scores: Tensor = model(*inputs)
    # Each score weighs differently: what is added to all of them would cancel out.
    weights = torch.arange(1.0, scores.numel() + 1).reshape(scores.shape)
    (scores * weights).square().mean().backward()
    without = {
        name
        for name, value in model.named_parameters()
        if value.grad is None or not value.grad.to_dense().any()
    }
    return scores.detach(), without


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("model", IMAGES)
def test_a_step_of_training_reaches_every_layer(model: Model) -> None:
    torch.manual_seed(0)
    made = image_model(model, 10, 32)
    for name, value in made.named_parameters():
        if not value.any() or ".scale." in name:  # branches that begin as nothing hide others
            nn.init.normal_(value)
    scores, without = _step(made, torch.randn(2, 3, 32, 32))
    assert scores.shape == (2, 10)
    assert torch.isfinite(scores).all()
    # Softmax does not see what is the same for all scores of a row: these get rounding, if that.
    assert without <= {name for name in without if "key.bias" in name or "before.bias" in name}


def test_a_step_of_the_recommender_is_about_the_rows_that_were_looked_up() -> None:
    torch.manual_seed(0)
    model = Recommender([50, 3])
    categories = torch.tensor([[7, 0], [7, 1], [9, 2]])
    scores, without = _step(model, torch.randn(3, DENSE_FEATURES), categories)
    assert scores.shape == (3,)
    assert without == set()
    gradient = model.tables[0].weight.grad
    assert gradient is not None
    assert gradient.is_sparse, "a dense one would be as large as the table"
    assert gradient.coalesce().indices().flatten().tolist() == [7, 9]


def test_any_size_of_image_passes_a_resnet_and_cait_says_what_it_wants() -> None:
    model = ResNet(STAGES[26], 10).eval()
    for pixels in (32, 50):
        assert model(torch.zeros(1, 3, pixels, pixels)).shape == (1, 10)
    with pytest.raises(ValueError, match="multiple of 16 pixels, not 40"):
        image_model(Model.CAIT, 10, 40)
