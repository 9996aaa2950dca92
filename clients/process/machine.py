"""Memory of this machine, of which a control group may allow a part."""

import contextlib
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")


def memory_of_machine() -> int:
    """Bytes of memory, or of the part that this process's control groups allow."""
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        groups = ""
    return min([int(psutil.virtual_memory().total), *cgroup_limits(groups, CGROUPS)])


def cgroup_limits(groups: str, mounted: Path) -> list[int]:
    """Byte limits of this process's control groups and their parents, versions 1 and 2.

    ``groups`` is the text of /proc/self/cgroup. In a container the folders below ``mounted`` may begin further down.
    """
    limits = []
    for line in groups.splitlines():
        _, kinds, place = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root, name = (mounted / "memory", "memory.limit_in_bytes") if kinds else (mounted, "memory.max")
        below = root / place.strip("/")
        for folder in (below, *below.parents):
            if folder.is_relative_to(root):
                with contextlib.suppress(OSError, ValueError):  # "max", or no such group here
                    limits.append(int((folder / name).read_text(encoding="ascii")))
    return limits
