// Fitting a detector from the browser: images, masks, a name, progress, and what came of it.

import { address, getJson } from "./api.js";
import { bundleCard } from "./bundles.js";
import { announce, count, fill, h, problem } from "./dom.js";
import { dropzone } from "./dropzone.js";
import { paint, thumbnail } from "./paint.js";
import { submit } from "./submit.js";

const THUMB_PX = 144;

export function openFit(root) {
  const page = new FitPage();
  fill(root, page.element);
  page.load();
  return () => page.left.abort();
}

class FitPage {
  normals = [];
  abnormals = [];
  left = new AbortController();

  constructor() {
    this.normalGrid = h("ul", { class: "thumbs", "aria-label": "Normal images" });
    this.abnormalGrid = h("ul", { class: "thumbs", "aria-label": "Abnormal images" });
    this.note = h("p", { class: "quiet-text", "aria-live": "polite" });
    this.status = h("div", { class: "status", "aria-live": "polite" });
    this.name = h("input", {
      id: "fit-name",
      required: true,
      maxlength: 64,
      pattern: "[A-Za-z0-9][A-Za-z0-9_.\\-]*",
      autocomplete: "off",
      placeholder: "knee-mri",
      title: "Letters, digits, dots, dashes",
    });
    this.base = h("select", { id: "fit-base" });
    this.preset = h(
      "select",
      { id: "fit-preset" },
      h("option", { value: "recap", text: "ReCAP" }),
      h("option", { value: "fast", text: "As in the paper, side adapters" }),
      h("option", { value: "paper", text: "As in the paper, write-back (slow)" }),
    );
    this.epochs = h("input", {
      id: "fit-epochs",
      type: "number",
      min: 1,
      max: 1000,
      placeholder: "of the preset",
    });
    this.keepThumbnails = h("input", { id: "fit-thumbnails", type: "checkbox" });
    this.button = h("button", { type: "submit", class: "primary", text: "Fit" });
    this.element = this.#build();
    this.#refresh();
  }

  async load() {
    try {
      const bundles = await getJson(address("bundles"));
      fill(
        this.base,
        bundles.map((bundle) =>
          h("option", { value: bundle.name, text: `${bundle.encoder} (as ${bundle.name})` }),
        ),
      );
    } catch (error) {
      fill(this.status, problem(error));
    }
  }

