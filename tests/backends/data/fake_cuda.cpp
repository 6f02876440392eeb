// The driver's functions of device_memory.py on this process's own memory. They check what they get:
// a handle that is passed by value must arrive whole.
#include <cstdint>
#include <cstdlib>
#include <cstring>

struct Handle {
  unsigned char bytes[64];
};
static uint64_t base = 0;
static size_t size = 0;
static int opened = 0;

extern "C" {
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  if (bytes > (1ull << 40)) return 2;
  base = reinterpret_cast<uint64_t>(std::calloc(bytes, 1));
  size = bytes;
  *address = base;
  return 0;
}
int cuMemFree_v2(uint64_t address) {
  if (address != base) return 1;
  std::free(reinterpret_cast<void*>(address));
  base = 0;
  return 0;
}
int cuIpcGetMemHandle(Handle* handle, uint64_t address) {
  if (address != base) return 1;
  for (int i = 0; i < 56; ++i) handle->bytes[i] = static_cast<unsigned char>(i * 3);  // with zeros
  std::memcpy(handle->bytes + 56, &address, 8);
  return 0;
}
int cuIpcOpenMemHandle_v2(uint64_t* address, Handle handle, unsigned flags) {
  for (int i = 0; i < 56; ++i)
    if (handle.bytes[i] != static_cast<unsigned char>(i * 3)) return 400;
  if (flags != 1) return 1;
  std::memcpy(address, handle.bytes + 56, 8);
  ++opened;
  return 0;
}
int cuIpcCloseMemHandle(uint64_t address) { return address == base && opened-- > 0 ? 0 : 1; }
int cuMemGetAddressRange_v2(uint64_t* first, size_t* bytes, uint64_t address) {
  if (address < base || address >= base + size) return 500;
  *first = base;
  *bytes = size;
  return 0;
}
int cuMemcpyDtoH_v2(void* target, uint64_t source, size_t bytes) {
  std::memcpy(target, reinterpret_cast<void*>(source), bytes);
  return 0;
}
int cuCtxSynchronize() { return 0; }
int cuGetErrorString(int status, const char** words) {
  *words = status == 2 ? "out of memory" : status == 400 ? "invalid resource handle" : nullptr;
  return 0;
}
}
