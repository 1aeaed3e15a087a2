// Lets g++ compile a CUDA C++ source string and run its kernels on the host.
//
// Every CUDA thread is a fiber, all of them on one OS thread. The schedule is greedy: one thread
// runs until it ends or waits, then the next one of its warp, warp after warp, block after block.
// Together with shared memory poisoned before each block, a forgotten barrier gives wrong results
// instead of being hidden by a fair schedule.
//
// This header is included once, in front of the source string, by runner.py.
#pragma once

#include <link.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <type_traits>
#include <utility>

static_assert(sizeof(long) == 8 && sizeof(size_t) == 8, "type sizes must be those of CUDA");

// Lets a kernel give a plain variant of inline PTX.
#define CUDA_ON_CPU 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
// g++ takes the standard spelling only in front of a declaration, CUDA also after __shared__.
#define alignas(...) __attribute__((aligned(__VA_ARGS__)))
// Thread-local variables of a module, templates included, lie in one contiguous image: it can be
// poisoned, and exchanged when the scheduler goes from one block to another.
#define __shared__ static thread_local

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

#define CUDA_ON_CPU_VECTOR(scalar, name)                                                     \
  struct alignas(2 * sizeof(scalar)) name##2 {                                               \
    scalar x, y;                                                                             \
  };                                                                                         \
  struct alignas(sizeof(scalar) < 4 ? 4 * sizeof(scalar) : 16) name##4 {                     \
    scalar x, y, z, w;                                                                       \
  };                                                                                         \
  inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                       \
  inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }
CUDA_ON_CPU_VECTOR(unsigned short, ushort)
CUDA_ON_CPU_VECTOR(int, int)
CUDA_ON_CPU_VECTOR(unsigned, uint)
CUDA_ON_CPU_VECTOR(float, float)
CUDA_ON_CPU_VECTOR(double, double)
#undef CUDA_ON_CPU_VECTOR

// The scheduler sets these before it resumes a thread.
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// Where a process has them, its libraries share their fibers' stacks: tests/without_a_gpu/cupy_on_host.
// The lowest page of a stack is one that nobody may touch.
extern "C" {
__attribute__((weak)) void* cuda_on_cpu_take_stack(size_t bytes, size_t page_bytes);
__attribute__((weak)) void cuda_on_cpu_give_stack(void* memory, size_t bytes);
}

