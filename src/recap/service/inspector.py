"""A process that looks at uploads before anybody else.

    python -m recap.service.inspector BYTES DECODING PIXELS

Decoders are large C libraries, and the files come from anywhere. So they are first decoded here,
where a crash, a hang or a claim for memory ends this process and not the service. Requests and
answers are lines of JSON.
"""

import json
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from recap._archive import unpack_archive
from recap.config import ReadingSettings
from recap.data.cases import Found, find_cases
from recap.data.folder import natural_key
from recap.errors import InputError, RecapError, code_of, is_full
from recap.io import open_file, raster, read_image, read_mask, volume
from recap.io.case import Case
from recap.io.decoding import BUDGET
from recap.io.formats import sniff
from recap.service.deidentify import deidentify, deidentify_all, write_mask
from recap.service.placing import Placer, Unread, case_name, in_client_words, split_suffix
from recap.types import BoolArray

# Images that are left after this time are decoded when they are scored: somebody waits.
DECODE_SECONDS = 10.0
NO_ROOM_TEXT = "The disk of the service is full, or cannot be written to."
_NO_MEMORY_TEXT = "This takes more memory than the service has."


class Checked(NamedTuple):
    """Contents of an upload."""

    images: int
    problems: list[Unread]


def main() -> None:
    """Answer requests until the service closes its end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a decoder prints must not stand among the answers
    memory, decoding, pixels = map(int, sys.argv[1:])
    BUDGET.restrict(decoding)
    # A volume that declares more is refused by its header, before anything is unpacked.
    volume.MAX_VOXELS = min(volume.MAX_VOXELS, pixels)
    raster.MAX_PIXELS = min(raster.MAX_PIXELS, pixels)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(sys.stdin, answers)


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Write one answer for each request."""
    for line in requests:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Check one upload; refusals are answers too."""
    placer = Placer()
    folder = Path(request["folder"])
    try:
        if request["task"] == "score":
            checked = inspect_cases(folder, request, placer)
        else:
            checked = inspect_support(folder, request, placer)
    # Whatever a hostile file brings about, this process answers.
    except Exception as error:
        return refusal(error, folder, placer)
    return {"code": "", "names": placer.names, **checked._asdict()}


def refusal(error: Exception, folder: Path, placer: Placer) -> dict[str, Any]:
    """Say why an upload is not taken: the code of the error, and its text without our folders."""
    code, detail = code_of(error), str(error)
    if code == "no_room":
        detail = NO_ROOM_TEXT
    elif isinstance(error, MemoryError):
        detail = _NO_MEMORY_TEXT
    elif not isinstance(error, RecapError):  # of a decoder
        code, detail = "input", f"The upload cannot be read ({type(error).__name__})."
    text = in_client_words(detail, folder / "upload", placer.names)
    text = text.replace(f"{folder}/raw/", "").replace(f"{folder}/", "")
    return {"code": code, "detail": " ".join(text.split())[:600]}


def inspect_cases(folder: Path, request: dict[str, Any], placer: Placer) -> Checked:
    """Put an upload's files where they will be scored from, and look at all of them."""
    upload = folder / "upload"
    upload.mkdir()
    refusals: list[InputError | None] = []
    left = request["max_unpacked"]
    for raw, given in request["files"]:
        file = folder / "raw" / raw
        if sniff(file) == "zip":
            left -= _unpack(file, given, upload, request, placer, left)
            refusals.append(None)
        else:
            refusals.append(_place_file(file, given, upload, placer))
    # One stray file costs the others nothing; strays alone are told what they are.
    if refusals[0] and all(refusals):
        raise refusals[0]
    shutil.rmtree(folder / "raw")
    cases = _find(upload, request)
    used = {file.name for case in cases for file in case.files}
    for file in upload.iterdir():
        if file.name not in used:  # no image, so nobody needs it
            file.unlink()
    return _decode_all(cases, request, placer)


def _find(upload: Path, request: dict[str, Any]) -> tuple[Found, ...]:
    """List the cases in the order of the upload, with those that could not be de-identified."""
    failed = deidentify_all(upload) if request["deidentify"] else {}
    lost = [Found(file.name, (file,), problem=text) for file, text in failed.items()]
    if lost and not any(upload.iterdir()):
        return tuple(lost)
    found = find_cases([upload], upload).cases
    return tuple(sorted([*found, *lost], key=lambda case: natural_key(case.files[0])))


def _place_file(raw: Path, given: str, upload: Path, placer: Placer) -> InputError | None:
    """Place a file; returns why no reader takes it."""
    target = upload / placer.place(given)
    raw.rename(target)
    if not target.stat().st_size:
        return InputError(f"{target}: the file is empty.", path=target)
    # Half of a pair is only known by the other half, which may be the next file.
    if target.suffixes[:1] in ([".hdr"], [".img"]) or sniff(target) != "unknown":
        return None
    return InputError(
        f"{target}: not a picture, DICOM, NIfTI, NRRD or slide, nor a zip of them.",
        code="unsupported",
        path=target,
    )


