// The column beside the picture: decision, threshold, regions, display, explanation, downloads.

import { address } from "./api.js";
import { drawLegend } from "./colours.js";
import { announce, fill, h, number, percent, problem, slider } from "./dom.js";
import { nearestPanel } from "./nearest.js";
import { thresholdPanel } from "./threshold.js";

/** Builds the column for a study; it follows the study and the view until disposed. */
export class Panel {
  constructor(study, view) {
    this.study = study;
    this.view = view;
    this.banner = h("section", { class: "banner", "aria-label": "Decision" });
    this.threshold = thresholdPanel(study, (values) => study.set(values));
    this.level = levelPanel(study);
    this.reset = h("button", {
      type: "button",
      class: "quiet",
      text: "Back to calibrated values",
      onclick: () => study.reset(),
    });
    this.count = h("span", { class: "count" });
    this.list = h("ol", { class: "regions" });
    this.display = displayPanel(view);
    this.nearest = nearestPanel(study, view);
    this.element = h("div", { class: "panel-content" }, this.#sections());
    this.onStudy = () => this.refresh();
    this.onView = () => this.display.refresh();
    study.addEventListener("change", this.onStudy);
    view.addEventListener("change", this.onView);
    this.refresh();
  }

  dispose() {
    this.study.removeEventListener("change", this.onStudy);
    this.view.removeEventListener("change", this.onView);
  }

  refresh() {
    fill(this.banner, bannerContent(this.study));
    this.banner.dataset.verdict = verdict(this.study);
    if (this.said !== verdict(this.study)) announce(this.banner.querySelector("h2").textContent);
    this.said = verdict(this.study);
    this.threshold?.refresh();
    this.level.refresh();
    this.reset.hidden = !this.study.isMoved;
    this.#refreshRegions();
  }

  #sections() {
    return [
      this.banner,
      section(
        "Threshold",
        this.threshold?.element ?? uncalibrated(this.study),
        this.level.element,
        this.reset,
      ),
      h("section", {}, h("h3", {}, "Regions ", this.count), this.list),
      this.nearest?.element,
      section("Display", this.display.element),
      section("Downloads", downloads(this.study, this.view)),
    ];
  }

  #refreshRegions() {
    const { regions, highlight, view } = {
      ...this,
      regions: this.study.regions,
      highlight: this.study.highlight,
    };
    const same = this.listed === regions;
    this.count.textContent = this.study.scanError ? "–" : String(regions.length);
    this.list.setAttribute("aria-busy", String(this.study.isScanning));
    if (!same) {
      this.listed = regions;
      const rows = regions.slice(0, 200).map((region, i) => regionRow(region, i, this.study, view));
      fill(this.list, rows.length ? rows : noRegions(this.study));
    }
    [...this.list.querySelectorAll("button")].forEach((button, i) => {
      button.toggleAttribute("data-on", regions[i] === highlight);
      if (regions[i] === highlight) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    });
  }
}

function noRegions({ scanError }) {
  if (!scanError)
    return h("li", { class: "quiet-text", text: "No part of the map reaches the level." });
  const said = `Regions could not be looked for: ${scanError.message} Move the level to try again.`;
  return h("li", {}, problem(new Error(said)));
}

const section = (title, ...content) => h("section", {}, h("h3", { text: title }), content);

export function verdict(study) {
  const { decision } = study;
  if (study.case.domain?.in_domain === false) return "outside";
  if (!decision) return "none";
  return decision.abnormal ? "abnormal" : "normal";
}

const TITLES = {
  none: "No decision",
  outside: "Outside the fitted domain",
  abnormal: "Abnormal",
  normal: "Normal",
};

function bannerContent(study) {
  const { decision, case: found } = study;
  const kind = verdict(study);
  const moved = study.calibration && study.threshold !== study.calibration.threshold;
  return [
    h(
      "div",
      { class: "banner-top" },
      h("h2", { text: TITLES[kind] }),
      moved && decision && h("span", { class: "tag", text: "your threshold" }),
    ),
    h(
      "dl",
      { class: "facts" },
      fact("Score", number(found.score)),
      decision && fact("p-value", number(decision.p_value)),
      typeof decision?.probability === "number" &&
        fact("Probability", percent(decision.probability)),
    ),
    kind === "outside" &&
      h("p", {
        class: "warning",
        text: "Unlike all that the bundle was fitted on: the score and the map mean little.",
      }),
    h("p", { class: "rule", text: ruleOf(study, moved) }),
  ];
}

