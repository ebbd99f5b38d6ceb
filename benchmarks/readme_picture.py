"""Draws the picture in the README, docs/assets/phantoms.jpg, from `recap demo --phantoms`.

recap demo --phantoms --out demo-out && python benchmarks/readme_picture.py demo-out
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image as PillowImage
from PIL import ImageDraw, ImageFont

import recap
from recap.report import as_picture, outline, overlay

SHOWN = ["Ungood/img/test_003.png", "Ungood/img/test_001.png", "Ungood/img/test_004.png"]
SHOWN += ["Ungood/img/test_002.png", "good/img/test_003.png"]
CUT_PX, GAP_PX, CAPTION_PX = 216, 4, 30
TO = Path(__file__).resolve().parents[1] / "docs" / "assets" / "phantoms.jpg"


def draw(demo: Path) -> PillowImage.Image:
    detector = recap.load(demo / "demo.recap")
    test = demo / "phantoms-1" / "Brain_AD" / "test"
    step = CUT_PX + GAP_PX
    size = (len(SHOWN) * step - GAP_PX, 3 * step + CAPTION_PX)
    sheet = PillowImage.new("RGB", size, "black")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=18)
    for column, name in enumerate(SHOWN):
        image = recap.read_image(test / name)
        prediction = detector.score(image)
        mask = test / name.replace("img", "anomaly_mask")
        truth = np.zeros(image.size_hw, bool)
        if mask.is_file():
            truth = recap.read_image(mask).pixels > 0.5
        rows = (
            as_picture(image),
            overlay(image, prediction.map, detector.map_scale),
            outline(as_picture(image), truth),
        )
        for row, picture in enumerate(rows):
            sheet.paste(middle(picture), (column * step, row * step))
        what = "lesion" if mask.is_file() else "no lesion"
        place = (column * step + CUT_PX // 2, 3 * step + CAPTION_PX // 2 - GAP_PX)
        pen.text(place, f"{what}: {prediction.score:.2f}", "white", font, anchor="mm")
    return sheet


def middle(picture: PillowImage.Image) -> PillowImage.Image:
    left, top = (picture.width - CUT_PX) // 2, (picture.height - CUT_PX) // 2
    return picture.crop((left, top, left + CUT_PX, top + CUT_PX))


if __name__ == "__main__":
    draw(Path(sys.argv[1])).save(TO, quality=82, optimize=True)
    print(f"{TO}: {TO.stat().st_size // 1024} kB")