namespace cuda_on_cpu {

// Stands where runner.py replaces `extern __shared__ T name[];`.
inline void dynamic_shared_is_allowed_in_functions_only() {}

constexpr size_t stack_bytes = 256 * 1024;
constexpr size_t page_bytes = 4096;

// A place to switch from and to: a fiber, or the scheduler.
struct Context {
  ucontext_t machine;
  jmp_buf registers;
  bool entered = false;  // has been left at least once, so that registers is valid
};

// longjmp spares the system call that swapcontext makes to keep the signal mask.
__attribute__((noinline))
static void switch_context(Context& from, Context& to) {
  from.entered = true;
  if (_setjmp(from.registers)) return;
  if (to.entered) _longjmp(to.registers, 1);
  setcontext(&to.machine);
}

struct Fiber {
  Context context;
  char* memory;
  Fiber* next_free;
};

enum class State : unsigned char { ready, spinning, block_barrier, warp, done };

struct Copy {
  void* to;
  const void* from;
  unsigned bytes, group;
};

struct Thread {
  Fiber* fiber;  // null before it starts and after it ends
  uint3 index;
  int line;  // of the source string, where the thread waits
  State state;
  // What a thread brings to a warp-wide operation, and what it takes from it.
  const char* operation;
  unsigned mask;
  int source;
  unsigned long long value, result;
  // Copies to shared memory that the thread has begun, and how many groups of them it has ended.
  Copy* copies;
  size_t copy_count, copy_room;
  unsigned groups;
  // Of an operation on all lanes together: what does it, on the words of each.
  void (*together)(Thread* lanes);
  unsigned words[10];
};

struct Block {
  uint3 index;
  Thread* threads;  // null once all have ended
  unsigned char* dynamic_shared;
  unsigned char* static_shared;  // kept here while another block is resident, or always
  size_t met;  // threads of its cluster that came to a meeting, if it is the first block there
};

struct Parameter {
  char kind;  // p pointer, i integer, f floating, h half, b bfloat16, v void, s anything else
  char target_kind;
  int size, target_size;  // the target is what a pointer points to
};

struct Entry {
  const char* name;
  int parameter_count;
  const Parameter* parameters;
  void (*call)(void (*kernel)(), void** arguments);
  void (*kernel)();
};

struct Launch {
  unsigned grid[3], block[3];
  unsigned long long shared_bytes;
  int order;  // 0 forward, 1 reverse, more: the seed of a random one
};

static const Entry* entry;
static void** arguments;
static Launch launch;
static size_t thread_count, block_count;
static Context scheduler;
static Thread* current;
static Thread* warp_lanes;  // of the warp that has its turn
static size_t warp_lane_count;
static Fiber* free_fibers;
static Block* resident;
static Block* all_blocks;
static size_t state_changes;
static size_t async_count;
static char failure[512];

static thread_local unsigned char shared_image_anchor[16];
static unsigned char* shared_image;
static size_t shared_image_bytes;

// Bytes behind the dynamic shared memory.
constexpr size_t guard_bytes = 1024;
constexpr unsigned char guard = 0xA5, poison = 0xFF;

__attribute__((format(printf, 1, 2)))
static bool fail(const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(failure, sizeof failure, format, values);
  va_end(values);
  return false;
}

inline void* dynamic_shared() { return resident->dynamic_shared; }

// Hands control back to the scheduler, which may resume this thread later.
static void wait(State state, int line) {
  Fiber* fiber = current->fiber;
  current->state = state;
  current->line = line;
  switch_context(fiber->context, scheduler);
}

// In a random order a block may be left after any of its warps, and passed over, as if it were slow.
static unsigned long long random_state;
static bool at_random() { return launch.order > 1; }
static unsigned drawn(size_t below) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return unsigned((random_state >> 32) % below);
}

static size_t in_order(size_t i, size_t count) { return launch.order == 1 ? count - 1 - i : i; }

// The thread whose turn is next, if it is of the same warp and has not started: it can do with the
// fiber of the one that has ended.
static Thread* next_to_start() {
  const size_t turn = in_order(current - warp_lanes, warp_lane_count) + 1;
  if (turn >= warp_lane_count) return nullptr;
  Thread* next = &warp_lanes[in_order(turn, warp_lane_count)];
  return next->state == State::ready && !next->fiber ? next : nullptr;
}

static void fiber_main() {
  // A fiber whose thread has ended is used again for the next thread.
  for (;;) {
    entry->call(entry->kernel, arguments);
    if (Thread* next = next_to_start()) {
      current->state = State::done;
      next->fiber = current->fiber;
      current->fiber = nullptr;
      current = next;
      threadIdx = next->index;
      ++state_changes;
    } else {
      wait(State::done, 0);
    }
  }
}

static void* new_stack() {
  if (cuda_on_cpu_take_stack) return cuda_on_cpu_take_stack(stack_bytes, page_bytes);
  void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  mprotect(memory, page_bytes, PROT_NONE);
  return memory;
}

static void free_fiber(Fiber* fiber) {
  if (cuda_on_cpu_give_stack) cuda_on_cpu_give_stack(fiber->memory, stack_bytes);
  else munmap(fiber->memory, stack_bytes);
  free(fiber);
}

static Fiber* new_fiber() {
  void* memory = new_stack();
  if (!memory) return nullptr;
  auto* fiber = static_cast<Fiber*>(calloc(1, sizeof(Fiber)));
  fiber->memory = static_cast<char*>(memory);
  ucontext_t& machine = fiber->context.machine;
  getcontext(&machine);
  machine.uc_stack.ss_sp = fiber->memory + page_bytes;
  machine.uc_stack.ss_size = stack_bytes - page_bytes;
  makecontext(&machine, fiber_main, 0);
  return fiber;
}

