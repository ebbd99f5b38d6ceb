// One pane: a picture with its map, outlines and marks on a canvas. Input is in gestures.js.

import { mapPicture, OUTLINE, pixelsOf, windowed } from "./colours.js";
import { h } from "./dom.js";
import { listen } from "./gestures.js";
import { findRegions, outlines } from "./regions.js";

const HELP =
  "Arrow keys change the slice, or move the cross while explaining. Plus and minus zoom, 0 fits, " +
  "Shift and arrows move the picture, brackets change contrast, comma and full stop brightness, " +
  "N and P step through regions, Enter explains the place under the cross.";

export class Pane {
  #pixels = null;
  #shown = null;
  #shownFor = "";
  #mapShown = null;
  #edges = null;
  #edgesFor = "";
  #loading = 0;
  #frame = 0;

  /** `study` gives pictures and maps and holds the level; `view` may be shared with other panes. */
  constructor(study, view, onExplain) {
    this.study = study;
    this.view = view;
    this.canvas = h("canvas", {
      tabindex: 0,
      role: "application",
      "aria-roledescription": "image viewer",
      "aria-label": `${study.case.name}, scored by ${study.bundle.name}. ${HELP}`,
    });
    this.busy = h("p", { class: "pane-busy", role: "status" });
    this.element = h("div", { class: "pane" }, this.canvas, this.busy);
    this.#watch();
    listen(this, onExplain);
    this.load();
  }

