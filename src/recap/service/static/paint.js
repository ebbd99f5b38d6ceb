// Painting a mask on a picture: strokes are kept, so that any number can be undone.

import { h, slider } from "./dom.js";

const COLOUR = "rgb(0 229 255 / 55%)";

/** Strokes in picture pixels: { erase, size, points: [[x, y], …] }. */
export class Mask {
  strokes = [];

  constructor(width, height) {
    this.width = width;
    this.height = height;
  }

  /** The mask drawn in one colour on a transparent canvas. */
  drawn(colour) {
    const canvas = new OffscreenCanvas(this.width, this.height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.lineCap = context.lineJoin = "round";
    for (const { erase, size, points } of this.strokes) {
      context.globalCompositeOperation = erase ? "destination-out" : "source-over";
      context.strokeStyle = erase ? "#000" : "#fff";
      context.lineWidth = size;
      context.beginPath();
      points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
      if (points.length === 1) context.lineTo(points[0][0] + 0.01, points[0][1]);
      context.stroke();
    }
    context.globalCompositeOperation = "source-in";
    context.fillStyle = colour;
    context.fillRect(0, 0, this.width, this.height);
    return canvas;
  }

  /** How many pixels are marked. */
  get area() {
    return this.pixels().reduce((sum, value) => sum + (value ? 1 : 0), 0);
  }

  /** 0 or 255 for every pixel: soft edges of strokes are cut at one half. */
  pixels() {
    const { data } = this.drawn("#fff")
      .getContext("2d")
      .getImageData(0, 0, this.width, this.height);
    return Uint8Array.from({ length: this.width * this.height }, (_, i) =>
      data[4 * i + 3] > 127 ? 255 : 0,
    );
  }

  /** A black and white PNG of the picture's own size. */
  async png() {
    const picture = new ImageData(this.width, this.height);
    this.pixels().forEach((value, i) => picture.data.set([value, value, value, 255], 4 * i));
    const canvas = new OffscreenCanvas(this.width, this.height);
    canvas.getContext("2d").putImageData(picture, 0, 0);
    return canvas.convertToBlob({ type: "image/png" });
  }
}

/** Open the painting dialog; resolves with the mask, or null if nothing was kept. */
export function paint(bitmap, name, before) {
  const mask = new Mask(bitmap.width, bitmap.height);
  mask.strokes = before ? [...before.strokes] : [];
  const desk = new Desk(bitmap, mask);
  return new Promise((resolve) => {
    const keep = h("button", { type: "button", class: "primary", text: "Keep mask" });
    const cancel = h("button", { type: "button", class: "quiet", text: "Cancel" });
    const dialog = h(
      "dialog",
      { class: "paint", "aria-label": `Paint the mask of ${name}` },
      h(
        "header",
        { class: "row between" },
        h("h2", { text: `Mask of ${name}` }),
        h("div", { class: "row" }, cancel, keep),
      ),
      desk.tools(),
      desk.canvas,
      h("p", {
        class: "quiet-text",
        text: "Paint what is abnormal. Keys: arrows move the brush, Space paints, Shift and arrows paint while moving, E erases, Ctrl+Z undoes.",
      }),
    );
    const end = (result) => {
      dialog.close();
      dialog.remove();
      resolve(result);
    };
    keep.addEventListener("click", () => end(mask.strokes.length ? mask : null));
    cancel.addEventListener("click", () => end(before ?? null));
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      end(before ?? null);
    });
    document.body.append(dialog);
    dialog.showModal();
    desk.canvas.focus();
    desk.draw();
  });
}

class Desk {
  erase = false;
  at = null;

