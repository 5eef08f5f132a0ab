"""Fine-tuning: the pre-trained set encoder, trained with the labels; the backbone stays frozen."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property

from clipset.errors import ProbeError
from clipset.model.encoder import SetEncoder
from clipset.probes.base import Selection
from clipset.probes.transformer import TransformerProbe, TransformerSettings
from clipset.training.joint import JointPretraining

JOINT_BATCH_SIZE = 128  # videos in a batch of joint pre-training, at most


class FinetuneProbe(TransformerProbe):
    """As the transformer probe, but from the pre-trained model; so are the clips in order."""

    kind = "finetune"

    def search(self) -> Selection:
        """The settings name joint pre-training, which the transformer probe does not have."""
        selection, weight = super().search(), self.setup.config.training.joint_weight
        return replace(selection, settings=replace(selection.settings, joint_weight=weight))

    def select_ordered_weight(self, settings: TransformerSettings) -> float:  # noqa: ARG002
        """That of a random start: pre-training knows the validation videos, and looks too good."""
        if len(self.ordered_weights) == 1:
            return self.ordered_weights[0]
        if self.setup.labels_seed not in self.setup.ordered_weights:
            TransformerProbe(self.setup, "backbone").search()
        return self.setup.ordered_weights[self.setup.labels_seed]

    def make_encoder(self) -> SetEncoder:
        return copy.deepcopy(self.setup.encoder())

    @cached_property
    def joint(self) -> JointPretraining | None:
        """Pre-training that continues beside fine-tuning, if it has a weight."""
        setup = self.setup
        if not setup.config.training.joint_weight or setup.model is None:
            return None
        if setup.task.pretraining is None:
            raise ProbeError(
                "joint_weight continues pre-training, whose settings are unknown here; "
                "give make_task its settings, or set evaluate.training.joint_weight=0"
            )
        return setup.task.pretraining.open(setup.model, batch_size=JOINT_BATCH_SIZE)