  #build() {
    const field = (label, control) =>
      h("div", { class: "field" }, h("label", { for: control.id, text: label }), control);
    const form = h(
      "form",
      {
        class: "fit-form",
        onsubmit: (event) => {
          event.preventDefault();
          this.#fit();
        },
      },
      field("Name", this.name),
      field("Encoder", this.base),
      field("Preset", this.preset),
      field("Epochs", this.epochs),
      this.button,
      h(
        "label",
        { class: "check", for: this.keepThumbnails.id },
        this.keepThumbnails,
        " Keep small pictures of the normal images in the bundle, to show the nearest normal patch. They are images of patients.",
      ),
    );
    return h(
      "div",
      { class: "page wide fit" },
      h("h1", { text: "Fit a detector" }),
      h("p", {
        class: "quiet-text",
        text: "A few normal and a few abnormal images of one kind are enough. Masks say where the abnormal part is and make maps sharper; they are optional.",
      }),
      h(
        "div",
        { class: "fit-columns" },
        h(
          "section",
          {},
          h("h2", { text: "1  Normal images" }),
          dropzone({
            title: "Drop normal images",
            onFiles: (files) => this.#add("normals", files),
            compact: true,
          }),
          this.normalGrid,
        ),
        h(
          "section",
          {},
          h("h2", { text: "2  Abnormal images and masks" }),
          dropzone({
            title: "Drop abnormal images",
            onFiles: (files) => this.#add("abnormals", files),
            compact: true,
          }),
          this.abnormalGrid,
          dropzone({
            title: "Drop masks",
            hint: "named as their images; white marks what is abnormal",
            onFiles: (files) => this.#addMasks(files),
            folder: false,
            compact: true,
          }),
        ),
      ),
      this.note,
      h("section", {}, h("h2", { text: "3  Fit" }), form, this.status),
    );
  }

  #add(role, files) {
    const known = new Set(this[role].map((item) => item.file.name));
    const fresh = files
      .filter((file) => !known.has(file.name))
      .map((file) => ({ file, bitmap: null, mask: null, maskFile: null }));
    this[role].push(...fresh);
    const left = files.length - fresh.length;
    this.note.textContent = `${count(fresh.length, "image")} added.${left ? ` ${left} left out: their names are there already.` : ""}`;
    this.#refresh();
    for (const item of fresh) this.#decode(item);
  }

  /** What browsers cannot show (DICOM, NIfTI, TIFF) is fitted on all the same, without a preview. */
  async #decode(item) {
    item.bitmap = await createImageBitmap(item.file).catch(() => null);
    item.isOpaque = item.bitmap === null;
    this.#refresh();
  }

  #addMasks(files) {
    const left = files.filter((mask) => {
      const item = this.abnormals.find(
        (one) =>
          stem(one.file.name) === stem(mask.name).replace(/_mask$/, "") ||
          stem(one.file.name) === stem(mask.name),
      );
      if (item) [item.maskFile, item.mask] = [mask, null];
      return !item;
    });
    this.note.textContent = left.length
      ? `No abnormal image is named like ${left.map((file) => file.name).join(", ")}. Add the images first.`
      : `${count(files.length, "mask")} matched.`;
    this.#refresh();
  }

  #refresh() {
    fill(
      this.normalGrid,
      this.normals.map((item) => this.#thumb(item, "normals")),
    );
    fill(
      this.abnormalGrid,
      this.abnormals.map((item) => this.#thumb(item, "abnormals")),
    );
    this.button.disabled = !this.normals.length || this.isBusy;
  }

  #thumb(item, role) {
    const { name } = item.file;
    const canvas = h("canvas", { width: THUMB_PX, height: THUMB_PX, "aria-hidden": "true" });
    if (item.bitmap) thumbnail(canvas, item.bitmap, item.mask);
    const drop = h("button", {
      type: "button",
      class: "quiet small",
      "aria-label": `Remove ${name}`,
      text: "Remove",
      onclick: () => {
        this[role] = this[role].filter((one) => one !== item);
        this.#refresh();
      },
    });
    const paintButton =
      role === "abnormals" &&
      item.bitmap &&
      h("button", {
        type: "button",
        class: "small",
        "aria-label": `Paint the mask of ${name}`,
        text: item.mask ? "Edit mask" : "Paint mask",
        onclick: async () => {
          item.mask = await paint(item.bitmap, name, item.mask);
          if (item.mask) item.maskFile = null;
          this.#refresh();
        },
      });
    const note = item.isOpaque
      ? "no preview"
      : item.maskFile
        ? `mask: ${item.maskFile.name}`
        : item.mask
          ? "mask painted"
          : "";
    return h(
      "li",
      {},
      canvas,
      h("span", { class: "thumb-name", text: name, title: name }),
      h("span", { class: "quiet-text", text: note }),
      h("div", { class: "row" }, paintButton, drop),
    );
  }

  async #fit() {
    if (!this.name.reportValidity()) return;
    this.isBusy = true;
    this.#refresh();
    const sent = submit(address("fits"), await this.#form(), this.left.signal);
    fill(this.status, sent.element);
    try {
      const job = await sent.finished;
      const name = job.result?.bundle ?? this.name.value;
      const bundle = (await getJson(address("bundles"))).find((one) => one.name === name);
      announce(`Fitted ${name}.`);
      fill(
        this.status,
        h("h2", { text: "Ready" }),
        bundleCard(bundle, () => {}),
      );
    } catch (error) {
      fill(
        this.status,
        error.name === "AbortError"
          ? h("p", { class: "quiet-text", text: "Cancelled." })
          : problem(error),
      );
    } finally {
      this.isBusy = false;
      this.#refresh();
    }
  }

  async #form() {
    const form = new FormData();
    const options = {
      name: this.name.value,
      preset: this.preset.value,
      encoder_of: this.base.value,
      keep_thumbnails: this.keepThumbnails.checked,
    };
    if (this.epochs.value) options.epochs = Number(this.epochs.value);
    form.append("options", JSON.stringify(options));
    for (const { file } of this.normals) form.append("normals", file, file.name);
    for (const { file, mask, maskFile } of this.abnormals) {
      form.append("abnormals", file, file.name);
      if (maskFile) form.append("masks", maskFile, maskFile.name);
      else if (mask) form.append("masks", await mask.png(), `${stem(file.name)}.png`);
    }
    return form;
  }
}

const stem = (name) => name.replace(/(\.nii\.gz|\.[^.]*)$/i, "");
