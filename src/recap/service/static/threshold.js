// Decisions at any threshold, from the scores of normal images that the bundle keeps.

import { drawSharply, h, number, percent, slider, themeColour } from "./dom.js";

/** (1 + how many normal scores are at least as high) / (n + 1); `scores` rise. */
export function pValue(scores, score) {
  let [low, high] = [0, scores.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (scores[middle] < score) low = middle + 1;
    else high = middle;
  }
  return (1 + scores.length - low) / (scores.length + 1);
}

/** What a threshold makes of a case; the service's own decision where nothing was moved. */
export function decide(found, calibration, threshold) {
  if (!found.decision || !calibration || threshold === calibration.threshold)
    return found.decision ?? null;
  return { ...found.decision, abnormal: found.score >= threshold };
}

/** The slider with the normal scores drawn above it. */
export function thresholdPanel(study, onChange) {
  const { calibration } = study;
  if (!calibration || !study.case.decision) return null;
  const [low, high] = range(study);
  const chart = h("canvas", { class: "chart", role: "img" });
  const redraw = drawSharply(chart, (context, ratio) =>
    drawChart(context, ratio, study, low, high),
  );
  const said = h("p", { class: "quiet-text" });
  const control = slider({
    above: chart,
    label: "Abnormal from score",
    min: low,
    max: high,
    value: study.threshold,
    oninput: (threshold) => onChange({ threshold }),
  });
  const refresh = () => {
    const rate = pValue(calibration.normal_scores, study.threshold);
    const n = calibration.normal_scores.length;
    control.set(study.threshold);
    said.textContent =
      `p = ${number(rate)} at this threshold: about ${percent(rate)} of normal images would score as high ` +
      `(${n} ${calibration.source === "held-out" ? "held-out" : "support"} normal image${n === 1 ? "" : "s"}).`;
    chart.setAttribute(
      "aria-label",
      `Scores of ${n} normal images, this case at ${number(study.case.score)}, threshold at ${number(study.threshold)}.`,
    );
    redraw();
  };
  refresh();
  return { element: h("div", {}, control.element, said), refresh };
}

function range(study) {
  const { normal_scores: normal, abnormal_scores: abnormal } = study.calibration;
  const values = [...normal, ...(abnormal ?? []), study.case.score, study.calibration.threshold];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const margin = 0.06 * (high - low || 1);
  return [low - margin, high + margin];
}

/** Known images as ticks in two rows, the case as a line with a dot, the threshold as an edge. */
function drawChart(context, ratio, study, low, high) {
  const { width, height } = context.canvas;
  const { normal_scores: normal, abnormal_scores: abnormal } = study.calibration;
  // A slider's thumb does not reach the ends of its track: the same inset keeps both in line.
  const inset = 8 * ratio;
  const x = (value) => inset + ((value - low) / (high - low)) * (width - 2 * inset);
  const line = (at, thick, top = 0, tall = height) =>
    context.fillRect(x(at) - (thick * ratio) / 2, top, thick * ratio, tall);
  context.fillStyle = themeColour("--abnormal");
  context.fillRect(x(study.threshold), 0, width, height);
  const rows = [
    [normal, "--normal-text"],
    [abnormal ?? [], "--abnormal-text"],
  ].filter(([scores]) => scores.length);
  const tall = (height - 6 * ratio) / rows.length;
  rows.forEach(([scores, name], row) => {
    context.fillStyle = themeColour(name);
    context.globalAlpha = Math.max(0.25, Math.min(0.8, 30 / scores.length));
    for (const score of scores) line(score, 1.5, 4 * ratio + row * tall, tall - 2 * ratio);
  });
  context.globalAlpha = 1;
  context.fillStyle = themeColour("--text");
  line(study.threshold, 1.5);
  context.fillStyle = themeColour("--accent");
  line(study.case.score, 2);
  context.beginPath();
  context.arc(x(study.case.score), height / 2, 4.5 * ratio, 0, 7);
  context.fill();
}
