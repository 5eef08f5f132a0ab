"""Fine-tuning: the pre-trained set encoder, trained with the labels; the backbone stays frozen."""

from __future__ import annotations

import copy
from functools import cached_property

from clipset.errors import ProbeError
from clipset.probes.transformer import (
    SetClassifier,
    TransformerProbe,
    TransformerSettings,
)
from clipset.training.joint import JointPretraining

JOINT_BATCH_SIZE = 128  # videos in a batch of joint pre-training, at most


class FinetuneProbe(TransformerProbe):
    """The pre-trained model, with a learning rate of its own for the encoder."""

    kind = "finetune"

    def search_space(self) -> list[TransformerSettings]:
        config = self.setup.config.training
        return [
            TransformerSettings(learning_rate=rate, encoder_lr_scale=scale)
            for scale in config.encoder_lr_scales
            for rate in config.learning_rates
        ]

    def make_classifier(self) -> SetClassifier:
        return self.classifier_of(copy.deepcopy(self.setup.encoder()))

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
