"""A tiny residual network for DRA."""

import torch
import transformers

from recap.encoders.conversion import RESNET_CONFIG

TINY = {
    **RESNET_CONFIG,
    "embedding_size": 8,
    "hidden_sizes": [8, 8, 12, 16],
    "depths": [1, 1, 1, 1],
}
PX = 96  # three by three patches, and two by two at half the size


def tiny_network():
    """A random one: four stages of one block, sixteen channels at the end."""
    config = transformers.ResNetConfig(**TINY)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.ResNetModel(config)
