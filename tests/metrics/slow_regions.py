"""PRO written out from its definition, with loops: what the quick forms are measured against."""

import numpy as np
from scipy import ndimage
from sklearn.metrics import auc


def regions_of(mask):
    """The 8-connected regions of a mask, each as its rows and columns."""
    labels, count = ndimage.label(mask, structure=np.ones((3, 3)))
    return [np.nonzero(labels == region) for region in range(1, count + 1)]


def flooded_regions(mask):
    """The same by flood fill in plain Python, to check the labelling itself."""
    left = set(zip(*np.nonzero(mask), strict=True))
    while left:
        region, edge = set(), [left.pop()]
        while edge:
            row, column = edge.pop()
            region.add((row, column))
            around = {(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= around
            edge.extend(around)
        yield region


def literal_pro(maps, masks, steps=200, limit=0.3):
    """One threshold after the other, looking for the regions anew at each."""
    low, high = maps.min(), maps.max()
    overlaps, fprs = [], []
    for threshold in np.arange(low, high, (high - low) / steps):
        called = maps > threshold
        found = []
        for binary, mask in zip(called, masks, strict=True):
            for pixels in regions_of(mask):
                found.append(binary[pixels].sum() / len(pixels[0]))
        overlaps.append(np.mean(found))
        fprs.append((called & ~masks).sum() / (~masks).sum())
    overlaps, fprs = np.array(overlaps), np.array(fprs)
    kept = fprs < limit
    x = fprs[kept]
    return auc((x - x.min()) / (x.max() - x.min()), overlaps[kept])


def literal_aupro(maps, masks, limit=0.3):
    """Every value a threshold, a straight line between two points, cut at the limit."""
    xs, ys = [0.0], [0.0]
    for threshold in np.unique(maps)[::-1]:
        called = maps >= threshold
        found = []
        for binary, mask in zip(called, masks, strict=True):
            found += [np.mean([binary[at] for at in region]) for region in flooded_regions(mask)]
        xs.append((called & ~masks).sum() / (~masks).sum())
        ys.append(np.mean(found))
    area = 0.0
    for x0, x1, y0, y1 in zip(xs, xs[1:], ys, ys[1:], strict=False):
        if x0 >= limit:
            break
        if x1 > limit:
            x1, y1 = limit, y0 + (y1 - y0) * (limit - x0) / (x1 - x0)
        area += (x1 - x0) * (y0 + y1) / 2
    return area / limit
