"""A listener to be killed: SPOOL ARCHIVE DELAY_S QUIET_S; it prints its port."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    from pacs_images import mark
    from recap.service.pacs.listen import Listener, ListenSettings
    from recap.service.pacs.send import DicomPeer, parse_address
    from recap.service.pacs.spool import Spool, Unscored

    spool, archive, delay, quiet = sys.argv[1:]

    def score(images: Path, results: Path) -> list[Unscored]:
        print("scoring", flush=True)
        unscored = mark(images, results)
        time.sleep(float(delay))
        return unscored

    listener = Listener(
        Spool(Path(spool)),
        score,
        DicomPeer(parse_address(archive)),
        ListenSettings(port=0, quiet_seconds=float(quiet)),
    )
    listener.start()
    print(listener.port, flush=True)
    listener.run()


if __name__ == "__main__":
    main()
