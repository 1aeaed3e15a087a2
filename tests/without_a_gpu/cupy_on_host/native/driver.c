// The CUDA driver: modules, and kernels that an executor runs on the host.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

#include <cuda.h>

struct CUfunc_st {
  char* name;
  HostRun run;
  int number;
  int parameter_count;  // -1: not known, nothing is checked
  const HostParameter* parameters;
  int most_shared;
  struct CUfunc_st* next;
};

struct CUmod_st {
  CUfunction functions;
};

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

// ---- the seam to the executor

typedef int (*Loader)(const char* image, CUmodule module);
static Loader loader;

void host_set_loader(Loader function) { loader = function; }

void host_add_kernel(CUmodule module, const char* name, HostRun run, int number,
                     int parameter_count, const HostParameter* parameters) {
  CUfunction made = malloc(sizeof *made);
  *made = (struct CUfunc_st){strdup(name), run, number, parameter_count, parameters, 49152,
                             module->functions};
  module->functions = made;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  *module = calloc(1, sizeof **module);
  if (loader && !loader(image, *module)) return CUDA_SUCCESS;
  return host_fail(CUDA_ERROR_INVALID_IMAGE, "cuModuleLoadData: an image that is not of this library");
}

CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  for (*function = module->functions; *function; *function = (*function)->next)
    if (!strcmp((*function)->name, name)) return CUDA_SUCCESS;
  return host_fail(CUDA_ERROR_NOT_FOUND, "cuModuleGetFunction: no kernel %s", name);
}

CUresult cuModuleGetGlobal(CUdeviceptr* p, size_t* size, CUmodule module, const char* name) {
  return host_fail(CUDA_ERROR_NOT_FOUND, "cuModuleGetGlobal: no variable %s", name);
}

// ---- contexts: one for each device, which is where its number stands

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = (CUcontext)(uintptr_t)(host_device() + 1);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  extern int cudaSetDevice(int);
  return context ? cudaSetDevice((int)(uintptr_t)context - 1) : 0;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = host_device();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) { return cuCtxGetCurrent(context); }

CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = host_message();
  return CUDA_SUCCESS;
}

// ---- functions

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK              ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? function->most_shared
                                                                           : 0;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (value > 232448) return host_fail(CUDA_ERROR_INVALID_VALUE, "%d bytes of shared memory", value);
    function->most_shared = value;
  }
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                     int block_size, size_t shared) {
  *blocks = block_size > 1024 ? 0 : 2048 / block_size;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function,
                                          CUoccupancyB2DSize size_of, size_t shared, int limit) {
  *grid = 132;
  *block = limit && limit < 256 ? limit : 256;
  return CUDA_SUCCESS;
}

// ---- launches

#define MOST_PARAMETERS 256

// Find the parameters in the block of bytes that stands in for them, as the compiler laid it out.
static CUresult unpack(CUfunction f, void** extra, void** arguments) {
  char* bytes = NULL;
  size_t size = 0, at = 0;
  for (; extra[0] != CU_LAUNCH_PARAM_END; extra += 2)
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) bytes = extra[1];
    else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *(size_t*)extra[1];
  if (f->parameter_count < 0) return host_fail(CUDA_ERROR_NOT_SUPPORTED, "%s: no signature", f->name);
  for (int i = 0; i < f->parameter_count; ++i) {
    const HostParameter* p = &f->parameters[i];
    if (p->kind == 's')
      return host_fail(CUDA_ERROR_NOT_SUPPORTED, "%s: a structure in a parameter block", f->name);
    at = (at + p->size - 1) / p->size * p->size;
    arguments[i] = bytes + at;
    at += p->size;
  }
  if (size != at)
    return host_fail(CUDA_ERROR_INVALID_VALUE, "%s: a parameter block of %zu bytes, expected %zu",
                     f->name, size, at);
  return CUDA_SUCCESS;
}

// Every pointer is null or points into memory of the device that is alive, as its type needs it.
static CUresult check_arguments(CUfunction f, void** arguments) {
  host_memory.any_block = f->parameter_count < 0;
  for (int i = 0; i < f->parameter_count; ++i) {
    const HostParameter* parameter = &f->parameters[i];
    if (parameter->kind == 's') host_memory.any_block = true;
    if (parameter->kind != 'p') continue;
    char* p = *(char**)arguments[i];
    HostBlock* block = host_block(p);
    // One behind the last byte is a pointer too.
    if (p && !block) block = host_block(p - 1);
    if (!p) continue;
    if (!block || !block->live || block->device != host_device())
      return host_fail(CUDA_ERROR_INVALID_VALUE, "%s, argument %d: %p is %s", f->name, i, (void*)p,
                       !block ? "no memory of a device"
                       : !block->live ? "freed memory" : "memory of another device");
    const int size = parameter->target_size;
    if (size > 1 && !(size & (size - 1)) && (uintptr_t)p % size)
      return host_fail(CUDA_ERROR_MISALIGNED_ADDRESS, "%s, argument %d: %p is not aligned to %d",
                       f->name, i, (void*)p, size);
    block->launch = host_memory.launch;
  }
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream,
                        void** arguments, void** extra) {
  void* unpacked[MOST_PARAMETERS];
  host_note(LAUNCH, f->name, stream, (size_t)gx * gy * gz);
  if (!gx || !gy || !gz || gx > 2147483647u || gy > 65535 || gz > 65535 || !bx || !by || !bz ||
      bz > 64 || (size_t)bx * by * bz > 1024)
    return host_fail(CUDA_ERROR_INVALID_VALUE, "%s: a grid of (%u, %u, %u) blocks of (%u, %u, %u)",
                     f->name, gx, gy, gz, bx, by, bz);
  if (shared > (unsigned)f->most_shared)
    return host_fail(CUDA_ERROR_INVALID_VALUE, "%s: %u bytes of shared memory", f->name, shared);
  if (!host_knows_stream(stream))
    return host_fail(CUDA_ERROR_INVALID_HANDLE, "%s: no stream %p", f->name, (void*)stream);
  int refused;
  if (host_is_captured(f->name, stream, &refused) || refused || !host_executes_kernels) return refused;
  if (extra) {
    const CUresult status = unpack(f, extra, unpacked);
    if (status) return status;
    arguments = unpacked;
  }
  const HostLaunch launch = {{gx, gy, gz}, {bx, by, bz}, shared, 0};
  pthread_mutex_lock(&one_at_a_time);
  ++host_memory.launch;
  CUresult status = check_arguments(f, arguments);
  if (!status) {
    const char* message = f->run(f->number, &launch, arguments);
    if (message) status = host_fail(CUDA_ERROR_ILLEGAL_ADDRESS, "%s: %s", f->name, message);
  }
  pthread_mutex_unlock(&one_at_a_time);
  return status;
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                   void** arguments) {
  return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, NULL);
}
