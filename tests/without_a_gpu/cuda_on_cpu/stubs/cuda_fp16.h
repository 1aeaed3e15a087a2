// The part of CUDA's header of this name that scalar kernels use.
#pragma once

#include "narrow_float.h"

struct __half_raw {
  unsigned short x;
};

namespace cuda_on_cpu::narrow {

struct HalfFormat {
  using Raw = __half_raw;

  static unsigned short encode(float value) {
    unsigned bits = bit_cast<unsigned>(value);
    const unsigned short sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return 0x7fff;                // NaN
    if (bits >= 0x47800000) return sign | 0x7c00;        // 2**16 and above
    if (bits < 0x38800000)                               // below 2**-14: a multiple of 2**-24,
      return sign | (bit_cast<unsigned>(bit_cast<float>(bits) + 0.5f) - 0x3f000000);
    bits += 0xfff + (bits >> 13 & 1);                    // may carry up to infinity
    return sign | ((bits >> 13) - (112 << 10));
  }

  static float decode(unsigned short half) {
    const unsigned sign = unsigned(half & 0x8000) << 16, magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) return bit_cast<float>(sign | 0x7f800000 | magnitude << 13);
    if (magnitude < 0x400)
      return bit_cast<float>(sign | bit_cast<unsigned>(float(magnitude) * 0x1p-24f));
    return bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  }
};

}  // namespace cuda_on_cpu::narrow

using __half = cuda_on_cpu::narrow::NarrowFloat<cuda_on_cpu::narrow::HalfFormat>;
using half = __half;

template <>
struct cuda_on_cpu::Kind<__half> {
  static constexpr char value = 'h';
};

inline __half __float2half(float value) { return value; }
inline __half __float2half_rn(float value) { return value; }
inline __half __double2half(double value) { return value; }
inline float __half2float(__half value) { return value; }
inline unsigned short __half_as_ushort(__half value) { return value.bits; }
inline __half __ushort_as_half(unsigned short bits) { return __half::from_bits(bits); }
inline bool __hisnan(__half value) { return isnan(float(value)); }
inline int __hisinf(__half value) { return isinf(float(value)) ? value.bits >> 15 ? -1 : 1 : 0; }
