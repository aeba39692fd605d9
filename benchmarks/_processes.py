"""What a process and all that it started take of the machine."""

import psutil  # type: ignore[import-untyped]


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def memory_mib(pid: int) -> float:
    """Memory of the tree; pages that several of its processes share are counted once, those shared with others in part."""
    return sum(_pss(process) for process in tree(pid)) / 2**20


def _pss(process: psutil.Process) -> float:
    """Bytes of one process; 0 where it has just ended."""
    try:
        return float(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0.0


def cpu_s(pid: int) -> float:
    """Processor time that the tree has taken, that of the system for it included."""
    times = [process.cpu_times() for process in tree(pid)]
    return float(sum(found.user + found.system for found in times))
