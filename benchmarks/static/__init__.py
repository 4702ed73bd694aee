"""Predicts the rates of the GPU kernels from their machine code, without a GPU.

For Triton: `launches` records what a call launches, `compile` compiles it, `sass` parses it and finds the path of a
warp, `hardware` has the units and latencies of instructions, `scheduler` runs the warps of one scheduler against each
other, `kernel` combines these, `calibrate` scales the result by a kernel of published rate, `operator` predicts an
entry of a tile table or a call, and `report` prints it. For the CUDA kernels `cuda_calls.cu` computes the parameters of
a call, `sass_trace` follows a thread with them, and `cuda_kernels` does the rest.
"""