static bool resume(Thread& thread) {
  if (!thread.fiber) {
    thread.fiber = free_fibers ? free_fibers : new_fiber();
    if (!thread.fiber) return fail("out of memory: too many threads are alive at once");
    free_fibers = thread.fiber->next_free;
    thread.fiber->next_free = nullptr;
  }
  current = &thread;
  threadIdx = thread.index;
  switch_context(scheduler, thread.fiber->context);
  // It may be another thread by now that comes back.
  if (current->state != State::spinning) ++state_changes;
  if (current->state == State::done) {
    current->fiber->next_free = free_fibers;
    free_fibers = current->fiber;
    current->fiber = nullptr;
  }
  return failure[0] == 0;
}

// Copies that a thread does not wait for, in groups: made as late as it allows.
inline void copy_async(void* to, const void* from, unsigned bytes) {
  Thread& t = *current;
  if (t.copy_count == t.copy_room) {
    t.copy_room = 2 * t.copy_room + 64;
    t.copies = static_cast<Copy*>(realloc(t.copies, t.copy_room * sizeof(Copy)));
  }
  t.copies[t.copy_count++] = {to, from, bytes, t.groups};
}
inline void end_copies() { ++current->groups; }
inline void wait_for_copies(unsigned groups) {
  Thread& t = *current;
  size_t left = 0;
  for (size_t i = 0; i < t.copy_count; ++i) {
    const Copy& c = t.copies[i];
    if (c.group + groups < t.groups) memcpy(c.to, c.from, c.bytes);
    else t.copies[left++] = c;
  }
  t.copy_count = left;
}

// Finds the thread-local image of this module.
static int find_shared_image(dl_phdr_info* info, size_t, void*) {
  const char* base = reinterpret_cast<const char*>(info->dlpi_addr);
  const char* here = reinterpret_cast<const char*>(&launch);
  bool is_this_module = false;
  size_t bytes = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const char* start = base + header.p_vaddr;
    if (header.p_type == PT_LOAD && here >= start && here < start + header.p_memsz)
      is_this_module = true;
    if (header.p_type == PT_TLS) bytes = header.p_memsz;
  }
  if (!is_this_module) return 0;
  shared_image = static_cast<unsigned char*>(info->dlpi_tls_data);
  shared_image_bytes = bytes;
  return 1;
}

// Makes the block's static shared memory the one that kernels see.
static void make_resident(Block& block) {
  if (resident == &block) return;
  if (resident && resident->threads) {
    if (!resident->static_shared)
      resident->static_shared = static_cast<unsigned char*>(malloc(shared_image_bytes));
    memcpy(resident->static_shared, shared_image, shared_image_bytes);
  }
  if (block.static_shared) memcpy(shared_image, block.static_shared, shared_image_bytes);
  else memset(shared_image, poison, shared_image_bytes);
  resident = &block;
  blockIdx = block.index;
}


static bool start_block(Block& block, size_t number) {
  block.index = {unsigned(number % gridDim.x), unsigned(number / gridDim.x % gridDim.y),
                 unsigned(number / gridDim.x / gridDim.y)};
  block.threads = static_cast<Thread*>(calloc(thread_count, sizeof(Thread)));
  void* memory = nullptr;
  if (!block.threads || posix_memalign(&memory, 128, launch.shared_bytes + guard_bytes))
    return fail("out of memory");
  block.dynamic_shared = static_cast<unsigned char*>(memory);
  memset(block.dynamic_shared, poison, launch.shared_bytes);
  memset(block.dynamic_shared + launch.shared_bytes, guard, guard_bytes);
  for (size_t i = 0; i < thread_count; ++i)
    block.threads[i].index = {unsigned(i % blockDim.x), unsigned(i / blockDim.x % blockDim.y),
                              unsigned(i / blockDim.x / blockDim.y)};
  return true;
}

static bool has_stores_left(const Block& block);

