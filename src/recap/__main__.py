"""`python -m recap` is the `recap` command."""

from recap.cli.main import main

main()
