// The functions of the CUDA runtime that CuPy calls; a jump leads here from each of CuPy's own.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host.h"

#include <cuda_runtime_api.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread int current_device;
static __thread cudaError_t last_error;

// ---- what is counted

typedef struct {
  int event;
  char name[236];
  const void* stream;
  size_t detail;
} Entry;

int host_executes_kernels = 1, host_executes_products = 1;
static long counts[EVENTS];
static Entry* entries;
static size_t entry_count, entry_room;
static bool keeps_log;

void host_note(HostEvent event, const char* name, const void* stream, size_t detail) {
  __atomic_add_fetch(&counts[event], 1, __ATOMIC_RELAXED);
  if (!keeps_log) return;
  pthread_mutex_lock(&mutex);
  if (entry_count == entry_room) {
    entry_room = entry_room ? 2 * entry_room : 1024;
    entries = realloc(entries, entry_room * sizeof *entries);
  }
  Entry* entry = &entries[entry_count++];
  entry->event = event;
  strncpy(entry->name, name, sizeof entry->name - 1);
  entry->name[sizeof entry->name - 1] = 0;
  entry->stream = stream;
  entry->detail = detail;
  pthread_mutex_unlock(&mutex);
}

void host_counts(long* to) { memcpy(to, counts, sizeof counts); }

void host_log(int keep) {
  entry_count = 0;
  keeps_log = keep;
}

size_t host_log_entries(const Entry** to) {
  *to = entries;
  return entry_count;
}

// ---- devices

int host_device(void) { return current_device; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = HOST_DEVICES;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= HOST_DEVICES)
    return host_fail(cudaErrorInvalidDevice, "cudaSetDevice: no device %d", device);
  current_device = device;
  return cudaSuccess;
}

// The numbers of an H100, where one is asked for.
cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int device) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = 65536; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 0; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

static cudaError_t properties(struct cudaDeviceProp* to, int device) {
  memset(to, 0, sizeof *to);
  strcpy(to->name, "host memory");
  to->totalGlobalMem = (size_t)16 << 30;
  to->major = 9;
  to->multiProcessorCount = 132;
  to->warpSize = 32;
  to->l2CacheSize = 50 << 20;
  to->maxThreadsPerBlock = 1024;
  to->maxThreadsPerMultiProcessor = 2048;
  to->sharedMemPerBlock = 49152;
  to->sharedMemPerBlockOptin = 232448;
  to->regsPerBlock = 65536;
  return cudaSuccess;
}

#undef cudaGetDeviceProperties
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* to, int device) {
  return properties(to, device);
}
#if CUDART_VERSION < 13000
cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp* to, int device) {
  return properties(to, device);
}
#endif

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  if (size < 13) return cudaErrorInvalidValue;
  strcpy(text, device ? "0000:01:00.0" : "0000:00:00.0");
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) { return "cudaError"; }
const char* cudaGetErrorString(cudaError_t error) { return host_message(); }

// ---- captures into graphs

struct CUstream_st {
  int device, priority;
  unsigned flags;
  enum cudaStreamCaptureStatus capture;
  enum cudaStreamCaptureMode mode;
  size_t nodes;
  struct CUstream_st* next;
};

struct CUgraph_st {
  size_t nodes;
};

static struct CUstream_st* streams;

static bool is_default(const void* stream) { return (uintptr_t)stream <= 2; }

// End the captures of some streams with an error; return it, or 0 if there are none.
static int end_captures(const char* name, int code, const struct CUstream_st* of, bool blocking,
                        bool strict) {
  int found = 0;
  for (struct CUstream_st* s = streams; s; s = s->next)
    if (s->capture == cudaStreamCaptureStatusActive && (!of || s == of) &&
        (!blocking || !(s->flags & cudaStreamNonBlocking)) &&
        (!strict || s->mode != cudaStreamCaptureModeRelaxed)) {
      s->capture = cudaStreamCaptureStatusInvalidated;
      found = code;
    }
  return found ? last_error = host_fail(found, "%s: not during a capture", name) : 0;
}

bool host_is_captured(const char* name, const void* stream, int* status) {
  // The legacy stream waits for all blocking streams.
  *status = is_default(stream)
                ? end_captures(name, cudaErrorStreamCaptureImplicit, NULL, true, false) : 0;
  if (is_default(stream)) return false;
  struct CUstream_st* s = (struct CUstream_st*)stream;
  const bool active = host_knows_stream(s) && s->capture == cudaStreamCaptureStatusActive;
  if (active) ++s->nodes;
  return active;
}

int host_unsafe(const char* name) {
  return end_captures(name, cudaErrorStreamCaptureUnsupported, NULL, false, true);
}