static bool end_block(Block& block) {
  bool intact = true;
  if (has_stores_left(block))
    fail("block (%u, %u, %u) ends before numbers have come that it is sent", block.index.x,
         block.index.y, block.index.z);
  for (size_t i = 0; block.dynamic_shared && i < guard_bytes; ++i)
    intact = intact && block.dynamic_shared[launch.shared_bytes + i] == guard;
  for (size_t i = 0; block.threads && i < thread_count; ++i)
    if (Fiber* fiber = block.threads[i].fiber) free_fiber(fiber);  // stopped by a failure
  for (size_t i = 0; block.threads && i < thread_count; ++i) free(block.threads[i].copies);
  free(block.threads);
  free(block.dynamic_shared);
  free(block.static_shared);
  block.threads = nullptr;
  block.dynamic_shared = block.static_shared = nullptr;
  if (!intact && failure[0] == 0)
    return fail("block (%u, %u, %u) wrote past the end of its %llu bytes of dynamic shared memory",
                block.index.x, block.index.y, block.index.z, launch.shared_bytes);
  return failure[0] == 0;
}

static void describe(const Thread& thread, char* text, size_t size) {
  switch (thread.state) {
    case State::done: snprintf(text, size, "has left the kernel"); break;
    case State::block_barrier:
      snprintf(text, size, "waits at the block barrier in line %d", thread.line);
      break;
    case State::warp:
      snprintf(text, size, "waits at %s with mask 0x%08x in line %d", thread.operation,
               thread.mask, thread.line);
      break;
    default: snprintf(text, size, "is not there");
  }
}

static bool fail_apart(const Block& block, const Thread& waiting, const Thread& other,
                       const Block& other_block) {
  char here[128], there[128];
  describe(waiting, here, sizeof here);
  describe(other, there, sizeof there);
  return fail("thread (%u, %u, %u) of block (%u, %u, %u) %s, but thread (%u, %u, %u) of block "
              "(%u, %u, %u) %s", waiting.index.x, waiting.index.y, waiting.index.z, block.index.x,
              block.index.y, block.index.z, here, other.index.x, other.index.y, other.index.z,
              other_block.index.x, other_block.index.y, other_block.index.z, there);
}

// Lets a group of lanes go on when all of them have come to the same operation.
static bool release_lanes(const Block& block, Thread* lanes, size_t count, Thread& waiting,
                          bool& released) {
  const unsigned mask = waiting.mask;
  for (size_t i = 0; i < count; ++i) {
    if (!(mask >> i & 1)) continue;
    Thread& lane = lanes[i];
    // A lane that has just been let go on may still come.
    if (lane.state == State::spinning || lane.state == State::ready) return true;
    if (lane.state != State::warp || lane.operation != waiting.operation || lane.mask != mask ||
        lane.line != waiting.line)
      return fail_apart(block, waiting, lane, block);
  }
  if (waiting.together) waiting.together(lanes);
  for (size_t i = 0; i < count; ++i) {
    if (!(mask >> i & 1)) continue;
    const int source = lanes[i].source;
    // A lane that takes no part has no value: reading it gives the poison.
    const bool has_value = source >= 0 && size_t(source) < count && (mask >> source & 1);
    lanes[i].result = has_value ? lanes[source].value : ~0ull;
    lanes[i].state = State::ready;
  }
  released = true;
  ++state_changes;
  return true;
}

static bool drive_warp(const Block& block, Thread* lanes, size_t count) {
  warp_lanes = lanes;
  warp_lane_count = count;
  for (bool released = true; released;) {
    for (size_t i = 0; i < count; ++i) {
      Thread& lane = lanes[in_order(i, count)];
      if (lane.state == State::ready && !resume(lane)) return false;
    }
    released = false;
    for (size_t i = 0; i < count; ++i)
      if (lanes[i].state == State::warp && !release_lanes(block, lanes, count, lanes[i], released))
        return false;
  }
  return true;
}

static size_t count_threads(const Block& block, State state) {
  size_t count = 0;
  for (size_t i = 0; block.threads && i < thread_count; ++i)
    count += block.threads[i].state == state;
  return count;
}

static void set_ready(Block& block, State from) {
  for (size_t i = 0; block.threads && i < thread_count; ++i)
    if (block.threads[i].state == from) block.threads[i].state = State::ready;
}

