// What the parts of the host library share with each other and with the compiled kernels.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HOST_DEVICES 2
#define HOST_PAGE 4096

// One allocation of a device. Addresses are used once: what was freed stays known as freed.
typedef struct {
  uintptr_t start, size;
  int device;
  bool live;
  unsigned launch;  // the last launch that was given a pointer into it
} HostBlock;

// All device memory lies in one range of addresses, with gaps between the blocks.
typedef struct {
  uintptr_t base, bytes;
  uint32_t* block_of_page;  // 0: none
  HostBlock* blocks;
  unsigned launch;  // the one that runs
  bool any_block;   // its pointers lie inside structures, so all live blocks are open to it
} HostMemory;

extern HostMemory host_memory;

// Say what is wrong with an access, in words.
void host_describe(uintptr_t address, size_t size, bool write, const void* code, char* text,
                   size_t text_size);

// The layouts of cuda_on_cpu.h, whose kernels are run here.
typedef struct {
  char kind, target_kind;
  int size, target_size;
} HostParameter;

typedef struct {
  unsigned grid[3], block[3];
  unsigned long long shared_bytes;
  int reverse;
} HostLaunch;

// Runs a kernel; returns null or what went wrong. This is all the driver knows of an executor.
typedef const char* (*HostRun)(int number, const HostLaunch* launch, void** arguments);

#ifndef __cplusplus
typedef enum {
  LAUNCH, PRODUCT, MEMSET, COPY_TO_DEVICE, COPY_TO_HOST, COPY_ON_DEVICE,
  SYNCHRONIZE, ALLOCATE, FREE, WAIT, EVENTS
} HostEvent;

// Count a call, and keep it in the log while that is wanted.
void host_note(HostEvent event, const char* name, const void* stream, size_t detail);

// Remember and print a message, and return `code`, which is the status for CuPy.
int host_fail(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));
const char* host_message(void);

bool host_is_device(const void* p);
bool host_holds(const void* p, size_t size, int device);
HostBlock* host_block(const void* p);
int host_device(void);
bool host_knows_stream(const void* stream);

// Whether a stream is being captured. Its work is not done now then. `status` is an error if the
// call ends the captures of other streams.
bool host_is_captured(const char* name, const void* stream, int* status);
// The error of a call that may not be made during a capture, 0 outside of one.
int host_unsafe(const char* name);

extern int host_executes_kernels, host_executes_products;
#endif

#ifdef __cplusplus
}
#endif
