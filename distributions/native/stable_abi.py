"""The oldest torch that the libraries run on; they use its stable ABI only, also with newer headers."""

# Repeated in qacg_kernels/utils/native_libraries.py, which rejects older versions.
OLDEST_TORCH = (2, 10)
CPU_FLAG = "-DTORCH_TARGET_VERSION=0x020a000000000000"
# 2.9, whose headers make tensors without looking the operator up by name.
CUDA_FLAG = "-DTORCH_TARGET_VERSION=0x0209000000000000"
