"""`recap`: the command line. Commands load what they need when they run, so help is instant."""

import sys
from typing import Annotated

import typer

from recap._files import error_message
from recap._process import collect_seldom, keep_freed_memory
from recap.cli import (
    bench,
    calibrate,
    data,
    demo,
    evaluate,
    export,
    fit,
    info,
    score,
    serve,
    weights,
)
from recap.cli.ending import REASONS, orderly_end
from recap.cli.terminal import printable
from recap.errors import EXIT_CODES, RecapError, code_of

app = typer.Typer(
    name="recap",
    help="Find anomalies in medical images from a handful of examples. Research use only.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from recap import __version__

        typer.echo(f"recap {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the command itself."""


app.command("fit")(fit.fit_command)
app.command("score")(score.score_command)
app.command("calibrate")(calibrate.calibrate_command)
app.command("evaluate")(evaluate.evaluate_command)
app.command("report")(score.report_command)
app.command("export")(export.export_command)
app.command("serve")(serve.serve_command)
app.command("recover")(serve.recover_command)
app.command("listen")(serve.listen_command)
app.command("info")(info.info_command)
app.command("demo")(demo.demo_command)
app.add_typer(weights.app, name="weights")
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run a command; errors a user can act on are one message and the exit code of their kind."""
    keep_freed_memory()
    collect_seldom()
    try:
        with orderly_end():
            app()
    except (RecapError, OSError) as error:  # OSError: a full disk, a folder without permission
        reason = error_message(error) if isinstance(error, OSError) else str(error)
        print("recap: error:", printable(reason, keep="\n"), file=sys.stderr)
        sys.exit(EXIT_CODES[code_of(error)])
    except SystemExit as end:  # of Ctrl-C too: typer makes an exit of it, without a word
        if end.code in REASONS:
            print(
                f"recap: {REASONS[end.code]}. Run the same command again to go on.", file=sys.stderr
            )
        raise


if __name__ == "__main__":
    main()
