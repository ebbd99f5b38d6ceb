// Connected regions of a map above a level, and their outlines: the server's rules, in the browser.

/** Label pixels at or above the level; regions smaller than `minArea` are left out. */
export function findRegions(map, level, { image = 0, minArea = 1, mm2PerPx = null } = {}) {
  const { data, width, height } = map;
  const labels = new Int32Array(width * height);
  const stack = new Int32Array(width * height);
  const regions = [];
  for (let start = 0; start < data.length; start++) {
    if (labels[start] !== 0 || !(data[start] >= level)) continue;
    const region = flood(map, level, labels, stack, start, regions.length + 1);
    if (region.area_px < minArea) {
      for (let i = 0; i < region.area_px; i++) labels[stack[i]] = -1;
      continue;
    }
    regions.push({
      image,
      ...region,
      area_mm2: mm2PerPx === null ? null : region.area_px * mm2PerPx,
    });
  }
  return { regions, labels };
}

/** Fill one region; afterwards the first `area_px` entries of the stack are its pixels. */
function flood({ data, width, height }, level, labels, stack, start, label) {
  let [left, top, right, bottom] = [width, height, 0, 0];
  let [sum, sumX, sumY, peak, peakAt] = [0, 0, 0, -Infinity, start];
  let found = 1;
  stack[0] = start;
  labels[start] = label;
  for (let next = 0; next < found; next++) {
    const at = stack[next];
    const x = at % width;
    const y = (at - x) / width;
    left = Math.min(left, x);
    right = Math.max(right, x + 1);
    top = Math.min(top, y);
    bottom = Math.max(bottom, y + 1);
    sum += data[at];
    sumX += x;
    sumY += y;
    if (data[at] > peak || (data[at] === peak && at < peakAt)) [peak, peakAt] = [data[at], at];
    for (let v = Math.max(0, y - 1); v <= Math.min(height - 1, y + 1); v++) {
      for (let u = Math.max(0, x - 1); u <= Math.min(width - 1, x + 1); u++) {
        const neighbour = v * width + u;
        if (labels[neighbour] !== 0 || !(data[neighbour] >= level)) continue;
        labels[neighbour] = label;
        stack[found++] = neighbour;
      }
    }
  }
  return {
    area_px: found,
    box_xyxy_px: [left, top, right, bottom],
    centroid_xy_px: [sumX / found, sumY / found],
    peak,
    peak_xy_px: [peakAt % width, Math.floor(peakAt / width)],
    mean: sum / found,
  };
}

/** The edges between labelled and other pixels as [x0, y0, x1, y1, …], straight runs in one piece. */
export function outlines(labels, width, height) {
  const inside = (x, y) => x >= 0 && y >= 0 && x < width && y < height && labels[y * width + x] > 0;
  const segments = [];
  const collect = (lines, places, differs, push) => {
    for (let line = 0; line <= lines; line++) {
      let from = -1;
      for (let place = 0; place <= places; place++) {
        const edge = place < places && differs(line, place);
        if (edge && from < 0) from = place;
        if (!edge && from >= 0) {
          push(line, from, place);
          from = -1;
        }
      }
    }
  };
  collect(
    height,
    width,
    (y, x) => inside(x, y - 1) !== inside(x, y),
    (y, a, b) => segments.push(a, y, b, y),
  );
  collect(
    width,
    height,
    (x, y) => inside(x - 1, y) !== inside(x, y),
    (x, a, b) => segments.push(x, a, x, b),
  );
  return segments;
}

/** Highest peak first, as the lists show them. */
export function byPeak(regions) {
  return [...regions].sort((a, b) => b.peak - a.peak || a.image - b.image);
}
