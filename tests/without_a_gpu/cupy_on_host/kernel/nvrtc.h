// What NVRTC has without an include, and CuPy's own kernels use.
#pragma once

// CuPy asks whether there is a cuda_fp16.h.
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

#include <assert.h>
#include <stdint.h>

#include <cmath>
#include <initializer_list>

using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

// Nothing runs beside a kernel that waits for the clock: each look finds much time gone.
inline long long clock64() {
  static long long cycles;
  return cycles += 1000000000;
}
