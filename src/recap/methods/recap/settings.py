"""ReCAP's own settings, and the presets that they start from."""

from typing import Annotated, Any, Literal

from pydantic import Field

from recap.config import Section, Settings

Preset = Literal["recap", "fast", "paper"]
Conditioning = Literal["gated", "bounded", "unbounded", "static", "tokens"]
Upsample = Literal["centres", "corners"]


class ModelSettings(Section):
    """The head on top of the encoder (method, steps 2 to 6)."""

    write_back: bool = False
    """Adapters write into the encoder (the paper's reading); otherwise they sit at its side."""
    bottleneck: Annotated[int, Field(ge=1)] | None = None
    """Token width C; none means min(768, encoder width)."""
    adapter_start: Literal["random", "principal", "by_teacher"] = "random"
    """Few-shot, side adapters: where they start; `principal` is at the directions in which the
    support's tokens differ most, `by_teacher` does that where masks teach a single branch."""
    conditioning: Conditioning = "gated"
    eta: Annotated[float, Field(gt=0)] = 0.05
    logit_scale: Annotated[float, Field(gt=0)] = 100.0
    top_k: Annotated[float, Field(gt=0, le=1)] = 0.10
    """Share of the patches whose mean is the image score."""
    upsample: Upsample = "centres"
    """The places of patch values in the map: at the patch centres (lines up with the image), or
    stretched so that the outer patches touch the border (`align_corners=True`, as MVFA does)."""
    zero_shot_score: Literal["prototypes", "class_tokens"] = "prototypes"
    """What image scores of zero-shot detectors rest on: their prototypes; or which way class tokens
    of abnormal images differ in the source domains. Maps are the prototypes' either way."""
    layer_fusion: Literal["learned", "uniform"] = "learned"
    """Weights of the layers in scores and maps: trained, or all alike."""
    map_logit_scale: Annotated[float, Field(gt=0)] | None = None
    """α of maps when scoring; none means `logit_scale`, which training always uses."""
    map_blur_px: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of a Gaussian over the patch values between which maps interpolate."""
    map_edge_px: Annotated[float, Field(ge=0)] = 0.0
    """Maps follow the image's edges: half the width of the window in which they do; 0 is none."""
    branches: Literal["both", "taught"] = "both"
    """A seg branch for maps and a det branch for scores; or a single one for both, taught
    by each image as well as it can: by its mask or, where there are no masks, by its label."""
    map_top_k: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the patches whose mean is the image score of a single branch taught by masks."""
    appearance_weight: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the image as a whole in the score of a single branch taught by labels."""


class MemorySettings(Section):
    """The memory of normal patches (method, step 7)."""

    weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """λ of the branch fusion; zero-shot detectors have no memory and use 0."""
    score: Literal["half", "standardised"] = "half"
    """Distances in the image score of a single branch taught by labels: halved, as published; or
    against those of normal images to each other, the mean of the `model.map_top_k` largest."""
    coreset: Annotated[int, Field(ge=1)] | None = None
    """At most this many rows per branch and layer, chosen by greedy k-centre."""


class TrainingSettings(Section):
    """The training of a detector."""

    epochs: Annotated[int, Field(ge=1)] = 50
    batch_size: Annotated[int, Field(ge=1)] = 8
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """None means 1e-3 few-shot and 5e-4 zero-shot."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Longest gradient of a step; none means any length."""
    augment: bool = True
    """Few-shot: eleven fixed copies of every support image."""
    made_up_lesions: bool = False
    """Where no mask is given, lesions that are made up on the normal images teach instead: the
    adapters of a detector of normal images alone, in which nothing is trained otherwise; and, with
    `model.branches = "taught"`, a branch for maps beside the one for scores that labels teach."""
    separation_margin: Annotated[float, Field(ge=-1, le=1)] = 0.0
    separation_weight: Annotated[float, Field(ge=0)] = 0.1
    source_split: Literal["pool", "test"] = "pool"
    """Zero-shot sources; `test` reproduces MVFA's protocol and is labelled as such."""
    cache_gb: Annotated[float, Field(ge=0)] = 8.0
    """Frozen tokens are computed once and kept up to this size; above it they are recomputed."""


class RecapSettings(Settings):
    """Everything that decides what a fitted detector of ours is."""

    method: str = "recap"
    preset: Preset = "fast"
    """The preset that the rest started from; the defaults of this class are those of `fast`."""
    model: ModelSettings = ModelSettings()
    memory: MemorySettings = MemorySettings()
    training: TrainingSettings = TrainingSettings()


# `fast` is the defaults above. `paper` is the published recipe, plus one thing that it does not
# mention: without a bound, single gradients seventy times as long as the rest, which come back
# through the frozen blocks, end the training of small encoders within ten epochs.
PRESETS: dict[str, dict[str, Any]] = {
    "fast": {},
    # One branch for maps and scores, softer and smoother maps, a smaller head, fewer epochs: each
    # was chosen on support pools alone; docs/explanation/recipe.md says what each does.
    "recap": {
        "model": {
            "branches": "taught",
            "bottleneck": 128,
            "adapter_start": "by_teacher",
            "map_logit_scale": 10.0,
            "map_blur_px": 6.0,
            "map_edge_px": 10.0,
            "zero_shot_score": "class_tokens",
            "appearance_weight": 1 / 3,
        },
        "memory": {"score": "standardised", "coreset": 256},
        "training": {"epochs": 20, "made_up_lesions": True},
    },
    "paper": {
        "model": {"write_back": True, "upsample": "corners"},
        "training": {"batch_size": 1, "clip_norm": 1.0},
    },
}