def _unpack(
    archive: Path, given: str, upload: Path, request: dict[str, Any], placer: Placer, left: int
) -> int:
    """Place what is in an archive, of which `left` bytes are taken; returns how many it has."""

    def place(path: PurePosixPath) -> PurePosixPath:
        if len(placer.names) >= request["max_files"]:
            raise InputError(
                f"The archive has more than {request['max_files']} files.", code="too_large"
            )
        return PurePosixPath(placer.place(path.as_posix()))

    try:
        written = unpack_archive(archive, upload, place, limit_bytes=left)
    except InputError as error:
        if is_full(error):
            raise
        text = str(error).replace(str(archive), given[:200])
        together = f"{request['max_unpacked']} bytes (all archives together)"
        text = text.replace(f"{left} bytes", together)
        raise InputError(text, code=error.code) from error
    archive.unlink()
    for file in written:
        if file.stat().st_size and sniff(file) == "zip":
            raise InputError(f"{file}: an archive inside an archive. Unpack it first.", path=file)
    return sum(file.stat().st_size for file in written)


def _decode_all(cases: tuple[Found, ...], request: dict[str, Any], placer: Placer) -> Checked:
    """Decode all cases; an upload is refused if not one of them can be read.

    Else those that cannot be read are told of, and nobody opens them again: their files go.
    """
    reading = ReadingSettings(**request["reading"])
    deadline = time.monotonic() + DECODE_SECONDS
    images, pixels, hide = 0, 0, request["deidentify"]
    problems: list[Unread] = []
    errors: list[RecapError] = []
    for number, found in enumerate(cases):
        try:
            case = found.open(reading)
            pixels += _decode(case, deadline)
        except RecapError as error:
            if is_full(error):  # some readers unpack what they read
                raise
            name = case_name(found, placer.names, number, hide)
            problems.append(Unread(name, str(error), number, error.code))
            errors.append(error)
            for file in found.files:
                file.unlink(missing_ok=True)
            continue
        images += len(case.images)
        _refuse_too_many(pixels, request)
    if not images:
        raise errors[0]
    upload = Path(request["folder"]) / "upload"
    told = [
        each._replace(error=in_client_words(each.error, upload, placer.names, hide))
        for each in problems
    ]
    return Checked(images, told)


def _refuse_too_many(pixels: int, request: dict[str, Any]) -> None:
    if pixels > request["max_pixels"]:
        most = request["max_pixels"] // 10**6
        raise InputError(f"The images have more than {most} million pixels.", code="too_large")


def _decode(case: Case, deadline: float) -> int:
    """Read a case's images while there is time; returns its pixels."""
    if not len(case.images):
        raise InputError(f"{case.source}: holds no images.")
    height, width = case.images[0].size_hw
    for number in range(1, len(case.images)):
        if time.monotonic() > deadline:
            break
        case.images[number]
    return height * width * len(case.images)


def inspect_support(folder: Path, request: dict[str, Any], placer: Placer) -> Checked:
    """Check labelled images and their masks: each mask of its image's size.

    `files` are (raw name, client's name, role, name here). To fit, each file must be one image;
    to calibrate it may be anything that can be scored.
    """
    images, pixels = 0, 0
    sizes: dict[str, tuple[int, int]] = {}
    # Masks last, when the sizes of their images are known.
    for raw, given, role, name in sorted(request["files"], key=lambda file: file[2] == "masks"):
        target = folder / "upload" / role / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / "raw" / raw).rename(target)
        placer.names[f"{role}/{name}"] = given
        if sniff(target) in ("unknown", "zip"):
            raise InputError(
                f"{target}: not a picture or a DICOM image.", code="unsupported", path=target
            )
        if role == "masks":
            mask = _checked_mask(target, sizes[split_suffix(name)[0]])
            if request["deidentify"]:
                write_mask(target, mask)
            continue
        if request["deidentify"]:
            deidentify(target)
        count, size_hw = _labelled(target, request)
        images += count
        pixels += count * size_hw[0] * size_hw[1]
        _refuse_too_many(pixels, request)
        if role == "abnormals":
            sizes[split_suffix(name)[0]] = size_hw
    shutil.rmtree(folder / "raw")
    return Checked(images, [])


def _labelled(path: Path, request: dict[str, Any]) -> tuple[int, tuple[int, int]]:
    """Count the images of a file, and measure the first."""
    reading = ReadingSettings(**request["reading"])
    if request["task"] == "fit":
        return 1, read_image(path, reading).size_hw
    case = open_file(path, reading)
    _decode(case, time.monotonic() + DECODE_SECONDS)
    return len(case.images), case.images[0].size_hw


def _checked_mask(path: Path, size_hw: tuple[int, int]) -> BoolArray:
    mask = read_mask(path)
    if mask.shape != size_hw:
        raise InputError(
            f"{path}: the mask is {mask.shape[1]}×{mask.shape[0]} pixels but its image "
            f"{size_hw[1]}×{size_hw[0]}. They must match."
        )
    return mask


if __name__ == "__main__":
    main()
