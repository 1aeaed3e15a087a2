// Device memory: blocks in one range of addresses, poisoned, each byte known to be alive or not.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "host.h"

#include <cuda_runtime_api.h>

#define ARENA ((size_t)1 << 40)
#define MOST_BLOCKS ((size_t)1 << 23)
#define LEAST_GAP ((size_t)64 * 1024)

HostMemory host_memory;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t next_free;
static size_t block_count, live_bytes;
static __thread char message[1024];

int host_fail(int code, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(message, sizeof message, format, values);
  va_end(values);
  fprintf(stderr, "cupy_on_host: %s\n", message);
  return code;
}

const char* host_message(void) { return message; }

static void* reserve(size_t bytes) {
  void* p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

__attribute__((constructor)) static void start(void) {
  void* arena = reserve(ARENA);
  host_memory.block_of_page = reserve(ARENA / HOST_PAGE * sizeof(uint32_t));
  host_memory.blocks = reserve(MOST_BLOCKS * sizeof(HostBlock));
  if (!arena || !host_memory.block_of_page || !host_memory.blocks) return;  // no memory at all
  host_memory.base = next_free = (uintptr_t)arena;
  host_memory.bytes = ARENA;
}

bool host_is_device(const void* p) { return (uintptr_t)p - host_memory.base < host_memory.bytes; }

HostBlock* host_block(const void* p) {
  if (!host_is_device(p)) return NULL;
  const uint32_t id = host_memory.block_of_page[((uintptr_t)p - host_memory.base) / HOST_PAGE];
  return id ? &host_memory.blocks[id] : NULL;
}

bool host_holds(const void* p, size_t size, int device) {
  const HostBlock* block = host_block(p);
  const uintptr_t offset = block ? (uintptr_t)p - block->start : 0;
  return block && block->live && block->device == device && offset <= block->size &&
         size <= block->size - offset;
}

void host_describe(uintptr_t address, size_t size, bool write, const void* code, char* text,
                   size_t text_size) {
  int at = snprintf(text, text_size, "%s %zu bytes at %#lx, ", write ? "writes" : "reads", size,
                    (unsigned long)address);
  const HostBlock* block = host_block((void*)address);
  const long behind = block ? (long)(address + size - block->start - block->size) : 0;
  const char* rest = !block                ? address < HOST_PAGE ? "which is a null pointer"
                                                                 : "which is outside of every allocation"
                     : !block->live        ? "which is freed memory"
                     : address % size      ? "which is not aligned"
                     : behind > 0          ? "which is past the end of an allocation"
                                           : "in an allocation that is no argument of the kernel";
  at += snprintf(text + at, text_size - at, "%s", rest);
  if (block)
    at += snprintf(text + at, text_size - at, " (of %zu bytes, at offset %ld)", (size_t)block->size,
                   (long)(address - block->start));
  Dl_info info;
  if (code && at < (int)text_size && dladdr(code, &info)) {
    // The call before the return address is the one that stands in the source line.
    char command[1024], line[256] = "";
    snprintf(command, sizeof command, "addr2line -e '%s' %#lx", info.dli_fname,
             (unsigned long)((const char*)code - (const char*)info.dli_fbase) - 1);
    FILE* pipe = popen(command, "r");
    if (pipe && fgets(line, sizeof line, pipe)) {
      line[strcspn(line, "\n")] = 0;
      const char* name = strrchr(line, '/');
      snprintf(text + at, text_size - at, " (%s)", name ? name + 1 : line);
    }
    if (pipe) pclose(pipe);
  }
}

cudaError_t cudaMalloc(void** p, size_t size) {
  const size_t pages = (size + HOST_PAGE - 1) / HOST_PAGE + (size == 0);
  const size_t gap = (size > LEAST_GAP ? size : LEAST_GAP) / HOST_PAGE + 1;
  host_note(ALLOCATE, "cudaMalloc", NULL, size);
  const int unsafe = host_unsafe("cudaMalloc");
  if (unsafe) return unsafe;
  pthread_mutex_lock(&mutex);
  const uintptr_t start = next_free + gap * HOST_PAGE;
  const bool fits = host_memory.bytes && block_count + 1 < MOST_BLOCKS &&
                    start + pages * HOST_PAGE < host_memory.base + host_memory.bytes &&
                    live_bytes + size < (size_t)16 << 30;
  if (fits) {
    const size_t id = ++block_count;
    next_free = start + pages * HOST_PAGE;
    live_bytes += size;
    host_memory.blocks[id] = (HostBlock){start, size, host_device(), true, 0};
    for (size_t i = 0; i < pages; ++i)
      host_memory.block_of_page[(start - host_memory.base) / HOST_PAGE + i] = id;
    // NaN in every format, and not all ones, as memory is through which blocks exchange numbers.
    const unsigned char poison[2] = {0xfd, 0x7f};
    for (size_t n = 0; n < size; ++n) ((unsigned char*)start)[n] = poison[n % 2];
    *p = (void*)start;
  }
  pthread_mutex_unlock(&mutex);
  return fits ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  host_note(FREE, "cudaFree", NULL, 0);
  HostBlock* block = host_block(p);
  if (!block || !block->live || block->start != (uintptr_t)p)
    return host_fail(cudaErrorInvalidValue, "cudaFree: %p is no allocation", p);
  pthread_mutex_lock(&mutex);
  block->live = false;
  live_bytes -= block->size;
  madvise(p, block->size, MADV_DONTNEED);
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}

// The stacks of the threads of all kernels. To map one, and to have its pages cleared when they are
// touched, takes longer than most threads run, so these are used again, by any kernel.
#define MOST_STACKS 4096
static void* stacks[MOST_STACKS];
static size_t stack_count;

void* cuda_on_cpu_take_stack(size_t bytes, size_t page_bytes) {
  pthread_mutex_lock(&mutex);
  void* memory = stack_count ? stacks[--stack_count] : NULL;
  pthread_mutex_unlock(&mutex);
  if (!memory && (memory = reserve(bytes))) mprotect(memory, page_bytes, PROT_NONE);
  return memory;
}

void cuda_on_cpu_give_stack(void* memory, size_t bytes) {
  pthread_mutex_lock(&mutex);
  const bool kept = stack_count < MOST_STACKS;
  if (kept) stacks[stack_count++] = memory;
  pthread_mutex_unlock(&mutex);
  if (!kept) munmap(memory, bytes);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = (size_t)16 << 30;
  *free = *total - live_bytes;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* attributes, const void* p) {
  const HostBlock* block = host_block(p);
  memset(attributes, 0, sizeof *attributes);
  attributes->type = block && block->live ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->device = block ? block->device : -2;
  attributes->devicePointer = block ? (void*)p : NULL;
  return cudaSuccess;
}
