// The bundles that this service has: what they are, their calibration, downloads.

import { address, getJson } from "./api.js";
import { count, fill, h, number, percent, problem } from "./dom.js";
import { dropzone } from "./dropzone.js";
import { submit } from "./submit.js";

export function openBundles(root) {
  const list = h("div", { class: "bundle-list" });
  const page = h("div", { class: "page" }, h("h1", { text: "Bundles" }), list);
  fill(root, page);
  const load = async () => {
    try {
      fill(
        list,
        (await getJson(address("bundles"))).map((bundle) => bundleCard(bundle, load)),
      );
    } catch (error) {
      fill(list, problem(error));
    }
  };
  load();
  return () => {};
}

/** A bundle with what can be done with it; `onChange` after a calibration. */
export function bundleCard(bundle, onChange) {
  const work = h("div", { class: "status", "aria-live": "polite" });
  const facts = h("dl", { class: "facts" });
  const show = (shown) =>
    fill(
      facts,
      factsOf(shown).map(([name, value]) =>
        h("div", {}, h("dt", { text: name }), h("dd", { text: value })),
      ),
    );
  show(bundle);
  const use = h("button", {
    type: "button",
    class: "primary",
    text: "Use it now",
    onclick: () => {
      localStorage.setItem("recap-bundle", bundle.name);
      location.hash = "#/score";
    },
  });
  const calibrate = h("button", {
    type: "button",
    text: bundle.calibration ? "Calibrate anew" : "Calibrate",
    "aria-expanded": "false",
    onclick: () => {
      const isOpen = calibrate.getAttribute("aria-expanded") === "true";
      calibrate.setAttribute("aria-expanded", String(!isOpen));
      fill(
        work,
        !isOpen &&
          calibrationForm(bundle, async () => {
            calibrate.setAttribute("aria-expanded", "false");
            show((await getJson(address("bundles"))).find((one) => one.name === bundle.name));
            onChange();
          }),
      );
    },
  });
  const save = h("a", {
    class: "button plain",
    href: address("bundles", bundle.name, "download.zip"),
    download: "",
    text: "Download",
  });
  return h(
    "article",
    { class: "card", "aria-label": bundle.name },
    h("h2", { text: bundle.name }),
    h("p", { class: "quiet-text", text: bundle.statement ?? "" }),
    facts,
    h("div", { class: "row" }, use, calibrate, save),
    work,
  );
}

function factsOf({ mode, encoder, input_px: px, support, calibration }) {
  const facts = [
    ["Kind", mode],
    ["Encoder", px ? `${encoder}, ${px} px` : encoder],
  ];
  if (support) facts.push(["Fitted on", `${support.normal} normal, ${support.abnormal} abnormal`]);
  if (!calibration) return [...facts, ["Calibration", "none"]];
  return [
    ...facts,
    [
      "Calibration",
      `${count(calibration.normal_scores.length, "normal image")}, ${calibration.source}`,
    ],
    [
      "Threshold",
      `${number(calibration.threshold)} at ${percent(calibration.fpr)} false positives`,
    ],
    ...(calibration.operating_points ?? []).map((point) => [
      POINTS[point.name] ?? point.name,
      pointInWords(point),
    ]),
  ];
}

const POINTS = {
  fpr: "At this threshold",
  f1: "At the highest F1",
  youden: "Youden",
  sensitivity: "At the asked sensitivity",
};

function pointInWords({ threshold, sensitivity, specificity }) {
  return `from ${number(threshold)}: sensitivity ${percent(sensitivity)}, specificity ${percent(specificity)}`;
}

function calibrationForm(bundle, onDone) {
  const chosen = { normals: [], abnormals: [] };
  const said = h("p", { class: "quiet-text", "aria-live": "polite" });
  const status = h("div");
  const rate = h("input", {
    id: `fpr-${bundle.name}`,
    type: "number",
    min: 0.1,
    max: 99,
    step: 0.1,
    value: 5,
    required: true,
  });
  const start = h("button", {
    type: "submit",
    class: "primary",
    text: "Calibrate",
    disabled: true,
  });
  const add = (role) => (files) => {
    chosen[role] = files;
    const n = chosen.normals.length;
    said.textContent = `${count(n, "normal")}, ${count(chosen.abnormals.length, "abnormal image")}. With ${n} normal images the rate can be ${percent(1 / (n + 1))} at best.`;
    start.disabled = !n;
  };
  const run = async (event) => {
    event.preventDefault();
    const form = new FormData();
    form.append("options", JSON.stringify({ fpr: Number(rate.value) / 100 }));
    for (const role of ["normals", "abnormals"])
      for (const file of chosen[role]) form.append(role, file, file.name);
    const sent = submit(address("bundles", bundle.name, "calibrate"), form);
    fill(status, sent.element);
    try {
      await sent.finished;
      fill(element, h("p", { class: "good", role: "status", text: "Calibrated." }));
      onDone();
    } catch (error) {
      fill(status, problem(error));
    }
  };
  const element = h(
    "form",
    { class: "calibrate", onsubmit: run },
    h("p", {
      class: "quiet-text",
      text: "Give normal images that were not used for fitting, from the same scanners and kinds of patients. Abnormal images are optional; they add operating points and a probability.",
    }),
    h(
      "div",
      { class: "fit-columns" },
      dropzone({ title: "Drop normal images", onFiles: add("normals"), compact: true }),
      dropzone({
        title: "Drop abnormal images (optional)",
        onFiles: add("abnormals"),
        compact: true,
      }),
    ),
    h(
      "div",
      { class: "row" },
      h("label", { for: rate.id, text: "False positives allowed, %" }),
      rate,
      start,
    ),
    said,
    status,
  );
  return element;
}
