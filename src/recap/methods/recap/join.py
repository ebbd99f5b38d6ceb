"""Two heads as one model: what draws the map and what gives the score need not be the same."""

from recap.encoders.draws import own_draws
from recap.methods.recap.head import ReCAP
from recap.methods.recap.tokens import DET


def join_heads(maps: ReCAP, scores: ReCAP) -> ReCAP:
    """Two heads of one branch each as the seg and the det branch of one model, without a memory."""
    with own_draws():  # its own start is thrown away
        joined = ReCAP(scores.encoder, scores.settings)
    for place in range(len(joined.adapters)):
        layer, branch = divmod(place, 2)
        head = scores if branch == DET else maps
        joined.adapters[place] = head.adapter(layer, branch)
        joined.prototypes[place] = head.pair(layer, branch)
    joined.theta_seg, joined.theta_det = maps.theta_seg, scores.theta_det
    return joined.to(scores.device)
