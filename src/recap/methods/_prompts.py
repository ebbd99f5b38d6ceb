"""Text for the methods that have some: ensembles of sentences, and prompts that are learned.

Sentences about normal and abnormal images, for MVFA and APRIL-GAN: states × templates, as WinCLIP
introduced it: 7 normal and 5 abnormal states, 35 templates. The numbers are MVFA's, the words are
ours.

Learned prompts (CoOp), for MediCLIP and MadCLIP: vectors in place of words, around phrases that
stay. The text tower is run at every training step and is not needed afterwards: what a detector
keeps is one direction per class.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.encoders.text import TextTower, load_text_tower
from recap.errors import InputError, WeightsError
from recap.methods.fitting import Job
from recap.methods.images import LabelledImages
from recap.methods.training import train

Place = Literal["end", "front", "middle"]
"""The place of the phrase: behind the context, before it, or between its halves."""

CONTEXT_TOKENS = 8
CONTEXT_STD = 0.02
BETAS = (0.5, 0.999)


class LearnedPrompts(nn.Module):
    """Phrases of two classes, each with contexts of its own, one for every place.

    `phrases` are the normal and the abnormal ones.
    """

    order: Tensor  # (P, N, T'): what stands where, as positions in [context, words]
    ids: Tensor  # (P, N, T')
    words: Tensor  # (N, T, width)

    def __init__(
        self,
        tower: TextTower,
        phrases: tuple[Sequence[str], Sequence[str]],
        places: Sequence[Place],
        causal: bool = True,
    ) -> None:
        super().__init__()
        texts = [f"{phrase}." for group in phrases for phrase in group]
        self._normal, self._causal = len(phrases[0]), causal
        ids = tower.tokenise(texts)  # (N, T)
        end = tower.tokenise([""])[0, 1]  # an empty text is its start, then its end
        ends = (ids == end).int().argmax(dim=1).tolist()
        order, length = _orders(ends, places, ids.shape[1], texts)
        # Behind the last end of text nothing matters to tokens that see only what precedes them.
        order = order[..., : length if causal else None].to(ids.device)
        # Which word stands for the context is of no matter: `ids` say only where the text ends.
        filled = torch.cat([ids[:, 1:2].expand(-1, CONTEXT_TOKENS), ids], dim=1)
        self.register_buffer("order", order)
        self.register_buffer("ids", filled[None].take_along_dim(order, dim=2))
        self.register_buffer("words", tower.embed(ids))
        start = torch.randn(len(places), len(texts), CONTEXT_TOKENS, tower.width)
        self.context = nn.Parameter(CONTEXT_STD * start.to(ids.device))

    def forward(self, tower: TextTower) -> Tensor:
        """Unit directions of normal and abnormal (2, C): means over all prompts of a class."""
        words = self.words.expand(len(self.context), -1, -1, -1)
        both = torch.cat([self.context, words], dim=2)
        embeddings = both.take_along_dim(self.order.unsqueeze(-1), dim=2)  # (P, N, T', width)
        flat = embeddings.flatten(0, 1), self.ids.flatten(0, 1)
        features = tower.encode(*flat, causal=self._causal)
        features = features.unflatten(0, self.context.shape[:2])  # (P, N, C)
        classes = features[:, : self._normal], features[:, self._normal :]
        return F.normalize(torch.stack([c.flatten(0, 1).mean(0) for c in classes]), dim=-1)


def text_channels(encoder: Any) -> int:
    """Read the width of the space that an encoder shares with its text tower."""
    channels = getattr(encoder.model.config, "projection_dim", None)
    if channels is None:
        raise WeightsError(
            f"{encoder.name} has no text tower, and this method compares images with sentences. "
            "Use a CLIP encoder such as clip-vit-b16 (encoder.name), or a method without text."
        )
    return int(channels)


def prompts_for(
    job: Job, model: Any, phrases: tuple[Sequence[str], Sequence[str]], places: Sequence[Place]
) -> tuple[TextTower, LearnedPrompts]:
    """Make the text tower and its prompts at their start.

    Made before images are encoded: files that are missing, and phrases that are too long, are told
    at once. The options have causal.
    """
    tower = tower_for(job, model.channels, model.device)
    return tower, LearnedPrompts(tower, phrases, places, job.options.causal)


def train_with_prompts(
    model: Any,
    learned: tuple[TextTower, LearnedPrompts],
    loss: Callable[[list[int], Tensor], Tensor],
    count: int,
    job: Job,
) -> float:
    """Train a model and its prompts by Adam; leaves the last prompts' directions in `model.text`.

    `loss` takes positions of images and the directions (2, C). The options have epochs,
    batch_size and learning_rate.
    """
    options, (tower, prompts) = job.options, learned
    trained = nn.ModuleDict({"model": model, "prompts": prompts})
    mean = train(
        trained,
        lambda indices: loss(indices, prompts(tower)),
        torch.optim.Adam(
            [p for p in trained.parameters() if p.requires_grad], options.learning_rate, BETAS
        ),
        count,
        job,
        epochs=options.epochs,
    )
    with torch.no_grad():
        model.text = prompts(tower)
    return mean


def _orders(
    ends: list[int], places: Sequence[Place], length: int, texts: list[str]
) -> tuple[Tensor, int]:
    """Order prompts by positions in [context, text]: (P, N, T); also the longest prompt."""
    longest = max(ends) + CONTEXT_TOKENS + 1
    if longest > length:
        text = texts[ends.index(max(ends))]
        raise InputError(
            f"The prompt '{text}' has {max(ends) + 1} tokens and {CONTEXT_TOKENS} are added, but "
            f"the text tower reads {length}. Give the data set a shorter name."
        )
    rows = [[_order(place, end, length) for end in ends] for place in places]
    return torch.tensor(rows), longest


def _order(place: Place, end: int, length: int) -> list[int]:
    before = {"end": CONTEXT_TOKENS, "front": 0, "middle": CONTEXT_TOKENS // 2}[place]
    start, *words = range(CONTEXT_TOKENS, CONTEXT_TOKENS + end - 1)
    rest = range(CONTEXT_TOKENS + end - 1, length)  # full stop, end of text, what is behind
    context = range(CONTEXT_TOKENS)
    return [start, *context[:before], *words, *context[before:], *rest]


NORMAL_STATES = (
    "{}",
    "normal {}",
    "healthy {}",
    "unremarkable {}",
    "{} without lesion",
    "{} without abnormality",
    "{} without damage",
)
ABNORMAL_STATES = (
    "abnormal {}",
    "diseased {}",
    "{} with lesion",
    "{} with abnormality",
    "{} with damage",
)
_QUALITIES = ("", "clear ", "blurry ", "bright ", "dark ", "small ", "cropped ")
_FRAMES = (
    "a {quality}photo of a {{}}.",
    "a {quality}photo of the {{}}.",
    "a {quality}picture of a {{}}.",
    "an example of a {{}} in a {quality}image.",
    "the {{}} in a {quality}scan.",
)
TEMPLATES = tuple(f.format(quality=q) for f, q in product(_FRAMES, _QUALITIES))

SUBJECTS = {
    "Brain": "Brain",
    "Liver": "Liver",
    "Retina_RESC": "retinal OCT",
    "Retina_OCT2017": "retinal OCT",
    "Chest": "Chest X-ray film",
    "Histopathology": "histopathological image",
}
"""MVFA's names for the images of the benchmark's domains."""
ANY_SUBJECT = "medical image"


def subject_of(domain: str) -> str:
    """Name the images of a domain in sentences: by its folder, if nothing better."""
    return SUBJECTS.get(domain) or domain.replace("_", " ").strip() or ANY_SUBJECT


def sentences(subject: str) -> tuple[list[str], list[str]]:
    """Write the normal and the abnormal ensemble."""
    normal, abnormal = (
        [t.format(s.format(subject)) for s, t in product(states, TEMPLATES)]
        for states in (NORMAL_STATES, ABNORMAL_STATES)
    )
    return normal, abnormal


def text_features(tower: TextTower, subject: str) -> Tensor:
    """Unit directions (2, C) of normal and abnormal: means of unit vectors, unit again."""
    means = [
        F.normalize(tower.encode_text(ensemble), dim=-1).mean(dim=0)
        for ensemble in sentences(subject)
    ]
    return F.normalize(torch.stack(means), dim=-1)


def tower_for(job: Job, channels: int, device: torch.device) -> TextTower:
    """Load the text tower of the fit's encoder; raise unless its features have as many channels."""
    settings = job.settings
    tower = load_text_tower(settings.encoder, settings.seed).to(device)
    if tower.projection_dim != channels:
        raise WeightsError(
            f"{settings.encoder.name}: config.json gives its images {channels} channels "
            f"(vision_config.projection_dim), its texts have {tower.projection_dim}. Correct it."
        )
    return tower


def features_of(
    tower: TextTower, images: LabelledImages, target: str, zero_shot: bool
) -> tuple[Tensor, Tensor]:
    """Directions of what is to be scored (2, C), and of every domain that is fitted on (D, 2, C).

    A fit on other domains is for a target that it may not have the name of; a support set shows
    what is to be scored, so both have one name.
    """
    goal = subject_of(target or ("" if zero_shot else images.domains[0]))
    fitted_on = [subject_of(domain) for domain in images.domains] if zero_shot else [goal]
    known = {subject: text_features(tower, subject) for subject in sorted({*fitted_on, goal})}
    return known[goal], torch.stack([known[subject] for subject in fitted_on])


def anchors_of(features: Tensor, images: LabelledImages, indices: Sequence[int]) -> Tensor:
    """Each image's own directions: (D, 2, C) -> (B, 2, C)."""
    return features[images.domain[list(indices)].to(features.device)]
