// Sending files and watching the job that comes of it, with one bar for both.

import { address, cancelled, follow, hasEnded, send, upload } from "./api.js";
import { announce, h } from "./dom.js";

/** The files of results that were made on this page, for scoring them again with another bundle. */
export const heldFiles = new Map();

/** Score files with a bundle: { element, finished } where finished gives the job's id. */
export function scoreFiles(files, bundle, left) {
  const form = new FormData();
  form.append("bundle", bundle);
  for (const file of files) form.append("file", file, file.given ?? file.name);
  const sent = submit(address("jobs"), form, left);
  const finished = sent.finished.then((job) => {
    heldFiles.set(job.id, files);
    return job.id;
  });
  return { element: sent.element, finished };
}

/** Upload a form and follow its job; the promise ends with the job's last state, or an error.
 *
 * The button cancels both. `left`, the signal of a page, ends an upload, but a job that was accepted
 * goes on: it is only followed no longer. */
export function submit(target, form, left) {
  const label = h("p", { class: "progress-label", text: "Uploading…" });
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Progress" });
  const cancel = h("button", { type: "button", class: "quiet", text: "Cancel" });
  const element = h("div", { class: "progress" }, label, h("div", { class: "row" }, bar, cancel));
  const stop = new AbortController();
  cancel.addEventListener("click", () => stop.abort());
  const show = (text, share) => {
    label.textContent = text;
    if (share === null) bar.removeAttribute("value");
    else bar.value = share;
    announce(share === null ? text : `${text} ${Math.round(100 * share)} %`);
  };
  // Whoever cancels need not wait for the files to be checked: the job goes when its id is known.
  const finished = Promise.race([run(target, form, stop.signal, left, show), end(stop.signal)]);
  return { element, finished };
}

async function run(target, form, stop, left, show) {
  const sending = new AbortController();
  for (const signal of [stop, left]) end(signal).catch(() => sending.abort());
  const { id } = await upload(
    target,
    form,
    (share) => (share < 1 ? show("Uploading…", share) : show("Checking the files…", null)),
    sending.signal,
  );
  // Also when it has ended meanwhile: to cancel never deletes a result.
  end(stop).catch(() => cancelJob(id));
  if (stop.aborted || left?.aborted) throw cancelled();
  show("Waiting for a free worker…", null);
  const job = await lastState(id, [stop, left], show);
  if (job.status === "done") return job;
  if (job.status === "cancelled") throw cancelled();
  throw new Error(job.error || "The job failed, and did not say why.");
}

/** Stop a job; one that has ended stays as it is. */
export function cancelJob(id) {
  return send("POST", address("jobs", id, "cancel")).catch(() => {});
}

/** Never ends well: fails when a signal is given, or at once if it was. */
function end(signal) {
  return new Promise((_, reject) => {
    if (signal?.aborted) reject(cancelled());
    signal?.addEventListener("abort", () => reject(cancelled()), { once: true });
  });
}

async function lastState(id, signals, show) {
  let close = () => {};
  const last = new Promise((resolve) => {
    close = follow(id, (state) =>
      hasEnded(state) ? resolve(state) : show(...stageInWords(state)),
    );
  });
  try {
    return await Promise.race([last, ...signals.map(end)]);
  } finally {
    close();
  }
}

const STAGES = {
  start: "Starting…",
  queued: "Waiting for a free worker…",
  "no room": "Waiting for room on the service's disk…",
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
  if (status === "queued" || !progress) return [STAGES[progress?.stage] ?? STAGES.queued, null];
  const { done = 0, total = 0, stage = "" } = progress;
  const word = STAGES[stage] ?? (stage ? stage[0].toUpperCase() + stage.slice(1) : "Working");
  return total > 1 ? [`${word}: ${done} of ${total}`, done / total] : [word, null];
}
