// Elements without markup strings: whatever a file is called, it stays text.

/** An element: properties by name, `on…` functions as listeners, the rest as attributes. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name === "value" || name === "htmlFor") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat().filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Empty an element and fill it anew. */
export function fill(element, ...children) {
  element.replaceChildren(
    ...children.flat().filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

let lastSaid = 0;
let waiting = null;

/** Tell screen readers; of texts in quick succession the last one is read. */
export function announce(text) {
  clearTimeout(waiting);
  const say = () => {
    lastSaid = performance.now();
    document.getElementById("live").textContent = text;
  };
  waiting = setTimeout(say, Math.max(0, 700 - (performance.now() - lastSaid)));
}

/** A number in few digits, as the tables of recap have it. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return Math.abs(value) >= 1000
    ? Math.round(value).toLocaleString("en")
    : String(Number(value.toPrecision(digits)));
}

/** A share as a percentage. */
export function percent(share) {
  const shown = 100 * share;
  return `${shown < 10 ? Number(shown.toPrecision(2)) : Math.round(shown)} %`;
}

/** "1 slice", "3 slices". */
export function count(n, word) {
  return `${n} ${word}${n === 1 ? "" : "s"}`;
}

/** Draw on a canvas now and whenever its place on the page changes size, sharp on any screen. */
export function drawSharply(canvas, draw) {
  const fitted = () => {
    const ratio = window.devicePixelRatio || 1;
    const { width, height } = canvas.getBoundingClientRect();
    if (!width) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    draw(canvas.getContext("2d"), ratio);
  };
  new ResizeObserver(fitted).observe(canvas);
  return fitted;
}

/** A colour of the theme, such as "--accent". */
export function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

let lastId = 0;

/** A slider with its label and value; `above` stands between them and the track. */
export function slider({
  label,
  min,
  max,
  step = "any",
  value,
  oninput,
  text = number,
  above = null,
}) {
  const id = `slider-${++lastId}`;
  const shown = h("output", { for: id });
  const input = h("input", { type: "range", id, min, max, step, value });
  const set = (next) => {
    if (Number(input.value) !== next) input.value = next;
    shown.textContent = text(next);
    input.setAttribute("aria-valuetext", shown.textContent);
  };
  input.addEventListener("input", () => {
    set(Number(input.value));
    oninput(Number(input.value));
  });
  set(value);
  return {
    element: h(
      "div",
      { class: "slider" },
      h("label", { for: id, text: label }),
      shown,
      above ?? "",
      input,
    ),
    set,
  };
}

/** What went wrong, in words, where the user looks. */
export function problem(error) {
  return h("p", { class: "problem", role: "alert", text: error.message || String(error) });
}
