"""What the benchmark's page adds to the house style."""

PAGE_STYLE = """\
html { scroll-padding-top: 1rem; }
a { color: var(--accent); text-underline-offset: .15em; }
nav {
  margin-top: 1.5rem; padding: 1rem 1.25rem; background: var(--sheet);
  border: 1px solid var(--line); border-radius: 8px; font-size: .9rem;
}
nav h2 { margin: 0 0 .5rem; font-size: 1rem; }
nav ul { margin: 0; padding: 0; list-style: none; }
nav > ul { columns: 22rem; column-gap: 2.5rem; }
nav > ul > li { margin-bottom: .6rem; font-weight: 500; }
nav ul ul { padding-left: 1rem; font-weight: 400; }
nav li { overflow-wrap: anywhere; break-inside: avoid; }
nav > ul > li { break-inside: auto; }
.scroll.small {
  display: inline-block; max-width: 100%; margin: 1rem 1.5rem 0 0; vertical-align: top;
}
.scroll.small td, .scroll.small th { padding: .35rem .9rem; }
details { margin-top: 1rem; }
summary { cursor: pointer; color: var(--accent); }
details.part > summary { margin-top: 2.5rem; font-size: 1.2rem; font-weight: 600; }
#studies {
  display: grid; gap: 0 1.5rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 42rem), 1fr));
}
#studies > section { min-width: 0; }
#studies h2 { font-size: 1.05rem; margin-top: 2rem; }
.notes { max-width: 70rem; }
.plots {
  display: grid; gap: 1.5rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 42rem), 1fr));
}
.plot {
  padding: 1rem; background: var(--sheet);
  border: 1px solid var(--line); border-radius: 8px;
}
.plot img {
  width: auto; height: auto; max-width: 100%; aspect-ratio: auto; margin: 0 auto; background: #fff;
}
.plot figcaption { margin-top: .75rem; font-size: .9rem; }
.plot figcaption strong { color: var(--text); }
@page wide { size: A4 landscape; margin: 1.2cm; }
@page { size: A4; margin: 1.5cm; }
@media print {
  #summary, #tables, details.part { page: wide; }
  #studies { display: block; }
  #tables > section, #studies > section { break-inside: avoid; }
  .plots { display: block; }
  nav > ul { columns: 2; }
  .plot { margin-bottom: 1rem; padding: 0; border: 0; break-inside: avoid; }
  .plot img { max-height: 22cm; }
  .scroll { overflow: visible; border: 0; }
  .numbers { font-size: 6.5pt; }
  .numbers th, .numbers td { padding: .12rem .25rem; }
}
@media (max-width: 40rem) {
  body { padding: 1.25rem .75rem 3rem; }
  .plot { padding: .5rem; }
}
"""