function ruleOf(study, moved) {
  const { decision, calibration } = study;
  if (!decision)
    return (
      study.case.undecided ||
      (calibration ? "This kind of file was not calibrated." : "The bundle is not calibrated.")
    );
  if (moved)
    return `Your rule: abnormal from ${number(study.threshold, 4)} up. Calibrated: ${decision.rule}.`;
  return `Rule: ${decision.rule}.`;
}

const fact = (name, value) => h("div", {}, h("dt", { text: name }), h("dd", { text: value }));

function uncalibrated(study) {
  const link = h("a", { href: "#/bundles", text: "Calibrate it" });
  const why = study.isOtherCalibration
    ? `${study.bundle.name} is not calibrated as it was when this was scored, so there is no threshold to move.`
    : "There is no decision for this kind of file, so no threshold to move.";
  return study.calibration || study.isOtherCalibration
    ? h("p", { class: "quiet-text", text: why })
    : h(
        "p",
        { class: "quiet-text" },
        `${study.bundle.name} has no threshold yet. `,
        link,
        " with normal images.",
      );
}

function levelPanel(study) {
  const [low, high] = study.case.scale;
  const legend = h("canvas", { class: "legend", width: 512, height: 14, "aria-hidden": "true" });
  const top = Math.max(
    high,
    study.givenLevel,
    ...(study.case.regions ?? []).map((region) => region.peak),
  );
  const ends = h(
    "div",
    { class: "ends", "aria-hidden": "true" },
    h("span", { text: number(low) }),
    h("span", { text: number(top) }),
  );
  const control = slider({
    label: "Outline from map value",
    above: legend,
    min: low,
    max: top,
    value: study.level,
    oninput: (level) => study.set({ level }),
  });
  return {
    element: h("div", {}, control.element, ends),
    refresh() {
      control.set(study.level);
      drawLegend(legend, study.case.scale, top, study.level);
    },
  };
}

function regionRow(region, index, study, view) {
  const area = region.area_mm2 ? `${number(region.area_mm2)} mm²` : `${number(region.area_px)} px`;
  const [x, y] = region.centroid_xy_px.map(Math.round);
  const place = study.case.images > 1 ? `Slice ${region.image + 1}` : `at ${x}, ${y}`;
  return h(
    "li",
    {},
    h(
      "button",
      { type: "button", onclick: () => study.show(region, view) },
      h("span", { class: "region-number", text: index + 1 }),
      h("span", { text: place, title: `at ${x}, ${y}` }),
      h("span", { class: "region-area", text: area }),
      h("span", { class: "region-peak", text: `peak ${number(region.peak)}` }),
    ),
  );
}

function displayPanel(view) {
  const whole = (share) => `${Math.round(100 * share)} %`;
  const make = (label, name, min, max) =>
    slider({
      label,
      min,
      max,
      step: 0.01,
      value: view[name],
      text: whole,
      oninput: (value) => view.set({ [name]: value }),
    });
  const controls = {
    opacity: make("Map opacity", "opacity", 0, 1),
    level: make("Window level", "level", 0, 1),
    width: make("Window width", "width", 0.02, 2),
  };
  const lines = h("input", {
    type: "checkbox",
    onchange: () => view.set({ outlines: lines.checked }),
  });
  const reset = h("button", {
    type: "button",
    class: "quiet",
    text: "Reset window",
    onclick: () => view.set({ level: 0.5, width: 1 }),
  });
  const refresh = () => {
    for (const [name, control] of Object.entries(controls)) control.set(view[name]);
    lines.checked = view.outlines;
  };
  refresh();
  const element = h(
    "div",
    { class: "display" },
    Object.values(controls).map((control) => control.element),
    h("div", { class: "row between" }, h("label", { class: "check" }, lines, " Outlines"), reset),
  );
  return { element, refresh };
}

/** Of this case its picture and volume; of the whole result the rest. */
function downloads(study, view) {
  const { job, case: found } = study;
  const link = (text, href, properties = {}) =>
    h("li", {}, h("a", { href, download: "", text, ...properties }));
  const picture = (event) => (event.currentTarget.href = study.at("overlay", `${view.slice}.png`));
  return h(
    "ul",
    { class: "downloads" },
    link("This picture with its map (PNG)", study.at("overlay", "0.png"), {
      onclick: picture,
      download: `${found.name}.overlay.png`,
    }),
    found.kind === "volume" && link("Map of the volume (NIfTI)", study.at("map.nii.gz")),
    link("Scores, decisions, regions (JSON)", address("jobs", job.id, "result.json"), {
      download: `recap-${job.id}.json`,
    }),
    found.dicom && link("DICOM results (zip)", address("jobs", job.id, "result.dcm.zip")),
    link("All files (zip)", address("jobs", job.id, "download.zip")),
  );
}