// Runs a block until all its threads have ended or wait for other blocks.
static bool drive_block(Block& block) {
  const size_t warp_count = (thread_count + warpSize - 1) / warpSize;
  make_resident(block);
  for (;;) {
    const size_t turn = at_random() ? drawn(warp_count) : 0;
    for (size_t i = 0; i < warp_count; ++i) {
      const size_t first = in_order((i + turn) % warp_count, warp_count) * warpSize;
      const size_t count = thread_count - first < warpSize ? thread_count - first : warpSize;
      if (!drive_warp(block, block.threads + first, count)) return false;
      if (at_random() && block_count > 1 && drawn(3) == 0) break;
    }
    if (count_threads(block, State::done) == thread_count) return end_block(block);
    if (count_threads(block, State::block_barrier) == 0 ||
        count_threads(block, State::spinning) > 0 ||
        (at_random() && count_threads(block, State::ready) + count_threads(block, State::warp) > 0))
      return true;
    const Thread* waiting = nullptr;
    for (size_t i = 0; i < thread_count; ++i)
      if (block.threads[i].state == State::block_barrier) waiting = &block.threads[i];
    for (size_t i = 0; i < thread_count; ++i) {
      const Thread& other = block.threads[i];
      if (other.state != State::block_barrier || other.line != waiting->line)
        return fail_apart(block, *waiting, other, block);
    }
    set_ready(block, State::block_barrier);
    ++state_changes;
  }
}

// Lets threads go on that spin until other blocks come.
static bool release_spinning(Block* blocks) {
  constexpr int patience = 10000;
  static size_t changes_before;
  static int idle_rounds;
  size_t spinning = 0;
  for (size_t b = 0; b < block_count; ++b) spinning += count_threads(blocks[b], State::spinning);
  if (spinning == 0) return true;
  idle_rounds = state_changes == changes_before ? idle_rounds + 1 : 0;
  changes_before = state_changes;
  if (idle_rounds > patience) return fail("%zu threads spin for ever in __nanosleep()", spinning);
  for (size_t b = 0; b < block_count; ++b) set_ready(blocks[b], State::spinning);
  return true;
}

static bool run_blocks(Block* blocks) {
  for (size_t i = 0; i < block_count; ++i) {
    const size_t number = in_order(i, block_count);
    if (!start_block(blocks[number], number) || !drive_block(blocks[number])) return false;
  }
  for (;;) {
    bool alive = false;
    for (size_t b = 0; b < block_count; ++b) alive = alive || blocks[b].threads;
    if (!alive) return true;
    if (!release_spinning(blocks)) return false;
    const size_t turn = at_random() ? drawn(block_count) : 0;
    for (size_t i = 0; i < block_count; ++i) {
      Block& block = blocks[in_order((i + turn) % block_count, block_count)];
      if (at_random() && drawn(2) == 0) continue;
      if (block.threads && !drive_block(block)) return false;
    }
  }
}

// A process may have about 65,000 mappings. A fiber has two, and each library has fibers of its own:
// after a launch it keeps a few, or as many as it is told to, since new ones take most of the time
// of a small launch.
static size_t most_kept_fibers = 16;

static void release_fibers() {
  Fiber** rest = &free_fibers;
  for (size_t kept = 0; kept < most_kept_fibers && *rest; ++kept) rest = &(*rest)->next_free;
  while (Fiber* fiber = *rest) {
    *rest = fiber->next_free;
    free_fiber(fiber);
  }
}

// Returns null, or what went wrong.
static const char* run(const Entry& kernel, const Launch& how, void** values) {
  entry = &kernel;
  launch = how;
  arguments = values;
  gridDim = dim3(how.grid[0], how.grid[1], how.grid[2]);
  blockDim = dim3(how.block[0], how.block[1], how.block[2]);
  thread_count = size_t(blockDim.x) * blockDim.y * blockDim.z;
  block_count = size_t(gridDim.x) * gridDim.y * gridDim.z;
  resident = nullptr;
  random_state = 0x9E3779B97F4A7C15ull * (unsigned long long)(how.order);
  async_count = 0;
  failure[0] = 0;
  // Touching one thread-local variable makes this OS thread's image exist.
  *static_cast<volatile unsigned char*>(shared_image_anchor) = poison;
  dl_iterate_phdr(find_shared_image, nullptr);
  // ptxas accepts no more.
  if (shared_image_bytes > 49152 + sizeof shared_image_anchor)
    fail("%zu bytes of static shared memory, and 49152 are possible", shared_image_bytes);
  Block* blocks = all_blocks = static_cast<Block*>(calloc(block_count, sizeof(Block)));
  if (!blocks) fail("out of memory: too many blocks");
  else if (!failure[0]) run_blocks(blocks);
  for (size_t b = 0; blocks && b < block_count; ++b) end_block(blocks[b]);
  free(blocks);
  release_fibers();
  return failure[0] ? failure : nullptr;
}

