"""ReCAP: one image through the model, as a sum of evidence.

Pixels → features of the frozen encoder → tokens of each branch → evidence of each source → score
and map. Which branches and sources there are is decided once, in `regimes`.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self, cast

import torch
from torch import Tensor, nn

from recap.encoders.vit import Encoder
from recap.methods.base import Evidence, Nearest, Output, Scorer, combine
from recap.methods.features import Features
from recap.methods.recap.adapters import Adapter, write_back
from recap.methods.recap.maps import Drawing
from recap.methods.recap.memory import Memory
from recap.methods.recap.settings import RecapSettings
from recap.methods.recap.view import Branch, Sight, View


class ReCAP(Scorer):
    """A frozen encoder, one branch for maps and scores or one for each, and sources of evidence."""

    def __init__(
        self,
        encoder: Encoder,
        settings: RecapSettings,
        branches: Sequence[Branch],
        sources: Sequence[nn.Module],
        drawing: Drawing,
        regime: str,
        writes_back: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, self.settings = encoder, settings
        self.branches = nn.ModuleList(branches)
        self.sources = nn.ModuleDict({str(source.name): source for source in sources})
        self.drawing, self.regime = drawing, regime
        self.writes_back = writes_back
        """Whether adapters change what later blocks see."""
        self.shared = len(branches) == 1
        """Whether one branch serves maps and scores: of a graph identity does not tell."""

    @property
    def maps(self) -> Branch:
        """The branch that maps are read from."""
        return cast(Branch, self.branches[0])

    @property
    def scores(self) -> Branch:
        """The branch that scores are read from."""
        return cast(Branch, self.branches[-1])

    @property
    def memory(self) -> Memory | None:
        """The memory of normal patches, if this detector has one."""
        found = self.find_source("memory")
        return found if isinstance(found, Memory) else None

    def find_source(self, name: str) -> nn.Module | None:
        """Find the source of that name, if this detector has it."""
        return dict(self.sources.items()).get(name)

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Return all tokens of the tapped layers no trained parameter touches: (B, L, T, width).

        Where adapters write back, those of the first alone.
        """
        layers = self.encoder.layers
        return self.encoder.hidden(pixels, layers[:1] if self.writes_back else layers)

    def features(self, hidden: Tensor, pixels: Tensor | None = None) -> Features:
        """Wrap what the frozen encoder says of a batch."""
        return Features(self.encoder, hidden, pixels)

    def tokens(self, features: Features) -> list[list[Tensor]]:
        """Scoring tokens of each branch and layer: (B, R, C)."""
        if self.writes_back:
            return self._tokens_written_back(features.hidden[:, 0])
        return [cast(Branch, branch).tokens(features.layers) for branch in self.branches]

    def _tokens_written_back(self, hidden: Tensor) -> list[list[Tensor]]:
        seg_side, det_side, encoder = self.maps.adapters, self.scores.adapters, self.encoder
        maps, scores = [], []
        for number, block in enumerate(encoder.layers):
            seg, det = cast(Adapter, seg_side[number]), cast(Adapter, det_side[number])
            seg_tokens, det_tokens = seg(hidden), det(hidden)
            maps.append(encoder.patches(seg_tokens))
            scores.append(encoder.patches(det_tokens))
            if number + 1 < len(encoder.layers):  # nothing reads what follows the last layer
                hidden = write_back(hidden, seg.residual(seg_tokens), det.residual(det_tokens))
                hidden = encoder.run(hidden, block, encoder.layers[number + 1])
        return [maps, scores]

    def view(self, features: Features, parts: bool = False) -> View:
        """Return a batch as every source sees it."""
        tokens = self.tokens(features)
        maps = Sight(self.maps, tokens[0])
        scores = maps if self.shared else Sight(self.scores, tokens[-1])
        return View(features, maps, scores, self.drawing, self.encoder.layers, parts)

    def weigh_evidence(self, features: Features, parts: bool = False) -> list[Evidence]:
        """Ask each source about a batch, in the order in which they take their shares."""
        view = self.view(features, parts)
        return [source(view) for source in self.sources.values()]

    def judge(self, features: Features) -> Output:
        """Score and map of a batch that is encoded; its pixels give the edges that maps follow."""
        output = combine(self.weigh_evidence(features))
        assert features.pixels is not None
        return replace(
            output,
            map=self.drawing.finish(output.map, features.pixels),
            descriptor=features.descriptor,
        )

    def forward(self, pixels: Tensor) -> Output:
        """Score a batch of 0..1 pixels (B, 3, S, S)."""
        return self.judge(self.features(self.encode(pixels), pixels))

    def evidence(self, pixels: Tensor, parts: bool = False) -> list[Evidence]:
        """Say what each source sees; with `parts` every layer has a map of its own."""
        return self.weigh_evidence(self.features(self.encode(pixels), pixels), parts)

    def on_pixels(self, maps: Tensor, pixels: Tensor) -> Tensor:
        """Bring maps of one image (L, n, n) to its pixels, along its edges."""
        return self.drawing.on_pixels(maps, pixels)

    def patch_at(self, row: int, column: int) -> int:
        """Find the patch that has most to say at a pixel of the square."""
        weights = self.drawing.weights(self.encoder.grid)
        return int(weights[row].argmax()) * self.encoder.grid + int(weights[column].argmax())

    def nearest(self, pixels: Tensor, patch: int) -> list[Nearest]:
        """Find the remembered patches nearest to a patch of one image."""
        if self.memory is None:
            return []
        return self.memory.nearest(self.view(self.features(self.encode(pixels), pixels)), patch)

    def without(self, image: int) -> Self | None:
        """Return the model as if one of its normal images had not been there, but for training."""
        left: dict[str, nn.Module] = {}
        for name, source in self.sources.items():
            without = cast(Callable[[int], nn.Module | None], source.without)(image)
            if without is None:
                return None
            left[name] = without
        other = copy.copy(self)
        other._modules = {**self._modules, "sources": nn.ModuleDict(left)}
        return other

    def settle(self) -> None:
        """Let go of what only fitting needs.

        So are prototypes of made-up lesions: they would judge real ones.
        """
        for source in self.sources.values():
            getattr(source, "settle", lambda: None)()
        if "prototype" not in self.sources:
            for branch in self.branches:
                cast(Branch, branch).prototypes = nn.ModuleList()

    def lacking(self) -> str:
        """Name what a bundle must hold and this one does not."""
        found = (getattr(source, "lacking", str)() for source in self.sources.values())
        return next((name for name in found if name), "")

    @torch.no_grad()
    def drift_bound(self) -> Tensor | None:
        """Bound the drift that any image can cause: (2, L, 2) as branch, layer, class."""
        if not self.maps.prototypes:
            return None
        bounds = [
            torch.stack([pair.drift_bound() for pair in branch.pairs])
            for branch in (self.maps, self.scores)
        ]
        return torch.stack(bounds)
