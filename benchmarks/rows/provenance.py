"""Where rows come from: the machine, the versions and the commit."""

from dataclasses import dataclass
from datetime import datetime, timezone

from qacg_kernels import info
from qacg_kernels.utils.source_revision import checkout_of


@dataclass(frozen=True)
class Origin:
    """Where and from what a row was measured."""

    machine: dict[str, object]  # cpu, cores, threads, instruction sets, CUDA devices
    versions: dict[str, str]
    commit: str
    dirty: bool
    taken: str  # UTC


def origin() -> Origin:
    """The origin of rows measured now, in this process."""
    facts = info.collect()
    host, library = facts["cpu"], facts["cpu_library"]
    commit, dirty = _commit()
    return Origin(
        machine={
            "cpu": host["model"],
            "cores": host["cores"],
            "threads": host["threads"],
            "torch_instruction_set": host["torch_instruction_set"],
            "instruction_sets": library["instruction_sets"],
            "cuda_devices": facts["cuda"]["devices"] if isinstance(facts["cuda"], dict) else facts["cuda"],
        },
        versions={name: facts[key] for name, key in _VERSIONS.items()},
        commit=commit,
        dirty=dirty,
        taken=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


_VERSIONS = {"qacg_kernels": "package", "python": "python", "torch": "torch", "triton": "triton", "os": "os"}


def _commit() -> tuple[str, bool]:
    """The commit of the sources, and whether anything but results differs from it."""
    found = checkout_of(__file__, "--", ":/", ":(top,exclude)benchmarks/results")
    return (found[0][:12], found[1]) if found else ("not a git checkout", True)


def heading(source: Origin) -> str:
    """Machine and versions in one line."""
    machine, versions = source.machine, source.versions
    sets = machine["instruction_sets"] or {}
    kernels = ", ".join(f"{dtype} on {name}" for dtype, name in sets.items()) or "no compiled kernels"
    changed = " with local changes" if source.dirty else ""
    return (
        f"{machine['cpu']}, {machine['threads']} threads, torch {versions['torch']} "
        f"({machine['torch_instruction_set']}), {kernels}, commit {source.commit}{changed}"
    )


def machine_of(source: Origin) -> str:
    """The processor and the instructions that the kernels took, for a table of several."""
    return ", ".join([source.machine["cpu"], *_instruction_sets(source)])


def _instruction_sets(source: Origin) -> list[str]:
    return sorted(set((source.machine["instruction_sets"] or {}).values()))


def source_line(source: Origin) -> str:
    """What a reader has to know of where the figures come from."""
    machine, versions, sets = source.machine, source.versions, _instruction_sets(source)
    kernels = "kernels on " + ", ".join(sets) if sets else "no compiled kernels"
    changed = ", with local changes" if source.dirty else ""
    return (
        f"{machine['cpu']}, {machine['threads']} threads, {kernels}, torch {versions['torch']}, "
        f"commit {source.commit}{changed}, {source.taken[:10]}."
    )