template <class T>
struct Kind {
  static constexpr char value = std::is_pointer<T>::value                             ? 'p'
                                : std::is_integral<T>::value || std::is_enum<T>::value ? 'i'
                                : std::is_floating_point<T>::value                     ? 'f'
                                : std::is_void<T>::value                               ? 'v'
                                                                                       : 's';
};

template <class T>
constexpr int size_of = sizeof(T);
template <>
constexpr int size_of<void> = 0;

template <class T>
constexpr Parameter parameter() {
  using Target = std::remove_cv_t<std::remove_pointer_t<T>>;
  return {Kind<T>::value, Kind<Target>::value, size_of<T>, size_of<Target>};
}

template <class... A>
struct Signature {
  static constexpr Parameter parameters[sizeof...(A) + 1] = {parameter<A>()...};

  template <size_t... i>
  static void call_with(void (*kernel)(A...), void** arguments, std::index_sequence<i...>) {
    kernel(*static_cast<A*>(arguments[i])...);
  }
  static void call(void (*kernel)(), void** arguments) {
    call_with(reinterpret_cast<void (*)(A...)>(kernel), arguments,
              std::index_sequence_for<A...>());
  }
};

template <class... A>
Entry make_entry(const char* name, void (*kernel)(A...)) {
  return {name, sizeof...(A), Signature<A...>::parameters, Signature<A...>::call,
          reinterpret_cast<void (*)()>(kernel)};
}

inline int lane_number() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize;
}

// source: the lane to read from, or -1 where nothing is read.
inline unsigned long long warp_operation(const char* operation, unsigned mask,
                                         unsigned long long value, int source, int line,
                                         void (*together)(Thread*) = nullptr) {
  Thread& self = *current;
  self.operation = operation;
  self.mask = mask;
  self.value = value;
  self.source = source;
  self.together = together;
  if (!(mask >> lane_number() & 1))
    fail("lane %d is not in the mask 0x%08x that it passes to %s in line %d", lane_number(), mask,
         operation, line);
  wait(State::warp, line);
  return self.result;
}

template <class To, class From>
To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class A, class B>
constexpr auto smaller(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point<T>::value) return T(fmin(T(a), T(b)));
  else return T(b) < T(a) ? T(b) : T(a);
}

template <class A, class B>
constexpr auto larger(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point<T>::value) return T(fmax(T(a), T(b)));
  else return T(a) < T(b) ? T(b) : T(a);
}

template <class T>
T reciprocal_root(T x) {
  return T(1) / sqrt(x);
}

// Atomic operations that order nothing, and are no race with each other.
template <class T, class F>
T exchange(T* address, F update) {
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  T updated = update(old);
  __atomic_store(address, &updated, __ATOMIC_RELAXED);
  return old;
}

// What `red.release.gpu.global.add` and `ld.acquire.gpu.global` do, and the second without acquire.
template <class T>
void add_release(T* address, T value) {
  exchange(address, [&](T old) { return T(old + value); });
}

template <class T>
T load_relaxed(const T* address) {
  T value;
  __atomic_load(address, &value, __ATOMIC_RELAXED);
  return value;
}

template <class V>
V load_words(const V* address) {
  V v;
  for (size_t n = 0; n < sizeof v.w / sizeof *v.w; ++n) v.w[n] = load_relaxed(address->w + n);
  return v;
}

template <class T>
T load_word(const T* address) {
  return load_relaxed(address);
}

template <class T>
T load_acquire(const T* address) {
  return load_relaxed(address);
}

