"""`recap data`: data sets to work with."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recap._files import write_atomic
from recap.cli.terminal import bars, printable
from recap.errors import RecapError, counted

if TYPE_CHECKING:
    from recap.data.check import DataReport

MOST_SIZES = 5
MOST_INPUTS = 20

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Check, audit, prepare and generate data sets.",
)


@app.command("check")
def check_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A data set (folder or .csv manifest), or a folder of them."
        ),
    ],
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write all of the report to this file."),
    ] = None,
    show: Annotated[int, typer.Option(min=0, help="Problems of each kind to name here.")] = 5,
) -> None:
    """Read every file of a data set and say what is there.

    The exit code is 1 if there are problems.
    """
    from recap.data.check import inspect_all

    with bars() as report:
        found = inspect_all(path, report)
    for data in found:
        for line in _report_lines(data, show):
            typer.echo(printable(line))
    problems = sum(len(data.problems) for data in found)
    if json_file is not None:
        content = {"path": str(path), "problems": problems, "data": [d.as_json() for d in found]}
        write_atomic(json_file, json.dumps(content, indent=2) + "\n")
    if problems:
        raise typer.Exit(1)


@app.command("audit")
def audit_command(
    root: Annotated[
        Path, typer.Argument(metavar="ROOT", help="A folder of domains NAME_AD, or one of them.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for audit.csv, exclude.txt and what was read.")
    ] = Path("audit"),
    reach: Annotated[
        int, typer.Option(min=0, help="How many slices apart neighbours of one volume may be.")
    ] = 2,
    patients: Annotated[
        bool,
        typer.Option(
            "--patients/--no-patients",
            help="List test images in exclude.txt that share no more than their patient.",
        ),
    ] = True,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that read images; by default one per core.")
    ] = None,
) -> None:
    """Find what the pool and the test split share.

    Looks for the same patients, copies and neighbouring slices. Writes a table (audit.csv) and the
    test images to leave out (exclude.txt), which `recap evaluate --exclude` takes. The exit code is
    0 without leaks and 1 with leaks.
    """
    from recap.data.audit import CACHE, audit, summary, write_audit
    from recap.data.copies import LEAKS

    with bars() as report:
        found = audit(root, report, cache=out / CACHE, workers=workers, reach=reach)
    kinds = [kind for kind in LEAKS if patients or kind != "same-patient"]
    table, exclusions = write_audit(found, out, kinds)
    for line in summary(found):
        typer.echo(printable(line))
    typer.echo(f"Written: {table}, {exclusions}")
    if found.leaks:
        raise typer.Exit(1)


@app.command("support")
def support_command(
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET", help="A data set: folder or .csv manifest.")
    ],
    shots: Annotated[int, typer.Option(min=1, help="Images per class.")],
    out: Annotated[
        Path, typer.Option(help="The list to write; its hashes go beside it. Or a .json file.")
    ],
    draw: Annotated[int, typer.Option(min=0, help="Which reproducible draw.")] = 0,
    by_patient: Annotated[
        bool, typer.Option("--by-patient", help="One image per patient, as long as there are any.")
    ] = False,
) -> None:
    """Draw a reproducible support set and save it.

    The hash of every file is saved with it.
    """
    from recap.data import draw_support, read_domain
    from recap.data.supports import write_support

    if out.exists():
        raise RecapError(f"{out} exists already. Choose another --out.")
    support = draw_support(read_domain(dataset), shots, draw, by_patient=by_patient)
    write_support(support, out)
    for sample in (*support.normal, *support.abnormal):
        typer.echo(printable(f"{'abnormal' if sample.abnormal else 'normal'} {sample.path}"))


@app.command("prepare")
def prepare_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="brainmri, liverct, resc, oct17, chest or his.")
    ],
    source: Annotated[Path, typer.Option("--from", help="Folder with the raw files.")],
    root: Annotated[Path, typer.Option("--to", help="Folder to write NAME_AD into.")],
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes; 0 or 1 is none besides this one.")
    ] = None,
    patient_split: Annotated[
        bool, typer.Option("--patient-split", help="No patient in more than one split.")
    ] = False,
    train: Annotated[bool, typer.Option(help="Also write the normal training images.")] = True,
    pool_lists: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Published support lists (files or a folder) the pool must contain.",
        ),
    ] = None,
    organ_only: Annotated[
        bool, typer.Option("--organ-only", help="liverct: black outside the annotated liver.")
    ] = False,
    masks: Annotated[
        bool, typer.Option("--masks", help="his: also write the outlined tumour as masks.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many patients or volumes, to try it out.")
    ] = None,
) -> None:
    """Make a domain of the benchmark from its raw public source.

    NAME and the folder for --from; nothing is downloaded:

    \b
    brainmri  BraTS2021 training data (Synapse or Kaggle, registration):
              BraTS2021_*/BraTS2021_*_flair.nii.gz and _seg.nii.gz
    liverct   BTCV (Synapse, registration) and LiTS (CodaLab or Kaggle):
              img*.nii.gz, label*.nii.gz; volume-*.nii, segmentation-*.nii
    resc      AI Challenger 2018 retinal oedema (research use):
              Edema_trainingset/, Edema_validationset/
    oct17     Kermany OCT2017 (Mendeley Data, CC BY 4.0, or Kaggle):
              train/, test/, val/ with CNV, DME, DRUSEN, NORMAL
    chest     RSNA Pneumonia Challenge (Kaggle, non-commercial use):
              stage_2_train_images/, stage_2_detailed_class_info.csv
    his       Camelyon16 (public domain, GigaDB or AWS open data):
              slides *.tif and the XML annotations

    A run that was stopped goes on where it was. Inputs that are missing or broken are named at the
    end and in manifest.json; the exit code is then 1.
    """
    from recap._process import usable_cores
    from recap.data.prepare import PrepareOptions, find_source, listed_names, prepare

    normal, abnormal = listed_names(pool_lists or [])
    options = PrepareOptions(patient_split, train, limit, normal, abnormal, organ_only, masks)
    processes = min(usable_cores(), 8) if workers is None else workers
    with bars() as progress:
        summary = prepare(find_source(name), source, root, options, processes, progress)
    for place, count in summary.counts.items():
        typer.echo(f"{place}: {count}")
    typer.echo(str(summary.folder))
    for caveat in summary.caveats:
        typer.echo(f"Note: {caveat}", err=True)
    for note in summary.errors[:MOST_INPUTS]:
        typer.echo(printable(f"{note.key}: {note.reason}"), err=True)
    if summary.errors:
        typer.echo(
            f"Missing or broken: {counted(len(summary.errors), 'input')}; all are in "
            f"{summary.manifest}. Put that right and run the same command again: what is finished "
            "stays.",
            err=True,
        )
        raise typer.Exit(1)


@app.command("pull")
def pull_command(
    benchmark: Annotated[str, typer.Argument(metavar="BENCHMARK", help="bmad")],
    to: Annotated[Path, typer.Option(help="Folder to put the domains into.")],
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="One domain, e.g. brain; repeatable. Default: all."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Another https address of a zip or tar of the domains.")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(help="The archive's sha256; without one --url is trusted once.")
    ] = None,
) -> None:
    """Download a prepared benchmark, check it and unpack it.

    Goes on where it was interrupted. BMAD is one archive of 21.8 GB for non-commercial use (CC
    BY-NC-SA 4.0); naming domains saves room on disk, not the download.
    """
    from recap.data.pull import pull

    with bars() as report:
        domains = pull(
            benchmark,
            to,
            name or (),
            url=url,
            sha256=sha256,
            report=report,
            say=lambda line: typer.echo(line, err=True),
        )
    for domain in domains:
        typer.echo(domain.root)


@app.command()
def phantom(
    root: Annotated[
        Path, typer.Argument(metavar="ROOT", help="Folder to write the six NAME_AD domains into.")
    ],
    pool: Annotated[int, typer.Option(min=1, help="Images per class in the labelled pool.")] = 16,
    test: Annotated[int, typer.Option(min=1, help="Images per class in the test split.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")] = 0,
    size_px: Annotated[int, typer.Option("--size", min=32, help="Pixels per side.")] = 240,
    volumes: Annotated[
        bool,
        typer.Option(
            "--volumes", help="Heads in three dimensions instead (NIfTI), one domain of them."
        ),
    ] = False,
) -> None:
    """Generate six phantom domains, to try it without any data.

    They have the benchmark's layout. With --volumes, HeadVolumes_AD: oblique NIfTI volumes with
    label maps, and lesions.csv with the true volume and place of every lesion.
    """
    from recap.data import write_phantoms
    from recap.data.phantom import write_head_volumes

    with bars() as report:
        if volumes:
            typer.echo(write_head_volumes(root, seed=seed, pool=pool, test=test, progress=report))
            return
        written = write_phantoms(
            root, seed=seed, pool=pool, test=test, size_px=size_px, progress=report
        )
    for domain in written:
        typer.echo(domain.root)


def _report_lines(data: "DataReport", show: int) -> list[str]:
    lines = [f"{data.name}  ({data.layout or 'unknown'} layout)  {data.root}"]
    for split, images in data.images.items():
        counts = ", ".join(f"{count} {label}" for label, count in images.items())
        patients = f", {counted(data.patients[split], 'patient')}" if data.patients[split] else ""
        lines.append(f"  {split:<6} {counts}, {counted(data.masks[split], 'mask')}{patients}")
    if data.patients_in_pool_and_test:
        shared = counted(len(data.patients_in_pool_and_test), "patient")
        lines.append(f"  in pool and test: {shared}")
    sizes = [f"{count} of {size}" for size, count in list(data.sizes.items())[:MOST_SIZES]]
    others = len(data.sizes) - MOST_SIZES
    more = [counted(others, "other size")] if others > 0 else []
    lines += [f"  sizes  {', '.join([*sizes, *more])}"] if sizes else []
    colours = ", ".join(f"{count} {colour}" for colour, count in data.colours.items())
    lines += [f"  colour {colours}"] if colours else []
    lines += [
        f"  more   {counted(count, 'image')} in {folder}/, checked alike"
        for folder, count in data.further.items()
    ]
    lines += [
        f"  unused {counted(count, 'file')} in {folder}/" for folder, count in data.ignored.items()
    ]
    return [*lines, *_problem_lines(data, show)]


def _problem_lines(data: "DataReport", show: int) -> list[str]:
    if not data.problems:
        return ["  no problems found"]
    lines = []
    for kind in dict.fromkeys(problem.kind for problem in data.problems):
        these = [problem for problem in data.problems if problem.kind == kind]
        lines.append(f"  {kind}: {len(these)}")
        lines += [f"    {problem.path}: {problem.reason}" for problem in these[:show]]
        lines += [f"    … and {len(these) - show} more (--json)"] if len(these) > show else []
    return lines
