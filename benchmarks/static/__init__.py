"""The GPU kernels judged by their machine code, without a GPU: counts, and a rate that a model predicts from them.

In the order of reading: `launches` finds what a call launches, `compile` makes the machine code that this would make,
`disassemble` reads it, `path` follows one warp through it, `units` says what an instruction asks of a multiprocessor,
`scheduler` runs the warps of one scheduler against each other, `kernel` puts these together, `calibrate` holds the
result to a kernel whose rate is published, `operator` says what follows for a row of the tables and for a call,
`report` prints it. That is Triton's way; for the CUDA kernels `cuda_calls.cu` tells what a call gives them, `follow`
takes a thread through the code with that, and `cuda_kernels` does the rest.
"""