// What `st.relaxed.gpu.global` does. Every other word comes late, so that one who looks at some of
// them together may find a part.
template <class T>
void store_word(T* address, T value) {
  if ((size_t)address / sizeof(T) % 2) wait(State::spinning, 0);
  __atomic_store(address, &value, __ATOMIC_RELAXED);
}

// Clusters of so many neighboring blocks. A meeting ends once all threads have come to it.
static Block& in_cluster(unsigned number, unsigned blocks) {
  const size_t here = resident - all_blocks;
  return all_blocks[here / blocks * blocks + number];
}
inline void sync_cluster(unsigned blocks, int line = __builtin_LINE()) {
  Block& first = in_cluster(0, blocks);
  const size_t all = blocks * thread_count, awaited = (first.met++ / all + 1) * all;
  ++state_changes;
  while (first.met < awaited) wait(State::spinning, line);
}
// The same place in the dynamic shared memory of another block, which has to be there.
inline unsigned char* of_block(void* place, unsigned number, unsigned blocks) {
  Block& block = in_cluster(number, blocks);
  const size_t offset = static_cast<unsigned char*>(place) - resident->dynamic_shared;
  if (block.dynamic_shared && offset < launch.shared_bytes) return block.dynamic_shared + offset;
  fail("block (%u, %u, %u) is sent a number where it has no shared memory, or not any more",
       block.index.x, block.index.y, block.index.z);
  return nullptr;
}

// Barriers that one thread comes to in each phase, and that count the bytes of stores.
struct Barrier {
  int bytes;  // that are expected, less those that came
  unsigned char awaited, phase;
};
template <class T>
void begin_barrier(T* barrier) {
  static_assert(sizeof(T) >= sizeof(Barrier), "");
  *reinterpret_cast<Barrier*>(barrier) = {0, 1, 0};
}
static void count(Barrier& barrier, int bytes, bool comes) {
  barrier.bytes += bytes;
  barrier.awaited -= comes;
  ++state_changes;
  if (barrier.awaited || barrier.bytes) return;
  barrier.awaited = 1;
  barrier.phase ^= 1;
}

// Stores that come late and in any order: some when a thread looks at a barrier, the last ones
// first, and the rest when their block is about to end.
struct AsyncStore {
  unsigned char* to;
  Barrier* barrier;
  unsigned char value[16];
  unsigned bytes;
};
static AsyncStore async_stores[1 << 16];
template <class V>
void store_async(V* to, V value, void* barrier, unsigned number, unsigned blocks) {
  AsyncStore s = {of_block(to, number, blocks),
                  reinterpret_cast<Barrier*>(of_block(barrier, number, blocks)), {}, sizeof(V)};
  memcpy(s.value, &value, sizeof(V));
  if (async_count == sizeof async_stores / sizeof *async_stores) fail("too many stores");
  else if (s.to && s.barrier) async_stores[async_count++] = s;
}
static bool has_stores_left(const Block& block) {
  for (size_t n = 0; n < async_count; ++n)
    if (block.dynamic_shared && async_stores[n].to >= block.dynamic_shared &&
        async_stores[n].to < block.dynamic_shared + launch.shared_bytes)
      return true;
  return false;
}
static void make_stores() {
  size_t left = 0, count_before = async_count;
  for (size_t n = count_before; n-- > 0;) {
    AsyncStore& s = async_stores[n];
    if (at_random() && drawn(2)) continue;
    memcpy(s.to, s.value, s.bytes);
    count(*s.barrier, -int(s.bytes), false);
    s.to = nullptr;
  }
  for (size_t n = 0; n < count_before; ++n)
    if (async_stores[n].to) async_stores[left++] = async_stores[n];
  async_count = left;
}
template <class T>
void expect(T* barrier, int bytes) {
  count(*reinterpret_cast<Barrier*>(barrier), bytes, true);
}
// Whether the phase of this parity has ended.
template <class T>
bool has_come(T* barrier, unsigned parity) {
  if (reinterpret_cast<Barrier*>(barrier)->phase == parity) make_stores();
  return reinterpret_cast<Barrier*>(barrier)->phase != parity;
}

}  // namespace cuda_on_cpu

