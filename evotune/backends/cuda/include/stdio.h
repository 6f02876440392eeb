// NVRTC knows printf itself; device code has nothing else of it.
#pragma once

namespace std {
using ::printf;
}
