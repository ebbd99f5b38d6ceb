// The page of a result: one pane, or two bundles side by side, with the panel of the active one.

import { address, getJson } from "./api.js";
import { Pane } from "./canvas.js";
import { fill, h, number, problem } from "./dom.js";
import { Panel, verdict } from "./panel.js";
import { heldFiles, scoreFiles } from "./submit.js";
import { sliceStrip } from "./strip.js";
import { Study } from "./study.js";
import { View } from "./view.js";

const TOOLS = [
  ["window", "Window", "Drag to change contrast and brightness"],
  ["pan", "Move", "Drag to move the picture"],
  ["explain", "Explain", "Click, or arrow keys and Enter, for the nearest normal patch"],
];
const VERDICTS = {
  none: "no decision",
  outside: "outside the fitted domain",
  abnormal: "abnormal",
  normal: "normal",
};

/** Show a job's case in `root`; returns a function that takes it down. */
export function openStage(root, id, index) {
  const stage = new Stage(root);
  stage.open(id, index).catch((error) => {
    if (!stage.disposed) fill(root, h("div", { class: "page" }, problem(error)));
  });
  return () => stage.dispose();
}

class Stage {
  entries = [];
  active = 0;
  #compared = 0;

  constructor(root) {
    this.root = root;
    this.view = new View();
    this.onView = () => this.#refresh();
    this.view.addEventListener("change", this.onView);
    addEventListener(
      "themechange",
      (this.onTheme = () =>
        this.entries.forEach(({ panel }) => panel.refresh()) || this.#refresh()),
    );
  }

  async open(id, index) {
    fill(this.root, h("p", { class: "page quiet-text", text: "Opening…" }));
    const { job, cases, study } = await Study.open(id);
    if (this.disposed) return;
    this.job = job;
    this.cases = cases;
    const found = cases[index] ?? cases.find((one) => one.status === "ok");
    if (!found) throw new Error("This result holds no case that could be scored.");
    document.title = `${found.name} · recap`;
    this.#build(cases.indexOf(found));
    if (found.status !== "ok")
      return fill(this.message, problem(new Error(`${found.name}: ${found.error}`)));
    this.view.set({ slice: Math.min(found.highest, found.images - 1) });
    this.add(study(found));
    // A result is worth seeing without others to compare it with.
    this.#fillCompare().catch(() => {});
  }

  /** Put a study into a pane of its own. */
  add(study) {
    const pane = new Pane(study, this.view, (asked, x, y) => this.#explain(asked, x, y));
    const caption = h("p", { class: "pane-caption" });
    const entry = { study, pane, caption, panel: new Panel(study, this.view) };
    pane.element.append(caption);
    pane.onHover = (x, y) => this.#hover(pane, x, y);
    pane.canvas.addEventListener("focus", () => this.#activate(this.entries.indexOf(entry)));
    study.addEventListener("change", this.onView);
    this.entries.push(entry);
    this.panes.append(pane.element);
    this.panes.dataset.panes = this.entries.length;
    this.#activate(this.entries.length - 1);
  }

  /** Back to one pane. */
  removeSecond() {
    const entry = this.entries.splice(1, 1)[0];
    if (!entry) return;
    this.#take(entry);
    this.panes.dataset.panes = 1;
    this.#activate(0);
  }

  dispose() {
    this.disposed = true;
    removeEventListener("themechange", this.onTheme);
    this.entries.forEach((entry) => this.#take(entry));
    this.view.removeEventListener("change", this.onView);
    this.left?.abort();
  }

  #take(entry) {
    entry.pane.dispose();
    entry.panel.dispose();
    entry.study.removeEventListener("change", this.onView);
    entry.pane.element.remove();
  }

  #build(index) {
    this.panes = h("div", { class: "panes" });
    this.slices = h("div");
    this.readout = h("p", { class: "readout", "aria-hidden": "true" });
    this.message = h("div", { "aria-live": "polite" });
    this.aside = h("aside", { class: "panel", "aria-label": "Result" });
    this.compare = h("select", { id: "compare", onchange: () => this.#onCompare() });
    const bar = h(
      "div",
      { class: "stage-bar" },
      this.#casePicker(index),
      this.#tools(),
      this.#zoom(),
      h(
        "div",
        { class: "compare", hidden: true },
        h("label", { for: "compare", text: "Compare with" }),
        this.compare,
      ),
    );
    fill(
      this.root,
      h(
        "div",
        { class: "stage" },
        h(
          "section",
          { class: "work", "aria-label": "Picture" },
          bar,
          this.message,
          this.panes,
          this.slices,
          this.readout,
        ),
        this.aside,
      ),
    );
  }

  #casePicker(index) {
    if (this.cases.length === 1)
      return h("h1", { class: "case-name", text: this.cases[0].name, title: this.cases[0].name });
    const picker = h(
      "select",
      {
        "aria-label": "Case",
        onchange: () => (location.hash = `#/job/${this.job.id}/${picker.value}`),
      },
      this.cases.map((found, i) =>
        h("option", {
          value: i,
          selected: i === index,
          text: `${found.name} · ${found.score === null || found.score === undefined ? "not scored" : number(found.score)}`,
        }),
      ),
    );
    picker.value = index;
    return h("h1", { class: "case-name" }, picker);
  }

  #tools() {
    const group = h("div", {
      class: "tools",
      role: "radiogroup",
      "aria-label": "What dragging does",
    });
    for (const [name, label, title] of TOOLS) {
      const input = h("input", {
        type: "radio",
        name: "tool",
        value: name,
        id: `tool-${name}`,
        checked: name === this.view.tool,
        onchange: () =>
          this.view.set({
            tool: name,
            cursor: name === "explain" ? (this.view.cursor ?? this.view.centre) : this.view.cursor,
          }),
      });
      group.append(input, h("label", { for: `tool-${name}`, title, text: label }));
    }
    return group;
  }

  #zoom() {
    const button = (text, label, act) =>
      h("button", {
        type: "button",
        class: "tool",
        "aria-label": label,
        title: label,
        text,
        onclick: act,
      });
    return h(
      "div",
      { class: "tools" },
      button("−", "Zoom out", () => this.view.zoomBy(0.8)),
      button("Fit", "Fit to the window", () => this.view.fit()),
      button("+", "Zoom in", () => this.view.zoomBy(1.25)),
    );
  }

  #activate(index) {
    if (index < 0) return;
    this.active = index;
    const { study, panel } = this.entries[index];
    if (this.aside.firstChild !== panel.element) fill(this.aside, panel.element);
    this.strip = sliceStrip(study, this.view);
    fill(this.slices, this.strip?.element);
    this.entries.forEach(({ pane }, i) =>
      pane.element.toggleAttribute("data-active", i === index && this.entries.length > 1),
    );
    this.#refresh();
  }

