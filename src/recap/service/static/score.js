// The first page: choose a bundle, drop a file, watch it being scored.

import { address, getJson } from "./api.js";
import { announce, count, fill, h, number, percent, problem } from "./dom.js";
import { acceptDrops, dropzone } from "./dropzone.js";
import { JobTable } from "./results.js";
import { scoreFiles } from "./submit.js";

const REMEMBERED = "recap-bundle";

export function openScore(root) {
  const bundles = h("select", { id: "bundle" });
  const about = h("p", { class: "quiet-text bundle-about" });
  const status = h("div", { class: "status", "aria-live": "polite" });
  const recent = h("section", { class: "recent" });
  const left = new AbortController();
  const running = new Set();
  let newest = null;
  const start = async (files) => {
    const row = h("div");
    status.prepend(row);
    running.add(row);
    newest = row;
    const id = await scoreInRow(files, bundles.value, row, left.signal);
    running.delete(row);
    // Another page would end an upload that still goes, and hide what else is watched.
    const isLast = row === newest && !running.size;
    if (id && isLast && !left.signal.aborted) location.hash = `#/job/${id}`;
  };
  const zone = dropzone({
    title: "Drop an image, a volume or a study",
    hint: "PNG, JPEG, TIFF, DICOM, NIfTI, NRRD, slides, or a zip of them",
    onFiles: start,
  });
  const page = h(
    "div",
    { class: "page start" },
    h("h1", { text: "Score" }),
    h("div", { class: "field" }, h("label", { for: "bundle", text: "Bundle" }), bundles),
    about,
    zone,
    status,
    recent,
  );
  fill(root, page);
  acceptDrops(page, start);
  let known = [];
  const describe = () => {
    localStorage.setItem(REMEMBERED, bundles.value);
    about.textContent = inWords(known.find((bundle) => bundle.name === bundles.value));
  };
  bundles.addEventListener("change", describe);
  load().catch((error) => status.append(problem(error)));
  return () => left.abort();

  async function load() {
    known = await getJson(address("bundles"));
    fill(
      bundles,
      known.map((bundle) => h("option", { value: bundle.name, text: bundle.name })),
    );
    const before = localStorage.getItem(REMEMBERED);
    if (known.some((bundle) => bundle.name === before)) bundles.value = before;
    describe();
    const jobs = (await getJson(`${address("jobs")}?limit=5`)).filter(
      (job) => job.kind !== "fit" && job.kind !== "calibrate",
    );
    const table = new JobTable();
    table.show(jobs);
    if (jobs.length) fill(recent, h("h2", { text: "Recent" }), table.element);
  }
}

/** What a bundle is, in a line or two. */
export function inWords(bundle) {
  if (!bundle) return "";
  const { calibration } = bundle;
  const calibrated = calibration
    ? `Calibrated on ${count(calibration.normal_scores.length, "normal image")} (${calibration.source}), threshold ${number(calibration.threshold)} at ${percent(calibration.fpr)} false positives.`
    : "Not calibrated: gives scores and maps, no decision.";
  return `${bundle.statement ?? bundle.mode ?? ""} ${calibrated}`.trim();
}

/** Score files with their progress in a row of their own; gives the job's id, or null. */
async function scoreInRow(files, bundle, row, left) {
  const names = files.length === 1 ? files[0].name : count(files.length, "file");
  const sent = scoreFiles(files, bundle, left);
  const show = (element) => fill(row, h("h2", { text: names }), element);
  show(sent.element);
  try {
    const id = await sent.finished;
    announce("Scored.");
    show(h("p", {}, "Scored. ", h("a", { href: `#/job/${id}`, text: "Open the result" }), "."));
    return id;
  } catch (error) {
    show(
      error.name === "AbortError"
        ? h("p", { class: "quiet-text", text: "Cancelled." })
        : problem(error),
    );
    return null;
  }
}