  constructor(bitmap, mask) {
    this.bitmap = bitmap;
    this.mask = mask;
    this.size = Math.max(3, Math.round(Math.max(bitmap.width, bitmap.height) / 20));
    this.canvas = h("canvas", {
      class: "desk",
      width: bitmap.width,
      height: bitmap.height,
      tabindex: 0,
      role: "application",
      "aria-roledescription": "painting area",
      "aria-label": "Mask",
    });
    // As large as fits, in the picture's own proportions: places map to pixels by one factor.
    this.canvas.style.width = `min(100%, ${(60 * bitmap.width) / bitmap.height}vh)`;
    this.canvas.addEventListener("pointerdown", (event) => this.#start(event));
    this.canvas.addEventListener("pointermove", (event) => this.#move(event));
    this.canvas.addEventListener("pointerup", () => (this.stroke = null));
    this.canvas.addEventListener("pointercancel", () => (this.stroke = null));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  tools() {
    const side = Math.max(this.bitmap.width, this.bitmap.height);
    const size = slider({
      label: "Brush size",
      min: 1,
      max: Math.max(8, Math.round(side / 4)),
      step: 1,
      value: this.size,
      text: (px) => `${px} px`,
      oninput: (value) => this.#set({ size: value }),
    });
    this.eraser = h("button", {
      type: "button",
      "aria-pressed": "false",
      text: "Erase",
      onclick: () => this.#set({ erase: !this.erase }),
    });
    const undo = h("button", { type: "button", text: "Undo", onclick: () => this.undo() });
    const clear = h("button", { type: "button", text: "Clear", onclick: () => this.#change([]) });
    return h("div", { class: "row paint-tools" }, size.element, this.eraser, undo, clear);
  }

  undo() {
    this.#change(this.mask.strokes.slice(0, -1));
  }

  draw() {
    const context = this.canvas.getContext("2d");
    context.drawImage(this.bitmap, 0, 0);
    context.drawImage(this.mask.drawn(COLOUR), 0, 0);
    if (!this.at) return;
    context.beginPath();
    context.arc(...this.at, this.size / 2, 0, 7);
    context.lineWidth = Math.max(1, this.bitmap.width / 500);
    context.strokeStyle = this.erase ? "#ffb37a" : "#fff";
    context.stroke();
  }

  #set(values) {
    Object.assign(this, values);
    this.eraser.setAttribute("aria-pressed", String(this.erase));
    this.draw();
  }

  #change(strokes) {
    this.mask.strokes = strokes;
    this.stroke = null;
    this.draw();
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    return [
      ((event.clientX - box.left) * this.canvas.width) / box.width,
      ((event.clientY - box.top) * this.canvas.height) / box.height,
    ];
  }

  #start(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.#begin(this.#point(event));
  }

  #begin(point) {
    this.stroke = { erase: this.erase, size: this.size, points: [point] };
    this.mask.strokes.push(this.stroke);
    this.at = point;
    this.draw();
  }

  #move(event) {
    this.at = this.#point(event);
    this.stroke?.points.push(this.at);
    this.draw();
  }

  #key(event) {
    const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[
      event.key
    ];
    if (arrow) this.#steer(arrow, event.shiftKey);
    else if (event.key === " ") this.#begin(this.#here());
    else if (event.key === "e") this.#set({ erase: !this.erase });
    else if (event.key === "z" && (event.ctrlKey || event.metaKey)) this.undo();
    else return;
    event.preventDefault();
  }

  #here() {
    return this.at ?? [this.bitmap.width / 2, this.bitmap.height / 2];
  }

  #steer([dx, dy], painting) {
    const step = Math.max(1, this.size / 3);
    const [x, y] = this.#here();
    const next = [
      Math.min(this.bitmap.width, Math.max(0, x + dx * step)),
      Math.min(this.bitmap.height, Math.max(0, y + dy * step)),
    ];
    if (painting) {
      this.#begin([x, y]);
      this.stroke.points.push(next);
    }
    this.at = next;
    this.draw();
  }
}

/** A small picture of an image with its mask. */
export function thumbnail(canvas, bitmap, mask) {
  const scale = Math.min(canvas.width / bitmap.width, canvas.height / bitmap.height);
  const [width, height] = [bitmap.width * scale, bitmap.height * scale];
  const place = [(canvas.width - width) / 2, (canvas.height - height) / 2, width, height];
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, ...place);
  if (mask) context.drawImage(mask.drawn(COLOUR), ...place);
}
