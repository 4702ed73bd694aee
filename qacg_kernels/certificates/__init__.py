"""Certificates: proof, made on the user's own machine, that kernels which we could not run are right there, and which
is fastest: a GPU's, and those for ARM CPUs.

family.py says what is proven at once, lengths.py what is timed, certificate.py holds what came out, store.py keeps it,
prover.py has it made by processes of their own (`qacg_kernels.proving`), standing.py chooses by it, agreement.py makes
all ranks choose alike, policy.py says when a proof may begin.
"""
