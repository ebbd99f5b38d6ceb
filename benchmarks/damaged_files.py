"""Damaged files: each must be read or refused in one line, soon and in bounded memory.

    python benchmarks/damaged_files.py [--copies 2000] [--seed 0] [--keep FOLDER]

Copies of real and of generated files are damaged at random, the same way for the same seed, and
read by `recap.io.open_file` in a process of its own, up to twenty images each. A copy that kills
or hangs that process is counted, and a new one goes on. Anything but an answer in one line makes
the exit code 1; `--keep` saves the copies that did so.
"""

import resource
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import typer
from damage import damages
from damaged_sources import SHARES, Source, sources

LIMIT_SECONDS = 20
# What a file of the largest size that is read takes; the process itself gets no more than twice.
LIMIT_BYTES = 3 * 2**30
MOST_IMAGES = 20
FINE = ("read", "refused")
FAULTS = ("traceback", "wrong pixels", "crash", "hang", "over memory")
