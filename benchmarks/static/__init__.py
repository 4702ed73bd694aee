"""Predicts the rates of the GPU kernels from their machine code, without a GPU.

For Triton, `launches` records the kernels that a call launches, and `compile` compiles them. `sass` parses the machine
code and finds the instructions that a warp issues. `hardware` has the units and latencies of instructions. `scheduler`
simulates the warps of one scheduler. `kernel` combines these, and `calibrate` scales the result by a kernel of
published rate. `operator` predicts an entry of a tile table or a call, and `report` prints it. For the CUDA kernels,
`cuda_calls.cu` computes the parameters of a call, `sass_trace` traces a thread with them, and `cuda_kernels`
combines the results.
"""
