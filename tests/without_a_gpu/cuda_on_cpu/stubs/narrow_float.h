// A 16-bit floating type: arithmetic in float, each result rounded to nearest even.
//
// Rounding the float result once more is exact for + - * /, because float has more than twice
// the digits of both formats.
#pragma once

// A namespace of its own, so that argument-dependent look-up finds nothing but the operators.
namespace cuda_on_cpu::narrow {

// Keeps what a second, narrower rounding needs to know about the digits lost here.
inline float round_to_odd(double value) {
  const float nearest = float(value);
  if (double(nearest) == value || isnan(value)) return nearest;
  unsigned bits = bit_cast<unsigned>(nearest);
  if (fabs(double(nearest)) > fabs(value)) --bits;
  return bit_cast<float>(bits | 1);
}

template <class Format>
struct NarrowFloat {
  unsigned short bits;

  NarrowFloat() = default;
  NarrowFloat(float value) : bits(Format::encode(value)) {}
  template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>>
  NarrowFloat(T value) : bits(Format::encode(round_to_odd(double(value)))) {}

  NarrowFloat(typename Format::Raw raw) : bits(raw.x) {}

  operator float() const { return Format::decode(bits); }
  operator typename Format::Raw() const { return {bits}; }

  static NarrowFloat from_bits(unsigned short bits) {
    NarrowFloat result;
    result.bits = bits;
    return result;
  }

  friend NarrowFloat operator+(NarrowFloat a, NarrowFloat b) { return float(a) + float(b); }
  friend NarrowFloat operator-(NarrowFloat a, NarrowFloat b) { return float(a) - float(b); }
  friend NarrowFloat operator*(NarrowFloat a, NarrowFloat b) { return float(a) * float(b); }
  friend NarrowFloat operator/(NarrowFloat a, NarrowFloat b) { return float(a) / float(b); }
  friend NarrowFloat operator+(NarrowFloat a) { return a; }
  friend NarrowFloat operator-(NarrowFloat a) { return from_bits(a.bits ^ 0x8000); }
  friend bool operator==(NarrowFloat a, NarrowFloat b) { return float(a) == float(b); }
  friend bool operator!=(NarrowFloat a, NarrowFloat b) { return float(a) != float(b); }
  friend bool operator<(NarrowFloat a, NarrowFloat b) { return float(a) < float(b); }
  friend bool operator<=(NarrowFloat a, NarrowFloat b) { return float(a) <= float(b); }
  friend bool operator>(NarrowFloat a, NarrowFloat b) { return float(a) > float(b); }
  friend bool operator>=(NarrowFloat a, NarrowFloat b) { return float(a) >= float(b); }
  NarrowFloat& operator+=(NarrowFloat b) { return *this = *this + b; }
  NarrowFloat& operator-=(NarrowFloat b) { return *this = *this - b; }
  NarrowFloat& operator*=(NarrowFloat b) { return *this = *this * b; }
  NarrowFloat& operator/=(NarrowFloat b) { return *this = *this / b; }
};

}  // namespace cuda_on_cpu::narrow
