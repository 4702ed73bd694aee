"""`python -m qacg_kernels.certify`: the certificate of this machine's GPU or ARM CPU, or a rehearsal of making one."""

import argparse
import json
import os
import sys

from qacg_kernels.certificates import standing
from qacg_kernels.certify import SECONDS, certify
from qacg_kernels.proving.faults import FAULTS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m qacg_kernels.certify",
        description="Proves the fused kernels on this machine, times a GPU's, and keeps the certificate by which "
        "backend='auto' chooses. Exit status: 0 if every family holds, 1 if one does not, 2 if none could be judged.",
    )
    parser.add_argument("--device", default="cuda", help="the GPU, such as cuda:0; or cpu on an ARM machine")
    parser.add_argument("--json", action="store_true", help="print the certificate as JSON")
    parser.add_argument("--again", action="store_true", help="prove also what has a verdict already")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="N", help="in which to end (%(default).0f)")
    parser.add_argument("--rehearse", action="store_true", help="all of it on the CPU, in Triton's interpreter")
    parser.add_argument("--inject", choices=FAULTS, help="with --rehearse: let this go wrong, and see it caught")
    options = parser.parse_args(arguments)
    if options.inject and not options.rehearse:
        parser.error("--inject: wanted --rehearse beside it; nothing goes wrong on purpose in a real proof")
    if options.rehearse:
        return _rehearse(options.inject)
    try:
        certificate = certify(options.device, again=options.again, seconds=options.seconds)
    except (RuntimeError, ValueError) as error:
        print(f"certify: {error}", file=sys.stderr)
        return 2
    here = next(s for s in standing.known() if s.certificate is certificate)
    if options.json:
        print(json.dumps(json.loads(certificate.dump()) | {"file": str(here.path) if here.path else None}))
    else:
        print(_table(certificate))
    if not certificate.verdicts:
        return 2
    return 0 if all(v.holds for v in certificate.verdicts.values()) else 1


def _table(certificate) -> str:
    lines = [f"{name:<10} {value}" for name, value in certificate.environment.items()]
    lines += [f"{family}: {v}" for family, v in certificate.verdicts.items() if not v.holds]
    for timed, times in certificate.times.items():
        lines.append(f"{timed}: " + ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in times.items()))
    return "\n".join(lines)


def _rehearse(inject: str | None) -> int:
    # Read by Triton when it is first imported, and by the processes that prove.
    os.environ["TRITON_INTERPRET"] = "1"
    from qacg_kernels.proving.rehearsal import rehearse

    return 0 if rehearse(inject, print) else 1


if __name__ == "__main__":
    sys.exit(main())
