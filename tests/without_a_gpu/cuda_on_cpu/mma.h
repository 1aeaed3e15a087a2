// The tensor cores' product of a warp. It replaces inline PTX.
//
// Fragments are laid out as NVIDIA's PTX manual says for mma.sync.m16n8k16. The scheduler
// multiplies once all lanes have come: sums in float, from the first column to the last.
#pragma once

namespace cuda_on_cpu {

template <class T>
void multiply_fragments(Thread* lanes) {
  float a[16][16], b[16][8], d[16][8];
  const auto number = [](unsigned word, int half) {
    return float(T::from_bits((unsigned short)(word >> 16 * half)));
  };
  for (int lane = 0; lane < warpSize; ++lane) {
    const unsigned* words = lanes[lane].words;
    const int group = lane / 4, in_group = lane % 4;
    for (int i = 0; i < 8; ++i) {  // a0 to a7
      const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
      const int column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
      a[row][column] = number(words[i / 2], i & 1);
    }
    for (int i = 0; i < 4; ++i)  // b0 to b3
      b[in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group] = number(words[4 + i / 2], i & 1);
    for (int i = 0; i < 4; ++i)  // c0 to c3
      d[group + (i >= 2 ? 8 : 0)][in_group * 2 + (i & 1)] = bit_cast<float>(words[6 + i]);
  }
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column)
      for (int k = 0; k < 16; ++k) d[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < warpSize; ++lane)
    for (int i = 0; i < 4; ++i)
      lanes[lane].words[6 + i] =
          bit_cast<unsigned>(d[lane / 4 + (i >= 2 ? 8 : 0)][lane % 4 * 2 + (i & 1)]);
}

}  // namespace cuda_on_cpu

template <class T>
void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
         int line = __builtin_LINE()) {
  cuda_on_cpu::Thread& self = *cuda_on_cpu::current;
  const unsigned given[] = {a[0], a[1], a[2], a[3], b0, b1};
  memcpy(self.words, given, sizeof given);
  memcpy(self.words + 6, d, sizeof d);
  cuda_on_cpu::warp_operation("mma.sync", ~0u, 0, cuda_on_cpu::lane_number(), line,
                              cuda_on_cpu::multiply_fragments<T>);
  memcpy(d, self.words + 6, sizeof d);
}
