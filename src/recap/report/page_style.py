"""The style sheet of the HTML report, kept inside the page so that it needs no other file."""

STYLE = """\
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --sheet: #ffffff; --line: #dde2e8; --text: #1b2530; --quiet: #566270;
  --accent: #1f5f8b; --notice: #eef4f9; --track: #e3e8ed;
  --normal: #dff0ea; --normal-text: #0f5a43; --abnormal: #fbe7d9; --abnormal-text: #843a06;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12171d; --sheet: #1a2129; --line: #303a45; --text: #e6ebf0; --quiet: #a3b0bd;
    --accent: #74b4e0; --notice: #1a2733; --track: #313b46;
    --normal: #173a30; --normal-text: #9fdcc6; --abnormal: #45270f; --abnormal-text: #f6c49d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 78rem; padding: 2.5rem 1.5rem 4rem; background: var(--page);
  color: var(--text); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { margin: 0 0 1rem; font-size: 1.75rem; line-height: 1.25; font-weight: 600; }
h2 { margin: 2.5rem 0 1rem; font-size: 1.2rem; font-weight: 600; }
h3 { margin: 0; font-size: .95rem; font-weight: 600; overflow-wrap: anywhere; }
.count { margin-left: .5rem; color: var(--quiet); font-size: .95rem; font-weight: 400; }
.notice {
  margin: 0; padding: .8rem 1rem; max-width: none; background: var(--notice);
  border-left: 4px solid var(--accent); border-radius: 4px;
}
dl { margin: 0; }
dt { color: var(--quiet); font-size: .85rem; }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.facts {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: 1rem 2rem;
  margin-top: 1.5rem; padding: 1.1rem 1.25rem; background: var(--sheet);
  border: 1px solid var(--line); border-radius: 8px;
}
.facts dd { font-weight: 500; }
.scroll {
  overflow-x: auto; background: var(--sheet); border: 1px solid var(--line); border-radius: 8px;
}
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .6rem 1.25rem; text-align: right; border-top: 1px solid var(--line); }
th:first-child { text-align: left; }
thead th { border-top: 0; color: var(--quiet); font-size: .85rem; font-weight: 500; }
tbody th { font-weight: 500; }
.notes { margin: 0; padding-left: 1.2rem; }
.notes li { margin: .25rem 0; overflow-wrap: anywhere; }
.legend {
  display: flex; flex-wrap: wrap; align-items: center; gap: .75rem 1.5rem; margin-bottom: 1.25rem;
}
.legend img { width: 26rem; max-width: 100%; background: #fff; border-radius: 6px; }
.legend p { flex: 1 1 20rem; margin: 0; color: var(--quiet); font-size: .9rem; }
.cards {
  display: grid; gap: 1.25rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 32rem), 1fr));
}
.cards.columns-2 { grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); }
.card {
  padding: 1rem 1.25rem 1.1rem; background: var(--sheet); border: 1px solid var(--line);
  border-radius: 8px; break-inside: avoid;
}
.top { display: flex; align-items: baseline; justify-content: space-between; gap: 1rem; }
.chip {
  flex: none; padding: .1rem .6rem; border-radius: 1rem; background: var(--track);
  font-size: .8rem; line-height: 1.5; white-space: nowrap;
}
.chip.normal { background: var(--normal); color: var(--normal-text); }
.chip.abnormal { background: var(--abnormal); color: var(--abnormal-text); }
.score { display: flex; align-items: center; gap: .6rem; margin: .6rem 0 .8rem; }
.score > span:first-child { color: var(--quiet); font-size: .85rem; }
.score strong { font-weight: 600; font-variant-numeric: tabular-nums; }
.bar { flex: 1; height: 4px; border-radius: 2px; background: var(--track); overflow: hidden; }
.bar i { display: block; height: 100%; background: var(--accent); }
.figures { display: grid; grid-template-columns: repeat(2, 1fr); gap: .6rem; }
.columns-3 .figures { grid-template-columns: repeat(3, 1fr); }
figure { margin: 0; min-width: 0; }
figure img {
  display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: #000;
  border-radius: 4px;
}
figcaption { margin-top: .3rem; color: var(--quiet); font-size: .8rem; }
.details {
  display: flex; flex-wrap: wrap; gap: .35rem 1.5rem; margin-top: .75rem; padding-top: .7rem;
  border-top: 1px solid var(--line); font-size: .85rem;
}
.details div { display: flex; gap: .4rem; }
@media print {
  :root {
    color-scheme: light;
    --page: #fff; --sheet: #fff; --line: #bbb; --text: #000; --quiet: #444; --accent: #1f5f8b;
    --notice: #f3f6f9; --track: #ddd; --normal: #fff; --normal-text: #000;
    --abnormal: #fff; --abnormal-text: #000;
  }
  html { font-size: 9.5pt; }
  body { max-width: none; padding: 0; print-color-adjust: exact; }
  h2 { break-after: avoid; }
  .chip { border: 1px solid var(--line); }
  .cards.columns-3 { grid-template-columns: 1fr; gap: .6rem; }
  .cards.columns-2 { grid-template-columns: repeat(2, 1fr); gap: .6rem; }
  .columns-3 .figures { grid-template-columns: repeat(3, 4.4cm); }
  tr { break-inside: avoid; }
}
"""
