// The slices of a volume: a strip with the score of each, and a slider below it.

import { count, h, number, themeColour } from "./dom.js";

/** For studies of several images; null for one picture. */
export function sliceStrip(study, view) {
  const total = study.case.images;
  if (total <= 1) return null;
  const word = study.case.kind === "volume" ? "Slice" : study.case.kind === "slide" ? "Tile" : "Frame";
  const scores = study.case.image_scores ?? peaks(study);
  const canvas = h("canvas", { class: "strip", width: 1400, height: 72, "aria-hidden": "true" });
  const input = h("input", { type: "range", id: "slice", min: 1, max: total, step: 1, oninput: () => view.set({ slice: Number(input.value) - 1 }) });
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
    draw(canvas, scores, view.slice);
  };
  const element = h("div", { class: "slices", "data-slices": count(total, "slice") }, canvas,
    h("div", { class: "slice-row" }, h("label", { for: "slice", text: word }), input, shown));
  refresh();
  return { element, refresh };
}

/** Where the service gives no scores by slice, the highest region of each tells where to look. */
function peaks(study) {
  const highest = new Array(study.case.images).fill(0);
  for (const region of study.case.regions ?? []) highest[region.image] = Math.max(highest[region.image], region.peak);
  return highest;
}

function draw(canvas, scores, slice) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  const finite = scores.filter(Number.isFinite);
  const [low, high] = [Math.min(...finite, 0), Math.max(...finite, 1e-9)];
  const step = width / scores.length;
  context.clearRect(0, 0, width, height);
  scores.forEach((score, n) => {
    const tall = Math.max(3, ((score - low) / (high - low)) * (height - 6));
    context.fillStyle = themeColour(n === slice ? "--accent" : "--bar");
    context.fillRect(n * step + Math.min(1, step / 8), height - tall, Math.max(1, step - Math.min(2, step / 4)), tall);
  });
  context.fillStyle = themeColour("--accent");
  context.fillRect(slice * step, 0, Math.max(step, 3), 4);
}
