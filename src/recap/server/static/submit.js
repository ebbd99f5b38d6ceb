// Sending files and watching the job that comes of it, with one bar for both.

import { address, follow, hasEnded, send, upload } from "./api.js";
import { announce, h } from "./dom.js";

/** The files of results that were made on this page, for scoring them again with another bundle. */
export const heldFiles = new Map();

/** Score files with a bundle: { element, finished } where finished gives the job's id. */
export function scoreFiles(files, bundle, signal) {
  const form = new FormData();
  form.append("bundle", bundle);
  for (const file of files) form.append("file", file, file.given ?? file.name);
  const sent = submit(address("jobs"), form, signal);
  const finished = sent.finished.then((job) => {
    heldFiles.set(job.id, files);
    return job.id;
  });
  return { element: sent.element, finished };
}

/** Upload a form and follow its job; the promise ends with the job's last state, or an error. */
export function submit(target, form, signal) {
  const label = h("p", { class: "progress-label", text: "Uploading…" });
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Progress" });
  const cancel = h("button", { type: "button", class: "quiet", text: "Cancel" });
  const element = h("div", { class: "progress" }, label, h("div", { class: "row" }, bar, cancel));
  const stop = new AbortController();
  cancel.addEventListener("click", () => stop.abort());
  signal?.addEventListener("abort", () => stop.abort());
  const show = (text, share) => {
    label.textContent = text;
    if (share === null) bar.removeAttribute("value");
    else bar.value = share;
    announce(share === null ? text : `${text} ${Math.round(100 * share)} %`);
  };
  return { element, finished: run(target, form, stop.signal, show) };
}

async function run(target, form, signal, show) {
  const started = await upload(
    target,
    form,
    (share) => (share < 1 ? show("Uploading…", share) : show("Checking the files…", null)),
    signal,
  );
  show("Waiting for a free worker…", null);
  const job = await ended(started.id, signal, show);
  if (job.status === "done") return job;
  if (job.status === "cancelled") throw new DOMException("Cancelled", "AbortError");
  throw new Error(job.error || "The job failed, and did not say why.");
}

function ended(id, signal, show) {
  return new Promise((resolve) => {
    let close = () => {};
    const cancel = () => {
      close();
      send("DELETE", address("jobs", id)).catch(() => {});
      resolve({ id, status: "cancelled" });
    };
    // Leaving the page later must not delete a result: a job that has ended cannot be cancelled.
    const end = (state) => {
      signal.removeEventListener("abort", cancel);
      resolve(state);
    };
    signal.addEventListener("abort", cancel);
    close = follow(id, (state) => (hasEnded(state) ? end(state) : show(...stageInWords(state))));
  });
}

const STAGES = {
  start: "Starting…",
  queued: "Waiting for a free worker…",
  score: "Scoring",
  images: "Scoring",
  encode: "Encoding the support images",
  train: "Training",
  train_maps: "Training maps",
  fit: "Fitting",
  remember: "Building the memory",
  calibrate: "Calibrating",
  results: "Writing the results",
};

/** A job's state as a line and a share; null where there is nothing to count. */
export function stageInWords({ status, progress }) {
  if (status === "queued" || !progress) return [STAGES.queued, null];
  const { done = 0, total = 0, stage = "" } = progress;
  const word = STAGES[stage] ?? (stage ? stage[0].toUpperCase() + stage.slice(1) : "Working");
  return total > 1 ? [`${word}: ${done} of ${total}`, done / total] : [word, null];
}
