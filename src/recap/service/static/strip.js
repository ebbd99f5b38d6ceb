// The slices of a volume: a strip with the score of each, and a slider below it.

import { count, drawSharply, h, number, themeColour } from "./dom.js";

/** For studies of several images; null for one picture. */
export function sliceStrip(study, view) {
  const total = study.case.images;
  if (total <= 1) return null;
  const word =
    study.case.kind === "volume" ? "Slice" : study.case.kind === "slide" ? "Tile" : "Frame";
  const scores = study.case.image_scores ?? peaks(study);
  const canvas = h("canvas", { class: "strip", "aria-hidden": "true" });
  const redraw = drawSharply(canvas, (context, ratio) => draw(context, ratio, scores, view.slice));
  const input = h("input", {
    type: "range",
    id: "slice",
    min: 1,
    max: total,
    step: 1,
    oninput: () => view.set({ slice: Number(input.value) - 1 }),
  });
  const shown = h("output", { for: "slice", class: "slice-number" });
  const choose = (event) => {
    const box = canvas.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    view.set({ slice: Math.min(total - 1, Math.max(0, Math.floor(share * total))) });
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    choose(event);
  });
  canvas.addEventListener("pointermove", (event) => event.buttons && choose(event));
  const refresh = () => {
    input.value = view.slice + 1;
    const score = scores[view.slice];
    shown.textContent = `${word} ${view.slice + 1} of ${total}${score === undefined ? "" : ` · score ${number(score)}`}`;
    input.setAttribute("aria-valuetext", shown.textContent);
    redraw();
  };
  const element = h(
    "div",
    { class: "slices", "data-slices": count(total, "slice") },
    canvas,
    h("div", { class: "slice-row" }, h("label", { for: "slice", text: word }), input, shown),
  );
  refresh();
  return { element, refresh };
}

/** Where the service gives no scores by slice, the highest region of each tells where to look. */
function peaks(study) {
  const highest = new Array(study.case.images).fill(0);
  for (const region of study.case.regions ?? [])
    highest[region.image] = Math.max(highest[region.image], region.peak);
  return highest;
}

function draw(context, ratio, scores, slice) {
  const { width, height } = context.canvas;
  const finite = scores.filter(Number.isFinite);
  const [low, high] = [Math.min(...finite, 0), Math.max(...finite, 1e-9)];
  const step = width / scores.length;
  const gap = Math.min(ratio, step / 4);
  scores.forEach((score, n) => {
    const tall = Math.max(2 * ratio, ((score - low) / (high - low)) * (height - 4 * ratio));
    context.fillStyle = themeColour(n === slice ? "--accent" : "--bar");
    context.fillRect(n * step + gap / 2, height - tall, step - gap, tall);
  });
  context.fillStyle = themeColour("--accent");
  context.fillRect(slice * step, 0, Math.max(step, 2 * ratio), 2 * ratio);
}