cudaError_t cudaDeviceSynchronize(void) {
  host_note(SYNCHRONIZE, "cudaDeviceSynchronize", NULL, 0);
  return end_captures("cudaDeviceSynchronize", cudaErrorStreamCaptureUnsupported, NULL, false, false);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  if (is_default(stream))
    return last_error = host_fail(cudaErrorStreamCaptureUnsupported, "a capture of a default stream");
  stream->capture = cudaStreamCaptureStatusActive;
  stream->mode = mode;
  stream->nodes = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const enum cudaStreamCaptureStatus status = stream->capture;
  stream->capture = cudaStreamCaptureStatusNone;
  if (status != cudaStreamCaptureStatusActive)
    return last_error = host_fail(cudaErrorStreamCaptureInvalidated, "the capture has ended");
  *graph = malloc(sizeof **graph);
  (*graph)->nodes = stream->nodes;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  *status = is_default(stream) ? cudaStreamCaptureStatusNone : stream->capture;
  return cudaSuccess;
}

#undef cudaGraphInstantiate
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
  *made = (cudaGraphExec_t)graph;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  free(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made) { return cudaSuccess; }

// ---- copies

static cudaError_t range(const char* what, const void* p, size_t size, bool device) {
  if (device ? host_holds(p, size, current_device) : !host_is_device(p)) return cudaSuccess;
  return last_error = host_fail(cudaErrorInvalidValue, "%s: %zu bytes at %p are not memory of the %s",
                                what, size, p, device ? "current device" : "host");
}

static cudaError_t copy(const char* name, void* to, const void* from, size_t size,
                        enum cudaMemcpyKind kind, const void* stream) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice ||
                         (kind == cudaMemcpyDefault && host_is_device(to));
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice ||
                           (kind == cudaMemcpyDefault && host_is_device(from));
  host_note(!from_device ? COPY_TO_DEVICE : to_device ? COPY_ON_DEVICE : COPY_TO_HOST, name, stream,
            size);
  if (size && (range(name, to, size, to_device) || range(name, from, size, from_device)))
    return last_error;
  int status;
  if (host_is_captured(name, stream, &status) || status) return status;
  if (host_executes_kernels || !(to_device && from_device)) memmove(to, from, size);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, enum cudaMemcpyKind kind) {
  host_note(SYNCHRONIZE, "cudaMemcpy", NULL, size);
  return copy("cudaMemcpy", to, from, size, kind, NULL);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return copy("cudaMemcpyAsync", to, from, size, kind, stream);
}

static cudaError_t set(const char* name, void* to, int value, size_t size, const void* stream) {
  host_note(MEMSET, name, stream, size);
  if (size && range(name, to, size, true)) return last_error;
  int status;
  if (host_is_captured(name, stream, &status) || status) return status;
  if (host_executes_kernels) memset(to, value, size);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t size) {
  return set("cudaMemset", to, value, size, NULL);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  return set("cudaMemsetAsync", to, value, size, stream);
}

cudaError_t cudaHostAlloc(void** p, size_t size, unsigned flags) {
  *p = malloc(size ? size : 1);
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void* p) {
  free(p);
  return cudaSuccess;
}

// ---- streams and events

struct CUevent_st {
  struct timespec recorded;
};

bool host_knows_stream(const void* stream) {
  // The legacy and the per-thread default stream have numbers instead of addresses.
  if (is_default(stream)) return true;
  pthread_mutex_lock(&mutex);
  const struct CUstream_st* s = streams;
  while (s && s != stream) s = s->next;
  pthread_mutex_unlock(&mutex);
  return s != NULL;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  struct CUstream_st* made = malloc(sizeof *made);
  pthread_mutex_lock(&mutex);
  *made = (struct CUstream_st){current_device, priority, flags, .next = streams};
  *stream = streams = made;
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  pthread_mutex_lock(&mutex);
  struct CUstream_st** at = &streams;
  while (*at && *at != stream) at = &(*at)->next;
  if (*at) *at = stream->next;  // its address is not used again
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  host_note(SYNCHRONIZE, "cudaStreamSynchronize", stream, 0);
  const bool blocking = is_default(stream);  // it waits for these
  return end_captures("cudaStreamSynchronize", cudaErrorStreamCaptureUnsupported,
                      blocking ? NULL : stream, blocking, false);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return end_captures("cudaStreamQuery", cudaErrorStreamCaptureUnsupported,
                      is_default(stream) ? NULL : stream, is_default(stream), false);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  host_note(WAIT, "cudaStreamWaitEvent", stream, 0);
  return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  *flags = (uintptr_t)stream <= 2 ? 0 : stream->flags;
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = (uintptr_t)stream <= 2 ? 0 : stream->priority;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = calloc(1, sizeof **event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  clock_gettime(CLOCK_MONOTONIC, &event->recorded);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaSuccess; }

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  host_note(SYNCHRONIZE, "cudaEventSynchronize", NULL, 0);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = (to->recorded.tv_sec - from->recorded.tv_sec) * 1e3f +
        (to->recorded.tv_nsec - from->recorded.tv_nsec) * 1e-6f;
  return cudaSuccess;
}
