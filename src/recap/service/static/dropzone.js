// A place to drop files on that is also a file field: mouse, touch and keyboard alike.

import { h } from "./dom.js";

let last = 0;

/** `onFiles(files)`; a file out of a folder carries its path in `given`. */
export function dropzone({ title, hint, onFiles, folder = true, accept, compact = false }) {
  const id = `files-${++last}`;
  const take = (input) => {
    const files = [...input.files].map((file) => named(file, file.webkitRelativePath || file.name));
    input.value = "";
    if (files.length) onFiles(files);
  };
  const files = h("input", {
    type: "file",
    id,
    class: "unseen",
    multiple: true,
    accept,
    "aria-label": title,
    onchange: () => take(files),
  });
  const folders =
    folder &&
    h("input", {
      type: "file",
      id: `${id}-folder`,
      class: "unseen",
      webkitdirectory: true,
      "aria-label": `${title}: a folder`,
      onchange: () => take(folders),
    });
  const element = h(
    "div",
    { class: compact ? "drop compact" : "drop" },
    h("p", { class: "drop-title", text: title }),
    hint && h("p", { class: "quiet-text", text: hint }),
    h(
      "div",
      { class: "row centre" },
      files,
      h("label", { for: id, class: "button", text: "Choose files" }),
      folders,
      folder && h("label", { for: `${id}-folder`, class: "button plain", text: "Choose a folder" }),
    ),
  );
  acceptDrops(element, onFiles);
  return element;
}

/** Let files be dropped on any element. */
export function acceptDrops(element, onFiles) {
  let depth = 0;
  const mark = (step) => {
    depth = Math.max(0, depth + step);
    element.toggleAttribute("data-over", depth > 0);
  };
  element.addEventListener("dragenter", (event) => {
    event.preventDefault();
    mark(1);
  });
  element.addEventListener("dragover", (event) => event.preventDefault());
  element.addEventListener("dragleave", () => mark(-1));
  element.addEventListener("drop", async (event) => {
    event.preventDefault();
    event.stopPropagation();
    depth = 0;
    mark(0);
    const files = await dropped(event.dataTransfer);
    if (files.length) onFiles(files);
  });
}

async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files].map((file) => named(file, file.name));
  return (await Promise.all(entries.map((entry) => walk(entry, "")))).flat();
}

async function walk(entry, above) {
  const path = above + entry.name;
  if (entry.name.startsWith(".")) return [];
  if (entry.isFile)
    return [named(await new Promise((resolve, reject) => entry.file(resolve, reject)), path)];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) break;
    found.push(...some);
  }
  return (await Promise.all(found.map((child) => walk(child, `${path}/`)))).flat();
}

function named(file, given) {
  file.given = given;
  return file;
}
