"""Spatial cross-attention: what a layer's patches tell the two tokens of VisualAD."""

import torch
from torch import Tensor, nn

ANCHORS = 4
POSITION_ROWS = 1536
"""Rows of the published position table, whatever the grid; a larger grid gets its own number."""
RESIDUAL_START = 0.01
SMALL = 0.02


class SpatialCrossAttention(nn.Module):
    """A few learned queries look at the patches; each token takes of them what its gate lets in.

    aₘ = Σᵣ softmaxᵣ(qₘ · kᵣ / √C) vᵣ with q = LN(W_q anchor), k = LN(W_k (patch + position)) and
    v = W_v patch; then token + s · W_o Σₘ sigmoid(gate(token))ₘ aₘ.
    """

    def __init__(self, width: int, patches: int, dropout: float) -> None:
        super().__init__()
        self.anchors = nn.Parameter(SMALL * torch.randn(ANCHORS, width))
        self.positions = nn.Parameter(SMALL * torch.randn(max(POSITION_ROWS, patches), width))
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.query_norm, self.key_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.gate = nn.Linear(width, ANCHORS)
        self.out = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((1,), RESIDUAL_START))
        self.dropout = nn.Dropout(dropout)
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        """Tokens (B, 2, C) that know of the patches (B, R, C) of one layer."""
        queries = self.query_norm(self.query(self.anchors))  # (M, C)
        keys = self.key_norm(self.key(patches + self.positions[: patches.shape[1]]))
        weights = (queries @ keys.mT / patches.shape[-1] ** 0.5).softmax(dim=-1)  # (B, M, R)
        # Each token drops weights of its own. Values are linear in the patches, so averaging first
        # saves most of their projections.
        own = self.dropout(weights.repeat(1, tokens.shape[1], 1))  # (B, 2 M, R)
        seen = self.value(own @ patches).unflatten(1, (tokens.shape[1], ANCHORS))  # (B, 2, M, C)
        gates = self.gate(tokens).sigmoid()  # (B, 2, M)
        gathered = self.out(torch.einsum("btm,btmc->btc", gates, seen))  # (B, 2, C)
        return tokens + self.scale * self.dropout(gathered)
