// The colours of maps: the same fixed scale and table as every overlay that recap writes.

export const OUTLINE = "rgb(0, 229, 255)";
const MAX_OPACITY = 0.8;
const ANCHORS = [
  [10, 6, 24],
  [50, 18, 92],
  [110, 28, 110],
  [170, 40, 90],
  [216, 72, 52],
  [244, 124, 32],
  [252, 180, 48],
  [252, 232, 104],
];

const TABLE = Array.from({ length: 256 }, (_, value) => {
  const place = (value / 255) * (ANCHORS.length - 1);
  const low = Math.min(Math.floor(place), ANCHORS.length - 2);
  return ANCHORS[low].map((from, c) =>
    Math.round(from + (place - low) * (ANCHORS[low + 1][c] - from)),
  );
});

/** A map as a picture whose opacity grows with the value, from none at the scale's low end. */
export function mapPicture({ data, width, height }, [low, high]) {
  const picture = new ImageData(width, height);
  for (let i = 0; i < data.length; i++) {
    const share = Math.min(1, Math.max(0, (data[i] - low) / (high - low))) || 0;
    const colour = TABLE[Math.round(share * 255)];
    picture.data.set(colour, 4 * i);
    picture.data[4 * i + 3] = Math.round(255 * MAX_OPACITY * share);
  }
  return asCanvas(picture);
}

/** Grey values through a window: what lies below is black, above white. Shares of the full range. */
export function windowed(source, level, width) {
  const table = Uint8ClampedArray.from(
    { length: 256 },
    (_, v) => 255 * ((v / 255 - level) / width + 0.5),
  );
  const shown = new ImageData(source.width, source.height);
  for (let i = 0; i < source.data.length; i += 4) {
    shown.data[i] = table[source.data[i]];
    shown.data[i + 1] = table[source.data[i + 1]];
    shown.data[i + 2] = table[source.data[i + 2]];
    shown.data[i + 3] = 255;
  }
  return asCanvas(shown);
}

/** The pixels of a decoded picture. */
export function pixelsOf(bitmap) {
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

/** The colours of values from `low` to `top`, with a mark at the level; `high` ends the scale. */
export function drawLegend(canvas, [low, high], top, level) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  for (let x = 0; x < width; x++) {
    const share = ((x / width) * (top - low)) / (high - low);
    const [r, g, b] = TABLE[Math.round(255 * Math.min(1, share))];
    context.fillStyle = `rgb(${r}, ${g}, ${b})`;
    context.fillRect(x, 0, 1, height);
  }
  const x = ((level - low) / (top - low)) * width;
  context.fillStyle = "#000";
  context.fillRect(x - 3, 0, 6, height);
  context.fillStyle = OUTLINE;
  context.fillRect(x - 1.5, 0, 3, height);
}

function asCanvas(picture) {
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  canvas.getContext("2d").putImageData(picture, 0, 0);
  return canvas;
}
