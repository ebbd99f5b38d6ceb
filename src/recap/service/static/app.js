// Start: theme, token form, and which page is shown.

import { address, getJson, onUnauthorised, send } from "./api.js";
import { openBundles } from "./bundles.js";
import { fill, h } from "./dom.js";
import { openFit } from "./fit.js";
import { openResults } from "./results.js";
import { openScore } from "./score.js";
import { openStage } from "./stage.js";

const PAGES = { score: openScore, results: openResults, fit: openFit, bundles: openBundles };
const root = document.getElementById("main");
let leave = () => {};
let shown = null;

/** Show the page that the address names: #/score, #/job/ID/CASE, … */
function show() {
  const [page = "score", id, index] = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  // A page that is open already stays as it is: building it anew would end an upload.
  const place = [page, id, index].join("/");
  if (place === shown) return;
  shown = place;
  leave();
  document.title = "recap";
  document.body.dataset.page = page;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${page}` || (page === "job" && link.hash === "#/results"))
      link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (page === "job" && id)
    leave = openStage(root, id, index === undefined ? undefined : Number(index));
  else leave = (PAGES[page] ?? openScore)(root, id);
}

function setUpTheme() {
  const button = document.getElementById("theme-button");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () =>
    (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const chosen = localStorage.getItem("recap-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
  const refresh = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("recap-theme", document.documentElement.dataset.theme);
    refresh();
    dispatchEvent(new Event("themechange"));
  });
  dark.addEventListener("change", refresh);
  refresh();
}

function setUpToken() {
  const dialog = document.getElementById("token-dialog");
  const form = document.getElementById("token-form");
  const wrong = document.getElementById("token-error");
  let asked = null;
  let resolve = null;
  // However many requests are refused at once, the form is shown once.
  const ask = () => {
    asked ??= new Promise((done) => {
      resolve = done;
      dialog.showModal();
    });
    return asked;
  };
  onUnauthorised(ask);
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await send("POST", address("session"), { token: form.elements.token.value });
      form.reset();
      wrong.hidden = true;
      dialog.close();
      asked = null;
      resolve();
    } catch (error) {
      wrong.textContent = error.status === 401 ? "This token is not right." : error.message;
      wrong.hidden = false;
    }
  });
  return ask;
}

const KEYS = [
  ["Up, Down", "previous, next slice (with Explain: move the cross)"],
  ["Page Up, Page Down", "ten slices"],
  ["Home, End", "first, last slice"],
  ["Wheel", "slices of a volume, zoom of a picture; with Ctrl always zoom"],
  ["+  −  0", "zoom in, out, fit"],
  ["Shift + arrows", "move the picture"],
  ["[  ]", "less, more window width"],
  [",  .", "window level up, down"],
  ["N, P", "next, previous region"],
  ["M, O", "map, outlines on and off"],
  ["Enter", "nearest normal patch at the cross"],
  ["Drag", "window and level, or move; Shift or right button always moves"],
];

function setUpKeys() {
  const dialog = document.getElementById("keys-dialog");
  fill(
    dialog,
    h("h2", { id: "keys-title", text: "Keyboard and mouse" }),
    h("p", { class: "quiet-text", text: "Keys work while the picture has the focus." }),
    h(
      "dl",
      { class: "keys" },
      KEYS.flatMap(([key, does]) => [h("dt", { text: key }), h("dd", { text: does })]),
    ),
    h(
      "form",
      { method: "dialog", class: "row end" },
      h("button", { class: "primary", text: "Close" }),
    ),
  );
  document.getElementById("keys-button").addEventListener("click", () => dialog.showModal());
}

setUpTheme();
const askForToken = setUpToken();
setUpKeys();
// A file that misses its place must not replace the page.
for (const name of ["dragover", "drop"]) addEventListener(name, (event) => event.preventDefault());
addEventListener("hashchange", () => {
  show();
  root.focus({ preventScroll: true });
});
// Asked first, so that a browser without a session sees the form instead of errors.
getJson(address("session"))
  .then(({ needs_token: needed, signed_in: known }) => needed && !known && askForToken())
  .catch(() => {})
  .then(show);
