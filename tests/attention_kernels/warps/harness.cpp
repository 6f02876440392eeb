// Launches of the kernel in `kernel.cu`, compiled for the CPU by device.hpp.
#include "launching.hpp"
#include "kernel.cu"

extern "C" void run_attention_forward(const Launch* launch, void** values) { run(*launch, values, attention_forward); }
#if defined(SPLIT_KV) && SPLIT_KV > 1 && MERGE == MERGE_KERNEL
extern "C" void run_attention_merge(const Launch* launch, void** values) { run(*launch, values, attention_merge); }
#endif