  dispose() {
    this.resizing.disconnect();
    this.view.removeEventListener("change", this.onView);
    this.study.removeEventListener("change", this.onStudy);
    cancelAnimationFrame(this.#frame);
  }

  /** Fetch the current slice; a slower, older answer never overwrites a newer one. */
  async load() {
    const turn = ++this.#loading;
    const late = setTimeout(() => (this.busy.textContent = "Loading…"), 200);
    try {
      const [picture, map] = await this.study.slice(this.view.slice);
      if (turn !== this.#loading) return;
      this.#pixels = pixelsOf(picture);
      this.map = map;
      this.#mapShown = mapPicture(map, this.study.case.scale);
      this.#shownFor = this.#edgesFor = "";
      this.busy.textContent = "";
      this.draw();
      this.study.ahead(this.view.slice);
    } catch (error) {
      if (turn === this.#loading) this.busy.textContent = error.message;
    } finally {
      clearTimeout(late);
    }
  }

  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#paint());
  }

  get size() {
    return this.#pixels ? [this.#pixels.width, this.#pixels.height] : [1, 1];
  }

  /** From picture pixels to canvas pixels: how wide and how high one is drawn, and the offsets. */
  transform() {
    const [width, height] = this.size;
    const tall = this.study.pixelAspect;
    const fit = Math.min(this.canvas.width / width, this.canvas.height / height / tall) * 0.98;
    const across = fit * this.view.zoom;
    const down = across * tall;
    const [x, y] = this.view.centre;
    return {
      across,
      down,
      left: this.canvas.width / 2 - x * width * across,
      top: this.canvas.height / 2 - y * height * down,
    };
  }

  /** A place on the screen in picture pixels. */
  toPicture(clientX, clientY) {
    const box = this.canvas.getBoundingClientRect();
    const ratio = this.canvas.width / box.width;
    const { across, down, left, top } = this.transform();
    return [
      ((clientX - box.left) * ratio - left) / across,
      ((clientY - box.top) * ratio - top) / down,
    ];
  }

  /** The map's value at a picture pixel, or null outside. */
  valueAt(x, y) {
    const [width, height] = this.size;
    if (!this.map || x < 0 || y < 0 || x >= width || y >= height) return null;
    const column = Math.floor((x * this.map.width) / width);
    return this.map.data[Math.floor((y * this.map.height) / height) * this.map.width + column];
  }

  #watch() {
    this.onView = (event) => (event.detail.has("slice") ? this.load() : this.draw());
    this.onStudy = () => this.draw();
    this.view.addEventListener("change", this.onView);
    this.study.addEventListener("change", this.onStudy);
    this.resizing = new ResizeObserver(() => this.#resize());
    this.resizing.observe(this.element);
  }

  #resize() {
    const ratio = window.devicePixelRatio || 1;
    const { width, height } = this.element.getBoundingClientRect();
    this.canvas.width = Math.max(1, Math.round(width * ratio));
    this.canvas.height = Math.max(1, Math.round(height * ratio));
    this.#paint(); // at once: a resized canvas is empty until it is drawn
  }

  #paint() {
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (!this.#pixels) return;
    const { across, down, left, top } = this.transform();
    const [width, height] = this.size;
    const matrix = new DOMMatrix([across, 0, 0, down, left, top]);
    context.setTransform(matrix);
    context.imageSmoothingEnabled = Math.min(across, down) < 4;
    context.drawImage(this.#windowed(), 0, 0);
    context.imageSmoothingEnabled = true;
    context.globalAlpha = this.view.opacity;
    if (this.view.opacity > 0) context.drawImage(this.#mapShown, 0, 0, width, height);
    context.globalAlpha = 1;
    context.resetTransform(); // lines are as wide across as down
    if (this.view.outlines) this.#drawOutlines(context, matrix);
    this.#drawHighlight(context, matrix);
    this.#drawCursor(context, matrix);
  }

  #windowed() {
    const { level, width } = this.view;
    const key = `${level} ${width}`;
    if (key !== this.#shownFor) {
      this.#shown = windowed(this.#pixels, level, width);
      this.#shownFor = key;
    }
    return this.#shown;
  }

  #drawOutlines(context, matrix) {
    const { level } = this.study;
    if (this.#edgesFor !== String(level)) {
      const { labels } = findRegions(this.map, level);
      this.#edges = outlines(labels, this.map.width, this.map.height);
      this.#edgesFor = String(level);
    }
    const [width, height] = this.size;
    const [sx, sy] = [width / this.map.width, height / this.map.height];
    const path = new Path2D();
    for (let i = 0; i < this.#edges.length; i += 4) {
      path.moveTo(this.#edges[i] * sx, this.#edges[i + 1] * sy);
      path.lineTo(this.#edges[i + 2] * sx, this.#edges[i + 3] * sy);
    }
    const placed = new Path2D();
    placed.addPath(path, matrix);
    stroke(context, placed, OUTLINE, 1.5);
  }

  #drawHighlight(context, matrix) {
    const region = this.study.highlight;
    if (!region || region.image !== this.view.slice) return;
    const [x0, y0, x1, y1] = region.box_xyxy_px;
    const [left, right] = [x0, x1].map((x) => x * matrix.a + matrix.e);
    const [top, bottom] = [y0, y1].map((y) => y * matrix.d + matrix.f);
    const path = new Path2D();
    path.rect(left - 4, top - 4, right - left + 8, bottom - top + 8);
    stroke(context, path, "rgb(0 0 0 / 65%)", 4.5);
    stroke(context, path, "#fff", 2);
  }

  #drawCursor(context, matrix) {
    if (!this.view.cursor) return;
    const [width, height] = this.size;
    const x = this.view.cursor[0] * width * matrix.a + matrix.e;
    const y = this.view.cursor[1] * height * matrix.d + matrix.f;
    const path = new Path2D();
    const [near, far] = [5, 16];
    for (const [dx, dy] of [
      [1, 0],
      [-1, 0],
      [0, 1],
      [0, -1],
    ]) {
      path.moveTo(x + dx * near, y + dy * near);
      path.lineTo(x + dx * far, y + dy * far);
    }
    stroke(context, path, "rgb(0 0 0 / 65%)", 4.5);
    stroke(context, path, "#fff", 2);
  }
}

function stroke(context, path, colour, width) {
  context.strokeStyle = colour;
  context.lineWidth = width * (window.devicePixelRatio || 1);
  context.stroke(path);
}
