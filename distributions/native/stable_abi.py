"""The oldest torch that the libraries run on: they want no more than its stable ABI, whatever torch has the headers."""

# qacg_kernels/utils/native_libraries.py, which refuses an older one, names it too.
OLDEST_TORCH = (2, 10)
CPU_FLAG = "-DTORCH_TARGET_VERSION=0x020a000000000000"
# That of 2.9, which makes tensors without looking the operator up by its name.
CUDA_FLAG = "-DTORCH_TARGET_VERSION=0x0209000000000000"
