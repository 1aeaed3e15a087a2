// Has a kernel check every access to memory: g++ calls one of these functions before each.
//
// Included behind cuda_on_cpu.h, and compiled with -fsanitize=kernel-address, which
// is the address sanitizer without a runtime library of its own.
#pragma once

#include "../native/host.h"

#define UNCHECKED extern "C" __attribute__((no_sanitize("kernel-address"), noinline))

UNCHECKED void host_refuse(uintptr_t address, size_t size, bool write, const void* code) {
  char text[400];
  host_describe(address, size, write, code, text, sizeof text);
  cuda_on_cpu::fail("block (%u, %u, %u), thread (%u, %u, %u) %s", blockIdx.x, blockIdx.y,
                    blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, text);
  cuda_on_cpu::wait(cuda_on_cpu::State::spinning, 0);  // for ever
}

__attribute__((no_sanitize("kernel-address"), always_inline)) inline void host_check(
    uintptr_t address, size_t size, bool aligned, bool write, const void* code) {
  const uintptr_t offset = address - host_memory.base;
  if (offset >= host_memory.bytes) {  // the thread's own, or shared memory
    if (address < HOST_PAGE) host_refuse(address, size, write, code);
    return;
  }
  const HostBlock& block = host_memory.blocks[host_memory.block_of_page[offset / HOST_PAGE]];
  if (!block.live || address - block.start + size > block.size || (aligned && address % size) ||
      (block.launch != host_memory.launch && !host_memory.any_block))
    host_refuse(address, size, write, code);
}

#define CHECKED(size)                                                    \
  UNCHECKED void __asan_load##size##_noabort(uintptr_t address) {        \
    host_check(address, size, true, false, __builtin_return_address(0)); \
  }                                                                      \
  UNCHECKED void __asan_store##size##_noabort(uintptr_t address) {       \
    host_check(address, size, true, true, __builtin_return_address(0));  \
  }
CHECKED(1)
CHECKED(2)
CHECKED(4)
CHECKED(8)
CHECKED(16)
UNCHECKED void __asan_loadN_noabort(uintptr_t address, size_t size) {
  host_check(address, size, false, false, __builtin_return_address(0));
}
UNCHECKED void __asan_storeN_noabort(uintptr_t address, size_t size) {
  host_check(address, size, false, true, __builtin_return_address(0));
}
// What else g++ calls, of no use here.
UNCHECKED void __asan_handle_no_return() {}
UNCHECKED void __asan_before_dynamic_init(const void*) {}
UNCHECKED void __asan_after_dynamic_init() {}
