// Sorting, filtering, fading on the page of a scored folder, which reads well without.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const table = byId("table"), cards = byId("cards");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const cardOf = new Map([...document.querySelectorAll(".case")].map((c) => [c.dataset.case, c]));

  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const given = cell.dataset.v;
    if (given === undefined) return cell.textContent;
    return given === "" ? null : Number(given);
  };
  const compare = (one, two) =>
    typeof one === "string" ? one.localeCompare(two, undefined, { numeric: true }) : one - two;

  function sortBy(head, ascending) {
    const column = head.cellIndex;
    for (const other of head.parentNode.cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const keyed = rows.map((row) => [valueOf(row, column), row]);
    keyed.sort(([one], [two]) => {
      if (one === null || two === null) return (one === null) - (two === null);
      return ascending ? compare(one, two) : compare(two, one);
    });
    keyed.forEach(([, row], place) => (rows[place] = row));
    body.append(...rows);
    if (cards) cards.append(...rows.map((row) => cardOf.get(row.dataset.case)).filter(Boolean));
  }
  for (const head of table.tHead.rows[0].cells) {
    head.firstElementChild.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const first = head.dataset.type === "text" ? "ascending" : "descending";
      sortBy(head, before === "none" ? first === "ascending" : before === "descending");
    });
  }

  const find = byId("find"), state = byId("state"), withRegions = byId("with-regions");
  function filter() {
    const text = find.value.trim().toLowerCase();
    let count = 0;
    for (const row of rows) {
      const fits = row.cells[0].textContent.toLowerCase().includes(text) &&
        (!state.value || row.dataset.state === state.value) &&
        (!withRegions.checked || Number(row.dataset.regions) > 0);
      row.hidden = !fits;
      const card = cardOf.get(row.dataset.case);
      if (card) card.hidden = !fits;
      count += fits;
    }
    byId("count").textContent = count === rows.length ? count : `${count} of ${rows.length}`;
  }
  for (const control of [find, state, withRegions]) control.addEventListener("input", filter);

  const opacity = byId("opacity"), marks = byId("marks");
  if (!opacity) return;
  function fade() {
    document.documentElement.style.setProperty("--map", opacity.value / 100);
    byId("opacity-value").textContent = `${opacity.value} %`;
  }
  opacity.addEventListener("input", fade);
  marks.addEventListener("input", () => cards.classList.toggle("no-marks", !marks.checked));
  const references = byId("references");
  references?.addEventListener("input", () =>
    cards.classList.toggle("no-references", !references.checked));

  for (const line of cards.querySelectorAll("tr[data-region]")) {
    const card = line.closest(".case");
    const light = (on) => card.querySelector(`.region[data-region="${line.dataset.region}"]`)
      ?.classList.toggle("lit", on);
    line.addEventListener("pointerenter", () => light(true));
    line.addEventListener("pointerleave", () => light(false));
  }

  function step(by) {
    const seen = [...cards.children].filter((card) => !card.hidden);
    const here = seen.indexOf(document.activeElement.closest(".case"));
    const next = seen[here < 0 ? 0 : Math.min(seen.length - 1, Math.max(0, here + by))];
    next?.focus({ preventScroll: true });
    next?.scrollIntoView({ block: "start" });
  }
  let before = "80";
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=checkbox], [type=range]), select");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "m") {
      if (opacity.value === "0") opacity.value = before;
      else [before, opacity.value] = [opacity.value, "0"];
      fade();
    }
  });
  // Browsers keep the state of controls when a page is loaded again.
  filter();
  fade();
})();
