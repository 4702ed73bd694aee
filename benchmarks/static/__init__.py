"""Predicts the rates of the GPU kernels from their machine code, without a GPU.

For Triton, `launches` records the kernels that a call launches, and `compile` compiles them. `sass` parses the machine
code and finds the instructions that a warp issues. `hardware` has the units and latencies of instructions. `scheduler`
simulates the warps of one scheduler. `kernel` combines these, and `calibrate` scales the result by a kernel of
published rate. `operator` predicts an entry of a tile table or a call, and `report` prints it. For the CUDA kernels,
`cuda_calls.cu` computes the parameters of a call, `sass_trace` traces a thread with them, and `cuda_kernels`
combines the results.

The model has these limits:

- wgmma: its products read operands from shared memory, but use none of its bandwidth, 128 bytes a clock of a
  multiprocessor. Only narrow products whose first operand is there take a least number of clocks.
- Shared memory: loads and stores of warps have this bandwidth, but no bank conflicts.
- L2 cache: each multiprocessor has 32 bytes a clock of its own, in total 6.8 TB/s on an H200, and 5.5 TB/s after the
  calibration. Every load is coalesced, hits the cache, and takes at least 600 clocks. The cache as a whole has no
  limit.
- Memory: its bandwidth limits the rates of whole calls, not those of kernels.
- sm_100: the columns of tensor memory limit the resident blocks, and its loads and stores have a bandwidth. Products of
  tcgen05 run at the peak rate, whatever their shape. No measurement on such a chip has checked the model, so neither
  its rates nor its order of tiles is reliable.
- Clock: it is constant. No instruction waits for the instruction cache or for a register bank.
- Calibration: one forward of softmax attention on an H100 gives the factor of all kernels and chips.

The NOTES.md of `qacg_kernels/backends/triton` and `csrc/cuda` have measured rates beside those of the model.
"""
