// Why here: the most similar patch among the normal support images, and what each layer says.

import { address, getJson, getPicture } from "./api.js";
import { announce, fill, h, number, problem } from "./dom.js";

const CROP_PX = 160;

/** The section, or null where the bundle keeps no support thumbnails. */
export function nearestPanel(study, view) {
  if (!study.bundle.support_pictures) return null;
  const content = h("div", { class: "nearest", "aria-live": "polite" }, hint());
  const element = h("section", {}, h("h3", { text: "Nearest normal" }), content);
  let turn = 0;
  return {
    element,
    async ask(pane, x, y) {
      const mine = ++turn;
      const { slice } = view; // it may be another one by the time of the answer
      const query = new URLSearchParams({ image: slice, x: Math.floor(x), y: Math.floor(y) });
      try {
        const found = await getJson(`${study.at("nearest")}?${query}`);
        const [picture] = await study.slice(slice);
        const support = await getPicture(
          address("bundles", study.bundle.name, "support", `${found.index}.png`),
        );
        if (mine !== turn) return;
        fill(content, pictures(picture, [x, y], support, found), layers(found));
        announce(`Nearest normal patch: ${nameOf(found)}, distance ${number(found.distance)}`);
      } catch (error) {
        if (mine === turn) fill(content, problem(error));
      }
    },
  };
}

const hint = () =>
  h("p", {
    class: "quiet-text",
    text: "Click a place in the picture, or choose Explain and press Enter, to see the normal patch that is most like it.",
  });

function pictures(picture, here, support, found) {
  // The picture is smaller than the image that the place is told in; some bundles tell no place.
  const [height, width] = found.size_hw ?? [support.height, support.width];
  const there = found.x !== null && [
    (found.x * support.width) / width,
    (found.y * support.height) / height,
  ];
  return h(
    "div",
    { class: "nearest-pair" },
    figure(
      marked(picture, here),
      "This patch",
      `at ${Math.floor(here[0])}, ${Math.floor(here[1])}`,
    ),
    figure(marked(support, there), nameOf(found), `distance ${number(found.distance)}`),
  );
}

function figure(canvas, title, note) {
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${title}, ${note}`);
  return h(
    "figure",
    {},
    canvas,
    h("figcaption", {}, h("b", { text: title, title }), h("span", { text: note })),
  );
}

/** Files that were uploaded for a fit have numbers for names; those say less than the order. */
function nameOf({ support, index }) {
  return /^\d{6}\./.test(support) ? `Support image ${index + 1}` : support;
}

/** A picture, whole, with a box around the place. */
function marked(bitmap, place) {
  const scale = CROP_PX / Math.max(bitmap.width, bitmap.height);
  const canvas = h("canvas", { width: 2 * CROP_PX, height: 2 * CROP_PX });
  const context = canvas.getContext("2d");
  const [left, top] = [CROP_PX - bitmap.width * scale, CROP_PX - bitmap.height * scale];
  context.drawImage(bitmap, left, top, 2 * bitmap.width * scale, 2 * bitmap.height * scale);
  if (!place) return canvas;
  const [x, y] = place;
  for (const [colour, width] of [
    ["#000", 6],
    ["#fff", 3],
  ]) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(left + 2 * x * scale - 16, top + 2 * y * scale - 16, 32, 32);
  }
  return canvas;
}

/** Distance in each layer, and what the layer adds to the map's value where the service tells. */
function layers({ layers: found = [], parts = [], map_value: value }) {
  if (!found.length) return null;
  const longest = Math.max(...found.map((one) => one.distance), 1e-9);
  const added = (layer) =>
    parts.filter((part) => part.layer === layer).reduce((sum, part) => sum + part.amount, 0);
  const head = ["Layer", "", "Distance", ...(parts.length ? ["Adds"] : [])];
  const row = ({ layer, distance }) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", text: layer }),
      h("td", {}, h("meter", { min: 0, max: longest, value: distance, "aria-hidden": "true" })),
      h("td", { class: "figure", text: number(distance) }),
      parts.length > 0 && h("td", { class: "figure", text: number(added(layer), 2) }),
    );
  return h(
    "table",
    { class: "layers" },
    parts.length > 0 &&
      h("caption", { text: `Map value here ${number(value)}: the sum of what the layers add` }),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        head.map((text) => h("th", { scope: "col", text })),
      ),
    ),
    h("tbody", {}, found.map(row)),
  );
}
