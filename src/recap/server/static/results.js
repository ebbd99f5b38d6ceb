// Earlier jobs, newest first.

import { address, getJson, send } from "./api.js";
import { count, fill, h, number, problem } from "./dom.js";
import { stageInWords } from "./submit.js";

const STATUS = {
  queued: "Waiting",
  running: "Running",
  done: "Done",
  failed: "Failed",
  cancelled: "Cancelled",
};

export function openResults(root) {
  const list = h("div");
  fill(root, h("div", { class: "page broad" }, h("h1", { text: "Results" }), list));
  let timer = null;
  const load = async () => {
    try {
      const jobs = await getJson(`${address("jobs")}?limit=100`);
      fill(
        list,
        jobs.length
          ? jobRows(jobs, load)
          : h(
              "p",
              { class: "quiet-text" },
              "Nothing has been scored yet. ",
              h("a", { href: "#/score", text: "Score a file" }),
              ".",
            ),
      );
      if (jobs.some((job) => job.status === "queued" || job.status === "running"))
        timer = setTimeout(load, 2000);
    } catch (error) {
      fill(list, problem(error));
    }
  };
  load();
  return () => clearTimeout(timer);
}

/** A table of jobs; with `onDeleted` each can be deleted. */
export function jobRows(jobs, onDeleted) {
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      { class: "jobs" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Files", "Bundle", "Status", "Result", "When"].map((text) =>
            h("th", { scope: "col", text }),
          ),
          onDeleted && h("th", {}, h("span", { class: "unseen", text: "Delete" })),
        ),
      ),
      h(
        "tbody",
        {},
        jobs.map((job) => jobRow(job, onDeleted)),
      ),
    ),
  );
}

function jobRow(job, onDeleted) {
  return h(
    "tr",
    {},
    h(
      "th",
      { scope: "row" },
      job.status === "done" ? h("a", { href: goal(job), text: titleOf(job) }) : titleOf(job),
      job.error && h("p", { class: "row-error", text: job.error }),
    ),
    h("td", { text: job.bundle }),
    h("td", {}, h("span", { class: `chip ${job.status}`, text: statusOf(job) })),
    h("td", { class: "outcome", text: outcome(job) }),
    h("td", {
      class: "when",
      text: job.created
        ? new Date(1000 * job.created).toLocaleString([], {
            dateStyle: "medium",
            timeStyle: "short",
          })
        : "",
    }),
    onDeleted &&
      h(
        "td",
        {},
        h("button", {
          type: "button",
          class: "quiet",
          "aria-label": `Delete ${titleOf(job)}`,
          text: "Delete",
          onclick: async () => {
            await send("DELETE", address("jobs", job.id)).catch(() => {});
            onDeleted();
          },
        }),
      ),
  );
}

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
