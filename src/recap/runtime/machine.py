"""Which machine this is, as far as speed is concerned."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from recap._process import usable_cores

PACKAGES = ("torch", "onnxruntime", "openvino")


def machine_facts() -> dict[str, str]:
    """Processor, cores this process may use, and the versions of all runtimes."""
    return {"processor": processor_name(), "cores": str(usable_cores()), **runtime_versions()}


def processor_name() -> str:
    """The processor's own name, where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def runtime_versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Installed versions; packages that are missing are left out."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