  #refresh() {
    if (!this.panes) return;
    this.strip?.refresh();
    for (const { study, caption } of this.entries) {
      fill(
        caption,
        h("b", { text: study.bundle.name }),
        ` score ${number(study.case.score)}, ${VERDICTS[verdict(study)]}`,
      );
    }
    this.#hover(null, -1, -1);
  }

  #hover(pane, x, y) {
    const { zoom, level, width } = this.view;
    const value = pane?.valueAt(x, y) ?? null;
    const place =
      value === null ? "" : `x ${Math.floor(x)}  y ${Math.floor(y)}  map ${number(value)}`;
    fill(
      this.readout,
      h("span", { text: place }),
      h("span", {
        text: `Zoom ${Math.round(100 * zoom)} %   Level ${Math.round(100 * level)} %   Width ${Math.round(100 * width)} %`,
      }),
    );
  }

  #explain(pane, x, y) {
    this.entries.find((entry) => entry.pane === pane)?.panel.nearest?.ask(pane, x, y);
  }

  /** Other bundles, for files that this page still has, and earlier results of the same files. */
  async #fillCompare() {
    const [bundles, jobs] = await Promise.all([
      getJson(address("bundles")),
      getJson(`${address("jobs")}?limit=200`),
    ]);
    const others = heldFiles.has(this.job.id)
      ? bundles.filter((bundle) => bundle.name !== this.job.bundle)
      : [];
    // By content: files of two patients may well have the same names. It stands for the names and
    // their order too, by which the case is found in the other result.
    const earlier = jobs.filter(
      (job) =>
        job.status === "done" &&
        job.kind === "score" &&
        job.bundle !== this.job.bundle &&
        job.content !== "" &&
        job.content === this.job.content,
    );
    const choices = (label, options) => options.length > 0 && h("optgroup", { label }, options);
    fill(
      this.compare,
      h("option", { value: "", text: "Nothing" }),
      choices(
        "Score again with",
        others.map((bundle) => h("option", { value: `bundle:${bundle.name}`, text: bundle.name })),
      ),
      choices(
        "Earlier results",
        earlier.map((job) =>
          h("option", {
            value: `job:${job.id}`,
            text: `${job.bundle}, ${new Date(1000 * job.created).toLocaleString()}`,
          }),
        ),
      ),
    );
    this.compare.parentElement.hidden = !others.length && !earlier.length;
  }

  async #onCompare() {
    const turn = ++this.#compared; // what an earlier choice still waits for is not shown any more
    this.removeSecond();
    this.left?.abort();
    const [kind, value] = this.compare.value.split(/:(.*)/s);
    if (!kind) return;
    try {
      const id = kind === "job" ? value : await this.#scoreAgain(value);
      const { cases, study } = await Study.open(id);
      if (turn !== this.#compared || this.disposed) return;
      const found = cases.find((one) => one.name === this.entries[0].study.case.name);
      if (!found) throw new Error("The other result does not hold this case.");
      this.add(study(found));
      fill(this.message);
    } catch (error) {
      if (turn !== this.#compared) return;
      this.compare.value = "";
      fill(this.message, error.name !== "AbortError" && problem(error));
    }
  }

  #scoreAgain(bundle) {
    this.left = new AbortController();
    const progress = scoreFiles(heldFiles.get(this.job.id), bundle, this.left.signal);
    fill(this.message, progress.element);
    return progress.finished;
  }
}
