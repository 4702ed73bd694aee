"""The proof behind a certificate: run by `worker.py` in a process of its own, for `qacg_kernels.certificates`."""
