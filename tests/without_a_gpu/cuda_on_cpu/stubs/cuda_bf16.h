// The part of CUDA's header of this name that scalar kernels use.
#pragma once

#include "narrow_float.h"

struct __nv_bfloat16_raw {
  unsigned short x;
};

namespace cuda_on_cpu::narrow {

struct BFloat16Format {
  using Raw = __nv_bfloat16_raw;

  static unsigned short encode(float value) {
    const unsigned bits = bit_cast<unsigned>(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;  // NaN
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }

  static float decode(unsigned short bits) { return bit_cast<float>(unsigned(bits) << 16); }
};

}  // namespace cuda_on_cpu::narrow

using __nv_bfloat16 = cuda_on_cpu::narrow::NarrowFloat<cuda_on_cpu::narrow::BFloat16Format>;
using nv_bfloat16 = __nv_bfloat16;

template <>
struct cuda_on_cpu::Kind<__nv_bfloat16> {
  static constexpr char value = 'b';
};

inline __nv_bfloat16 __float2bfloat16(float value) { return value; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
inline __nv_bfloat16 __double2bfloat16(double value) { return value; }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return __nv_bfloat16::from_bits(bits);
}
inline bool __hisnan(__nv_bfloat16 value) { return isnan(float(value)); }
inline int __hisinf(__nv_bfloat16 value) { return isinf(float(value)) ? value.bits >> 15 ? -1 : 1 : 0; }
