"""The whole speed table, written to benchmarks/speed.md with the machine, versions and commands.

    make bench        (or: python benchmarks/speed_page.py [--data DATA] [--runs 20]
                                             [--only WORDS] [--before TREE])

Every section is one run of one command, and compares by ratios within that run: machines differ
and are noisy. With DATA, a folder of benchmark domains, whole archives are scored too, and commands
timed beside busy processes; with `--before` also those of another working copy. `--only` measures
again the section of that title, else those whose titles have these words, and keeps the others as
they are.
"""

import shlex
import subprocess
import sys
from pathlib import Path

import typer

from recap.runtime.engines import machine_facts

HERE = Path(__file__).parent
PAGE = HERE / "speed.md"
BUSY = "Beside busy processes"


def main(
    data: Path | None = None,
    runs: int = 20,
    large: bool = True,
    only: str = "",
    before: Path | None = None,
) -> None:
    """Run every section; one that fails is told on the page and in the exit code."""
    failed, page = [], measured_before() if only else {}
    every = sections(data, runs, large, before)
    wanted = {title: command for title, command in every if only in title}
    if only in wanted:
        wanted = {only: wanted[only]}
    for title, command in wanted.items():
        typer.echo(f"{title} …", err=True)
        page[title], is_well = section(title, command)
        if not is_well:
            failed.append(title)
        text = "\n".join([head(), *page.values()])
        PAGE.write_text(text, encoding="utf-8")  # a later failure costs nothing
    typer.echo(f"Written: {PAGE}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    if failed:
        raise typer.Exit(1)


def sections(
    data: Path | None, runs: int, large: bool, before: Path | None
) -> list[tuple[str, list[str]]]:
    """What is measured, and how."""
    count = ["--runs", str(runs)]
    timed = ["recap", "bench", "speed", "--random-weights", *count]
    small = [*timed, "--warmup", "5", "--encoder", "dinov2-small"]
    small += ["--methods", "recap", "--shots", "0,4,16"]
    large_ones = [*timed, "--warmup", "3", "--encoder", "clip-vit-l14-336"]
    big = [*large_ones, "--methods", "recap"]
    found = [
        ("dinov2-small", small),
        ("dinov2-small, the published head", [*small, "--preset", "fast"]),
        ("Training and scoring steps", ["python", "benchmarks/fit_speed.py"]),
        ("Runtimes, dinov2-small", ["python", "benchmarks/runtimes.py", "--int8", *count]),
        (
            "Runtimes, dinov2-small, memory not kept",
            ["python", "benchmarks/runtimes.py", "--plain-memory", *count],
        ),
        ("Ten heads over one encoder", ["python", "benchmarks/many_heads.py"]),
        ("Growth of the cost", ["python", "benchmarks/cost_growth.py"]),
    ]
    if large:
        runtimes = ["python", "benchmarks/runtimes.py", "--encoder", "clip-vit-l14-336", *count]
        found += [
            ("ViT-L/14@336", [*big, "--shots", "0,4,16"]),
            ("ViT-L/14@336, published", [*big, "--preset", "paper", "--shots", "0,4"]),
            (
                "ViT-L/14@336, published, memory of at most 256 rows",
                [*big, "--preset", "paper", "--coreset", "256", "--shots", "4,16"],
            ),
            (
                "ViT-L/14@336, all methods",
                [*large_ones, "--methods", "all", "--shots", "4", "--published"],
            ),
            ("Runtimes, ViT-L/14@336", runtimes),
            ("Runtimes, ViT-L/14@336, memory not kept", [*runtimes, "--plain-memory"]),
        ]
    if data is not None:
        pipeline = ["python", "benchmarks/score_pipeline.py", str(data.absolute())]
        found.append(("Archives: reading, scoring and writing", pipeline))
        busy = ["python", "benchmarks/busy_machine.py", str((data / "Brain_AD").absolute())]
        if before is not None:
            busy += ["--before", str(before.absolute())]
        found.append((BUSY, busy))
    return found


def measured_before() -> dict[str, str]:
    """The sections of the page that is there, by title."""
    if not PAGE.exists():
        return {}
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def head() -> str:
    """What it was measured on."""
    facts = ", ".join(f"{name} {value}" for name, value in machine_facts().items())
    advice = "Compare ratios, not times; sections may be of different hours."
    return f"# Speed\n\nMade by `make bench` on: {facts}. {advice}\n"


def section(title: str, command: list[str]) -> tuple[str, bool]:
    """One command and what it printed."""
    program = {"python": sys.executable, "recap": str(Path(sys.executable).with_name("recap"))}
    run = subprocess.run(
        [program[command[0]], *command[1:]],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    printed = run.stdout.strip() or run.stderr.strip()[-500:]
    told = "" if run.returncode == 0 else f"\nEnded with exit code {run.returncode}.\n"
    shown = shlex.join("DATA" if Path(part).is_absolute() else part for part in command)
    return f"## {title}\n\n```text\n$ {shown}\n{printed}\n```\n{told}", not told


if __name__ == "__main__":
    typer.run(main)
