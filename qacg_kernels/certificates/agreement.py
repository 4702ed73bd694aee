"""One choice on all ranks: with torch.distributed up, the first certificate that is published is everybody's.

No rank waits for another: the process group's store keeps the first value of a key and hands it to whoever comes later.
"""

import torch

from qacg_kernels.certificates.certificate import Certificate
from qacg_kernels.certificates.environment import digest_of
from qacg_kernels.certificates.family import Scope


def is_wanted() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def agreed(own: Certificate, scope: Scope) -> Certificate:
    """The certificate by which this rank chooses within a scope.

    The first one published for this environment decides. A family that failed here stays failed here: a wrong number
    is worse than ranks of different speed.
    """
    store = torch.distributed.distributed_c10d._get_default_store()
    key = f"qacg_kernels/certificate/{digest_of(own.environment)}/{scope.dtype}/{scope.head_dim}"
    # An empty expected value: set it only where there is none yet. What is there afterwards comes back.
    first = Certificate.parse(bytes(store.compare_set(key, "", _of_scope(own, scope).dump())).decode())
    failed_here = {f: v for f, v in own.verdicts.items() if not v.holds}
    return Certificate(own.environment, own.made, own.verdicts | first.verdicts | failed_here, own.times | first.times)


def _of_scope(certificate: Certificate, scope: Scope) -> Certificate:
    return Certificate(
        certificate.environment,
        certificate.made,
        {f: v for f, v in certificate.verdicts.items() if f.scope == scope},
        {t: s for t, s in certificate.times.items() if t[:2] == scope},
    )
