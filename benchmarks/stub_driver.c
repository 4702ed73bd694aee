// A stub of libcuda.so.1 with the limits of an H200. It accepts every call of Triton's launcher and launches nothing.
// benchmarks/absent_gpu.py compiles it. Device memory is the memory of CPU tensors.
#include <elf.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201 };
enum { MOST_PARAMETERS = 512, PARAMETER_INFO = 0x17 }; // EIATTR_KPARAM_INFO in cubin files

typedef struct { // each kernel of each module has its own handle
  char name[256];
  unsigned count;
  size_t offset[MOST_PARAMETERS], size[MOST_PARAMETERS];
} Function;

static _Thread_local void* context; // as with the real driver, a new thread has none
static void (*on_launch)(const void* config, void* function, void** parameters);

void stub_on_launch(void (*callback)(const void*, void*, void**)) { on_launch = callback; }

// Reads the offsets and sizes of a kernel's parameters from its machine code, as cuFuncGetParamInfo of the driver does.
static void read_parameters(Function* f, const uint8_t* image) {
  const Elf64_Ehdr* header = (const void*)image;
  const Elf64_Shdr* sections = (const void*)(image + header->e_shoff);
  const char* names = (const char*)image + sections[header->e_shstrndx].sh_offset;
  for (int i = 0; i < header->e_shnum; i++) {
    const char* name = names + sections[i].sh_name;
    if (strncmp(name, ".nv.info.", 9) || strcmp(name + 9, f->name)) continue;
    const uint8_t *entry = image + sections[i].sh_offset, *end = entry + sections[i].sh_size;
    while (entry < end) {
      uint16_t bytes, number, offset;
      uint32_t flags;
      memcpy(&bytes, entry + 2, 2);
      if (entry[1] == PARAMETER_INFO) {
        memcpy(&number, entry + 8, 2), memcpy(&offset, entry + 10, 2), memcpy(&flags, entry + 12, 4);
        if (number >= MOST_PARAMETERS) abort();
        f->offset[number] = offset, f->size[number] = flags >> 18;
        if (f->count <= number) f->count = number + 1;
      }
      entry += entry[0] == 4 ? 4 + bytes : 4; // format 4 has `bytes` bytes of data, the others none
    }
  }
}

int cuModuleLoadData(void** module, const void* image) { return *module = (void*)image, SUCCESS; }
int cuModuleUnload(void* module) { return SUCCESS; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  Function* f = *function = calloc(1, sizeof *f);
  strncpy(f->name, name, sizeof f->name - 1);
  read_parameters(f, module);
  return f->count ? SUCCESS : INVALID_VALUE; // an unknown form of machine code
}
int cuFuncGetName(const char** name, void* function) { return *name = ((Function*)function)->name, SUCCESS; }
int cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* size) {
  const Function* f = function;
  if (index >= f->count) return INVALID_VALUE;
  return *offset = f->offset[index], *size = f->size[index], SUCCESS;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) { return *value = attribute ? 0 : 1024, SUCCESS; }
int cuFuncSetAttribute(void* function, int attribute, int value) { return SUCCESS; }
int cuFuncSetCacheConfig(void* function, int config) { return SUCCESS; }

int cuLaunchKernelEx(const void* config, void* function, void** parameters, void** extra) {
  if (!context) return INVALID_CONTEXT;
  if (on_launch) on_launch(config, function, parameters);
  return SUCCESS;
}

int cuInit(unsigned flags) { return SUCCESS; }
int cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, SUCCESS; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  // threads of a warp, multiprocessors, compute capability 9.0, shared memory of a multiprocessor and of a block
  static const int values[][2] = {{10, 32}, {16, 132}, {75, 9}, {76, 0}, {81, 233472}, {97, 232448}};
  *value = 65536;
  for (int i = 0; i < 6; i++)
    if (values[i][0] == attribute) *value = values[i][1];
  return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void** c, int device) { return *c = &on_launch, SUCCESS; } // any address
int cuCtxGetDevice(int* device) { return *device = 0, SUCCESS; }
int cuCtxGetCurrent(void** c) { return *c = context, SUCCESS; }
int cuCtxSetCurrent(void* c) { return context = c, SUCCESS; }
int cuCtxGetLimit(size_t* value, int limit) { return *value = 0, SUCCESS; }
int cuCtxSetLimit(int limit, size_t value) { return SUCCESS; }
int cuPointerGetAttribute(void* data, int attribute, uintptr_t p) { return memcpy(data, &p, sizeof p), SUCCESS; }
int cuGetErrorString(int error, const char** text) { return *text = "error of the stub", SUCCESS; }
int cuStreamIsCapturing(void* stream, int* status) { return *status = 0, SUCCESS; }
int cuOccupancyMaxActiveClusters(int* count, void* function, const void* config) { return *count = 1, SUCCESS; }
int cuTensorMapEncodeTiled(void) { return INVALID_VALUE; } // our kernels have no tensor descriptors
int cuTensorMapEncodeIm2col(void) { return INVALID_VALUE; }

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
void stub_start_count(void) {
  CALLGRIND_START_INSTRUMENTATION; // has no effect after the first call
  CALLGRIND_ZERO_STATS;
}
void stub_dump_count(void) { CALLGRIND_DUMP_STATS; }
#endif
