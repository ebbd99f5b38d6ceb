"""Ensembles of sentences about normal and abnormal images, for MVFA and APRIL-GAN.

States × templates, as WinCLIP introduced it: 7 normal and 5 abnormal states, 35 templates. The
numbers are MVFA's, the words are ours.
"""

from collections.abc import Sequence
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from recap.encoders.text import TextTower, load_text_tower
from recap.errors import WeightsError
from recap.methods.fitting import Job
from recap.methods.images import LabelledImages

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
"""What MVFA calls the images of the benchmark's domains."""
ANY_SUBJECT = "medical image"


def subject_of(domain: str) -> str:
    """What the sentences call the images of a domain: its folder's name, if nothing better."""
    return SUBJECTS.get(domain) or domain.replace("_", " ").strip() or ANY_SUBJECT


def sentences(subject: str) -> tuple[list[str], list[str]]:
    """The normal and the abnormal ensemble."""
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
    """The text tower of the fit's encoder; an error unless its features have as many channels."""
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
