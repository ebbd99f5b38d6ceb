// Earlier jobs, newest first.

import { address, getJson, hasEnded, send } from "./api.js";
import { count, fill, h, number, problem } from "./dom.js";
import { cancelJob, stageInWords } from "./submit.js";

const SHOWN = 100;

const STATUS = {
  queued: "Waiting",
  running: "Running",
  done: "Done",
  failed: "Failed",
  cancelled: "Cancelled",
};

/** The newest jobs, or those that came before the job of the id `before`. */
export function openResults(root, before) {
  const list = h("div");
  const newest = h("a", { class: "button", href: "#/results", text: "Newest", hidden: !before });
  const older = h("a", { class: "button", text: "Older", hidden: true });
  const steps = h("div", { class: "row" }, newest, older);
  fill(root, h("div", { class: "page broad" }, h("h1", { text: "Results" }), list, steps));
  const table = new JobTable(() => load());
  const query = `?limit=${SHOWN}${before ? `&before=${encodeURIComponent(before)}` : ""}`;
  let timer = null;
  let asked = 0;
  // One question at a time counts, the last, and none after the page was left.
  const load = async () => {
    clearTimeout(timer);
    const turn = ++asked;
    try {
      const jobs = await getJson(address("jobs") + query);
      if (turn !== asked) return;
      table.show(jobs);
      if (!jobs.length) fill(list, nothing(before));
      else if (!table.element.isConnected) fill(list, table.element);
      older.hidden = jobs.length < SHOWN;
      older.href = `#/results/${jobs.at(-1)?.id}`;
      if (!jobs.every(hasEnded)) timer = setTimeout(load, 2000);
    } catch (error) {
      if (turn === asked) fill(list, problem(error));
    }
  };
  load();
  return () => {
    asked += 1;
    clearTimeout(timer);
  };
}

const nothing = (before) =>
  before
    ? h("p", { class: "quiet-text", text: "There are no older results." })
    : h(
        "p",
        { class: "quiet-text" },
        "Nothing has been scored yet. ",
        h("a", { href: "#/score", text: "Score a file" }),
        ".",
      );

/** A table of jobs. A row stays the same element while its job changes, under whatever pointer or
 * focus is on it; with `onChange` jobs can be cancelled and deleted. */
export class JobTable {
  #rows = new Map();
  #body = h("tbody");

  constructor(onChange) {
    this.onChange = onChange;
    const names = ["Files", "Bundle", "Status", "Result", "When"];
    const heads = names.map((text) => h("th", { scope: "col", text }));
    const last = onChange && h("th", {}, h("span", { class: "unseen", text: "Delete" }));
    const head = h("thead", {}, h("tr", {}, heads, last));
    this.element = h("div", { class: "scroll" }, h("table", { class: "jobs" }, head, this.#body));
  }

  show(jobs) {
    const kept = new Set(jobs.map((job) => job.id));
    for (const [id, row] of this.#rows) {
      if (kept.has(id)) continue;
      row.element.remove();
      this.#rows.delete(id);
    }
    let next = this.#body.firstChild;
    for (const job of jobs) {
      if (!this.#rows.has(job.id)) this.#rows.set(job.id, new JobRow(this.onChange));
      const row = this.#rows.get(job.id);
      row.show(job);
      if (row.element === next) next = next.nextSibling;
      else this.#body.insertBefore(row.element, next);
    }
  }
}

class JobRow {
  #told = "";

  constructor(onChange) {
    this.onChange = onChange;
    this.title = h("th", { scope: "row" });
    this.bundle = h("td");
    this.chip = h("span");
    this.outcome = h("td", { class: "outcome" });
    this.when = h("td", { class: "when" });
    this.button = h("button", { type: "button", class: "quiet", onclick: () => this.#end() });
    this.element = h(
      "tr",
      {},
      this.title,
      this.bundle,
      h("td", {}, this.chip),
      this.outcome,
      this.when,
      onChange && h("td", {}, this.button),
    );
  }

  show(job) {
    const told = JSON.stringify(job);
    if (told === this.#told) return;
    this.#told = told;
    this.job = job;
    const title = titleOf(job);
    fill(
      this.title,
      job.status === "done" ? h("a", { href: goal(job), text: title }) : title,
      job.error && h("p", { class: "row-error", text: job.error }),
    );
    this.bundle.textContent = job.bundle;
    this.chip.className = `chip ${job.status}`;
    this.chip.textContent = statusOf(job);
    this.outcome.textContent = outcome(job);
    this.when.textContent = job.created ? whenOf(job) : "";
    this.button.textContent = hasEnded(job) ? "Delete" : "Cancel";
    this.button.setAttribute("aria-label", `${this.button.textContent} ${title}`);
  }

  /** Delete the job, or cancel it while it is not done: whichever the button said. */
  async #end() {
    const { job } = this;
    const title = titleOf(job);
    if (!hasEnded(job)) {
      if (confirm(`Cancel “${title}”?`)) await cancelJob(job.id);
    } else if (confirm(`Delete “${title}” with its files and its result?`))
      await send("DELETE", address("jobs", job.id)).catch(() => {});
    this.onChange();
  }
}

const whenOf = (job) =>
  new Date(1000 * job.created).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

const goal = (job) =>
  job.kind === "fit" || job.kind === "calibrate" ? "#/bundles" : `#/job/${job.id}`;

function titleOf(job) {
  const { kind, names = [] } = job;
  if (kind === "fit" || kind === "calibrate")
    return `${kind === "fit" ? "Fit" : "Calibration"} of ${job.bundle}`;
  const named = names.filter(Boolean);
  if (!named.length) return `Job ${job.id.slice(0, 8)}`;
  return named.length === 1 ? named[0] : `${named[0]} and ${named.length - 1} more`;
}

function statusOf(job) {
  if (job.status !== "running") return STATUS[job.status] ?? job.status;
  const [, share] = stageInWords(job);
  return share === null ? STATUS.running : `${Math.round(100 * share)} %`;
}

/** The score and decision of a single case, or how many there are. */
function outcome({ result }) {
  if (!result?.cases) return "";
  if (result.count > 1)
    return count(result.count, "case") + (result.failed ? `, ${result.failed} failed` : "");
  const [{ score, ...decision }] = result.cases;
  return [number(score), ...inWords(decision)].join(", ");
}

/** An image unlike the fitted domain is neither normal nor abnormal. */
function inWords({ abnormal, in_domain }) {
  if (in_domain === false) return ["outside the fitted domain"];
  if (typeof abnormal !== "boolean") return [];
  return [abnormal ? "abnormal" : "normal"];
}
