// The part of CUDA's header of this name that is about whole blocks and the whole grid.
#pragma once

namespace cooperative_groups {

struct thread_block {
  void sync(int line = __builtin_LINE()) const { __syncthreads(line); }
  static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
  static unsigned thread_rank() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
};

struct grid_group {
  void sync(int line = __builtin_LINE()) const {
    cuda_on_cpu::wait(cuda_on_cpu::State::grid_barrier, line);
  }
  static bool is_valid() { return true; }
  static unsigned long long num_blocks() {
    return (unsigned long long)gridDim.x * gridDim.y * gridDim.z;
  }
  static unsigned long long block_rank() {
    return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  }
  static unsigned long long size() { return num_blocks() * thread_block::size(); }
  static unsigned long long thread_rank() {
    return block_rank() * thread_block::size() + thread_block::thread_rank();
  }
};

inline thread_block this_thread_block() { return {}; }
inline grid_group this_grid() { return {}; }

}  // namespace cooperative_groups
