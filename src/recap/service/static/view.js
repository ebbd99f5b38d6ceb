// How pictures are looked at. Panes that share one view stay in step.

export const NEAREST_ZOOM = 0.5;
const FARTHEST_ZOOM = 40;

/** Zoom 1 shows the whole picture; the centre is a share of its width and height. */
export class View extends EventTarget {
  slice = 0;
  zoom = 1;
  centre = [0.5, 0.5];
  level = 0.5;
  width = 1;
  opacity = 1;
  outlines = true;
  tool = "window";
  cursor = null;

  /** Change several things at once; `change` tells which. */
  set(values) {
    const changed = Object.keys(values).filter((name) => this[name] !== values[name]);
    if (!changed.length) return;
    Object.assign(this, values);
    this.dispatchEvent(new CustomEvent("change", { detail: new Set(changed) }));
  }

  /** Zoom by a factor while the place at `focus` (shares of the picture) stays where it is. */
  zoomBy(factor, focus = this.centre) {
    const zoom = Math.min(FARTHEST_ZOOM, Math.max(NEAREST_ZOOM, this.zoom * factor));
    const step = this.zoom / zoom;
    this.set({
      zoom,
      centre: this.centre.map((at, i) => clamp(focus[i] + (at - focus[i]) * step)),
    });
  }

  panBy(dx, dy) {
    this.set({ centre: [clamp(this.centre[0] + dx), clamp(this.centre[1] + dy)] });
  }

  windowBy(width, level) {
    this.set({
      width: Math.min(2, Math.max(0.02, this.width + width)),
      level: clamp(this.level + level),
    });
  }

  fit() {
    this.set({ zoom: 1, centre: [0.5, 0.5] });
  }

  /** Show a box (shares of the picture) with some of its surroundings. */
  goTo(slice, [left, top, right, bottom]) {
    const side = Math.max(right - left, bottom - top, 0.02);
    this.set({
      slice,
      zoom: Math.min(8, Math.max(1, 0.4 / side)),
      centre: [(left + right) / 2, (top + bottom) / 2],
    });
  }
}

const clamp = (share) => Math.min(1, Math.max(0, share));