// What kernels wrap in functions of their own elsewhere.
using cuda_on_cpu::begin_barrier;
using cuda_on_cpu::end_copies;
using cuda_on_cpu::expect;
using cuda_on_cpu::has_come;
using cuda_on_cpu::load_word;
using cuda_on_cpu::load_words;
using cuda_on_cpu::store_async;
using cuda_on_cpu::store_word;
using cuda_on_cpu::sync_cluster;

inline float power_of_two(float v) { return exp2f(v); }
inline float inverse(float v) { return 1.f / v; }
template <class V>
V in_register(V v) {
  return v;
}
typedef char* Place;
inline Place in_shared(void* memory) { return static_cast<char*>(memory); }
template <class V>
V* at_place(Place p) {
  return reinterpret_cast<V*>(p);
}
template <class V>
void copy_async(Place to, const V* from) {
  cuda_on_cpu::copy_async(to, from, sizeof(V));
}
template <int GROUPS>
void wait_for_copies() {
  cuda_on_cpu::wait_for_copies(GROUPS);
}

// The default argument is the line of the caller, for messages.
inline void __syncthreads(int line = __builtin_LINE()) {
  cuda_on_cpu::wait(cuda_on_cpu::State::block_barrier, line);
}

inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) {
  cuda_on_cpu::warp_operation("__syncwarp", mask, 0, -1, line);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int line = __builtin_LINE()) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most eight bytes");
  unsigned long long bits = 0;
  memcpy(&bits, &value, sizeof value);
  const int source = cuda_on_cpu::lane_number() ^ lanes;
  bits = cuda_on_cpu::warp_operation("__shfl_xor_sync", mask, bits, source, line);
  memcpy(&value, &bits, sizeof value);
  return value;
}

// A spin loop must call this: it is where another thread gets its turn.
inline void __nanosleep(unsigned, int line = __builtin_LINE()) {
  cuda_on_cpu::wait(cuda_on_cpu::State::spinning, line);
}

// One OS thread runs everything, so memory is always coherent and every operation atomic.
inline void __threadfence_block() {}
inline void __threadfence() {}
inline void __threadfence_system() {}

template <class T, class V>
T atomicAdd(T* address, V value) {
  return cuda_on_cpu::exchange(address, [&](T old) { return T(old + T(value)); });
}

template <class T, class V>
T atomicMin(T* address, V value) {
  return cuda_on_cpu::exchange(address, [&](T old) { return cuda_on_cpu::smaller(old, T(value)); });
}

template <class T, class V>
T atomicMax(T* address, V value) {
  return cuda_on_cpu::exchange(address, [&](T old) { return cuda_on_cpu::larger(old, T(value)); });
}

template <class T, class V>
T atomicExch(T* address, V value) {
  return cuda_on_cpu::exchange(address, [&](T) { return T(value); });
}

template <class T, class C, class V>
T atomicCAS(T* address, C expected, V value) {
  return cuda_on_cpu::exchange(address,
                               [&](T old) { return old == T(expected) ? T(value) : old; });
}

template <class T>
T __ldg(const T* address) {
  return *address;
}

template <class T>
T __ldcg(const T* address) {
  return *address;
}

template <class T>
T __ldcs(const T* address) {
  return *address;
}

template <class T, class V>
void __stcg(T* address, V value) {
  *address = value;
}

template <class T, class V>
void __stcs(T* address, V value) {
  *address = value;
}

template <class A, class B>
constexpr auto min(A a, B b) {
  return cuda_on_cpu::smaller(a, b);
}

template <class A, class B>
constexpr auto max(A a, B b) {
  return cuda_on_cpu::larger(a, b);
}

// Macros, because the C library declares some of these names itself.
#define rsqrt(x) cuda_on_cpu::reciprocal_root(x)
#define rsqrtf(x) cuda_on_cpu::reciprocal_root<float>(x)
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)

inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0), 1); }

inline int __float_as_int(float x) { return cuda_on_cpu::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return cuda_on_cpu::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return cuda_on_cpu::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return cuda_on_cpu::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return cuda_on_cpu::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return cuda_on_cpu::bit_cast<double>(x); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return (unsigned long long)((unsigned __int128)x * y >> 64);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }

#include "mma.h"
