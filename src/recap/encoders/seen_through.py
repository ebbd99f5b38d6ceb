"""What an encoder's tokens depend on beside its weights."""

from typing import Any

UNSEEN = ("hidden_act", "layer_norm_eps", "num_attention_heads", "rope_theta")
"""Of an encoder's configuration, what changes its tokens and leaves its weights as they are."""


def seen_through(encoder: Any) -> dict[str, Any]:
    """What changes an encoder's tokens and cannot be seen in its weights; DRA's has less of it."""
    config = getattr(getattr(encoder, "model", None), "config", None)
    known = {key: getattr(config, key, None) for key in UNSEEN}
    return {
        "mean": [round(v, 6) for v in encoder.mean.flatten().tolist()],
        "std": [round(v, 6) for v in encoder.std.flatten().tolist()],
        **{key: value for key, value in known.items() if value is not None},
    }
