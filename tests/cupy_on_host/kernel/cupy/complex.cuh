// The part of CuPy's header of this name that kernels of real numbers take.
#pragma once

namespace thrust {
template <class T>
struct complex {
  T re, im;
  complex(T re = 0, T im = 0) : re(re), im(im) {}
  T real() const { return re; }
  T imag() const { return im; }
};
}  // namespace thrust

using thrust::complex;
