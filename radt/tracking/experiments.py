"""Which MLflow experiment a radt experiment is: a name, or the number of one that exists."""

from __future__ import annotations

import logging

from radt.tracking.mlflow_target import MlflowTarget
from radt.tracking.names import experiment_name
from radt.tracking.trouble import DeliveryError, Trouble

log = logging.getLogger(__name__)


def ensure_experiment(target: MlflowTarget, text: str) -> str:
    """The id of the MLflow experiment for the Experiment column's text; made if need be.

    A number is an id, as in the original radT; one that MLflow does not have is taken as a name,
    because a run is worth more than a precise complaint. An experiment that was deleted is
    restored: somebody is recording into it again, and MLflow keeps its name reserved.

    Raises:
        DeliveryError: MLflow refuses or cannot be reached.
    """
    if text.isascii() and text.isdigit():
        known = target.experiment_by_id(text)
        if known is not None:
            if not known.active:
                _restore(target, known.experiment_id, text)
            return known.experiment_id
        log.warning("MLflow has no experiment with id %s; %s is taken as a name", text, text)
    name = experiment_name(text)
    known = target.experiment_by_name(name)
    if known is None:
        try:
            return target.create_experiment(name)
        except DeliveryError as error:
            if error.trouble is not Trouble.REFUSED:
                raise
            known = target.experiment_by_name(name)  # somebody else was faster
            if known is None:
                raise
    if not known.active:
        _restore(target, known.experiment_id, name)
    return known.experiment_id


def _restore(target: MlflowTarget, experiment_id: str, name: str) -> None:
    log.warning("experiment %r had been deleted in MLflow; restored for a new run", name)
    target.restore_experiment(experiment_id)
