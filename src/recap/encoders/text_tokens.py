"""From sentences to token ids: CLIP's own tokeniser, or a hash of the words where there is none."""

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from recap.encoders.hub import TOKENISER_FILES
from recap.errors import WeightsError

Tokenise = Callable[[str], list[int]]
"""One sentence -> its ids, between those of start and end of text."""


def load_tokeniser(folder: Path, hub_id: str) -> Tokenise:
    """The tokeniser that lies beside the weights."""
    import transformers

    whole, *parts = (folder / file for file in TOKENISER_FILES)
    if not whole.is_file() and not all(part.is_file() for part in parts):
        raise WeightsError(
            f"{folder} has no tokeniser: this method reads sentences. Put tokenizer.json, or "
            f"vocab.json and merges.txt, of {hub_id} into that folder."
        )
    try:
        tokeniser = transformers.CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    # The tokenizers library raises plain exceptions for damaged files.
    except Exception as error:
        first = str(error).splitlines()[0]
        raise WeightsError(
            f"Cannot read the tokeniser in {folder}: {first}. Copy its files from {hub_id} again."
        ) from error
    return lambda text: list(tokeniser(text).input_ids)


def hashing_tokeniser(vocabulary: int, end: int) -> Tokenise:
    """Every word gets the id that its hash says; for towers that were never trained."""
    start, *free = (i for i in reversed(range(vocabulary)) if i not in (0, end))

    def tokenise(text: str) -> list[int]:
        words = re.findall(r"\w+|[^\w\s]", text.lower())
        digests = (hashlib.sha256(word.encode()).digest() for word in words)
        return [start, *(free[int.from_bytes(d[:8]) % len(free)] for d in digests), end]

    return tokenise


def padded(sentences: Sequence[list[int]], length: int) -> list[list[int]]:
    """All at one length: zeros behind the end, as CLIP was trained; long ones keep their end."""
    cut = [ids if len(ids) <= length else [*ids[: length - 1], ids[-1]] for ids in sentences]
    return [ids + [0] * (length - len(ids)) for ids in cut]
