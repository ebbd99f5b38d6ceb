"""`recap data prepare`: a domain of the benchmark from its raw public source."""

from pathlib import Path
from typing import Annotated

import typer

from recap.cli.bars import bars
from recap.cli.words import printable
from recap.errors import counted

SHOWN = 20


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
    for note in summary.errors[:SHOWN]:
        typer.echo(printable(f"{note.key}: {note.reason}"), err=True)
    if summary.errors:
        typer.echo(
            f"Missing or broken: {counted(len(summary.errors), 'input')}; all are in "
            f"{summary.manifest}. Put that right and run the same command again: what is finished "
            "stays.",
            err=True,
        )
        raise typer.Exit(1)
