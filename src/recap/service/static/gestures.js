// What mouse, pen, fingers and keys do on a pane.

const CLICK_PX = 4;

/** Connect a pane's canvas; `onExplain(x, y)` gets picture pixels. */
export function listen(pane, onExplain) {
  const { canvas } = pane;
  const touching = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    touching.set(event.pointerId, [event.clientX, event.clientY]);
    if (touching.size === 1) moved = 0;
    event.preventDefault();
  });
  canvas.addEventListener("pointermove", (event) => {
    pane.onHover?.(...pane.toPicture(event.clientX, event.clientY));
    const before = touching.get(event.pointerId);
    if (!before) return;
    const step = [event.clientX - before[0], event.clientY - before[1]];
    moved += Math.hypot(...step);
    if (touching.size === 2) pinch(pane, touching, event);
    else if (moved > CLICK_PX) drag(pane, event, step);
    touching.set(event.pointerId, [event.clientX, event.clientY]);
  });
  const end = (event) => {
    const known = touching.delete(event.pointerId);
    if (!known || event.type !== "pointerup" || touching.size || event.button !== 0) return;
    if (moved <= CLICK_PX) explain(pane, pane.toPicture(event.clientX, event.clientY), onExplain);
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", () => pane.onHover?.(-1, -1));
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  canvas.addEventListener("dblclick", () => pane.view.fit());
  canvas.addEventListener("wheel", (event) => wheel(pane, event), { passive: false });
  canvas.addEventListener("keydown", (event) => key(pane, event, onExplain));
}

function drag(pane, event, [dx, dy]) {
  const pans = pane.view.tool !== "window" || event.shiftKey || event.buttons > 1;
  const { width, height } = pane.canvas.getBoundingClientRect();
  if (!pans) return pane.view.windowBy((dx / width) * 1.5, (-dy / height) * 1.5);
  const { across, down } = pane.transform();
  const ratio = pane.canvas.width / width;
  pane.view.panBy((-dx * ratio) / across / pane.size[0], (-dy * ratio) / down / pane.size[1]);
}

function pinch(pane, touching, event) {
  const other = [...touching].find(([id]) => id !== event.pointerId)[1];
  const before = touching.get(event.pointerId);
  const apart = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
  const now = [event.clientX, event.clientY];
  const middle = pane.toPicture((now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
  pane.view.zoomBy(apart(now) / apart(before), shares(pane, middle));
}

let turned = 0;

/** Slices of volumes; zoom for single pictures, and always with Ctrl (a pinch on a touchpad). */
function wheel(pane, event) {
  event.preventDefault();
  if (event.ctrlKey || event.metaKey || pane.study.case.images <= 1) {
    pane.view.zoomBy(
      Math.exp(-event.deltaY / 400),
      shares(pane, pane.toPicture(event.clientX, event.clientY)),
    );
    return;
  }
  turned += event.deltaY;
  const steps = Math.trunc(turned / 40);
  turned -= steps * 40;
  if (steps) toSlice(pane, pane.view.slice + Math.sign(steps));
}

export function toSlice(pane, slice) {
  pane.view.set({ slice: Math.min(pane.study.case.images - 1, Math.max(0, slice)) });
}

function explain(pane, [x, y], onExplain) {
  const [width, height] = pane.size;
  if (x < 0 || y < 0 || x >= width || y >= height) return;
  pane.view.set({ cursor: [x / width, y / height] });
  onExplain(pane, x, y);
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function key(pane, event, onExplain) {
  const { view } = pane;
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const arrow = ARROWS[event.key];
  const actions = {
    "+": () => view.zoomBy(1.25),
    "=": () => view.zoomBy(1.25),
    "-": () => view.zoomBy(0.8),
    0: () => view.fit(),
    "[": () => view.windowBy(-0.05, 0),
    "]": () => view.windowBy(0.05, 0),
    ",": () => view.windowBy(0, 0.03),
    ".": () => view.windowBy(0, -0.03),
    PageUp: () => toSlice(pane, view.slice - 10),
    PageDown: () => toSlice(pane, view.slice + 10),
    Home: () => toSlice(pane, 0),
    End: () => toSlice(pane, Infinity),
    n: () => pane.study.step(1, view),
    p: () => pane.study.step(-1, view),
    m: () => view.set({ opacity: view.opacity > 0 ? 0 : 1 }),
    o: () => view.set({ outlines: !view.outlines }),
    Enter: () => askAtCursor(pane, onExplain),
    Escape: () => view.set({ cursor: null }),
  };
  if (arrow) arrows(pane, event.shiftKey, arrow);
  else if (actions[event.key]) actions[event.key]();
  else return;
  event.preventDefault();
}

function arrows(pane, shift, [dx, dy]) {
  const { view } = pane;
  if (shift) view.panBy((0.1 * dx) / view.zoom, (0.1 * dy) / view.zoom);
  else if (view.tool === "explain") moveCursor(view, dx, dy);
  else toSlice(pane, view.slice + dx + dy);
}

function moveCursor(view, dx, dy) {
  const [x, y] = view.cursor ?? view.centre;
  const step = 0.02 / Math.max(1, view.zoom / 2);
  const within = (share) => Math.min(0.999, Math.max(0, share));
  view.set({ cursor: [within(x + dx * step), within(y + dy * step)] });
}

function askAtCursor(pane, onExplain) {
  const [x, y] = pane.view.cursor ?? pane.view.centre;
  explain(pane, [x * pane.size[0], y * pane.size[1]], onExplain);
}

const shares = (pane, [x, y]) => [x / pane.size[0], y / pane.size[1]];
