// The program that runs one launch under the sanitizers: reads the launch from a file, gives
// every buffer a heap allocation of exactly its size, and writes the buffers to another file.
#pragma once

namespace cuda_on_cpu {

// The layouts are those of runner.py.
struct Request {
  long long entry, buffer_count, argument_count, patch_count;
  Launch launch;
};

struct Argument {
  long long is_pointer;
  long long buffer;  // what a pointer points into (-1: null), or the value itself
  long long offset;
};

// A pointer inside a structure: where it lies, and what it points into.
struct Patch {
  long long buffer, at, target, offset;
};

static void read_exactly(void* target, size_t bytes, FILE* file) {
  if (bytes && fread(target, bytes, 1, file) != 1) {
    fprintf(stderr, "the launch file is too short\n");
    exit(2);
  }
}

static int run_request(const Entry* entries, const char* input, const char* output) {
  FILE* file = fopen(input, "rb");
  Request request;
  read_exactly(&request, sizeof request, file);
  const long long buffer_count = request.buffer_count, argument_count = request.argument_count;
  size_t* sizes = new size_t[buffer_count];
  char** buffers = new char*[buffer_count];
  for (long long i = 0; i < buffer_count; ++i) {
    read_exactly(&sizes[i], sizeof sizes[i], file);
    buffers[i] = static_cast<char*>(malloc(sizes[i]));
    read_exactly(buffers[i], sizes[i], file);
  }
  char** pointers = new char*[argument_count];
  void** values = new void*[argument_count];
  for (long long i = 0; i < argument_count; ++i) {
    Argument argument;
    read_exactly(&argument, sizeof argument, file);
    pointers[i] = argument.buffer < 0 ? nullptr : buffers[argument.buffer] + argument.offset;
    values[i] = argument.is_pointer ? static_cast<void*>(&pointers[i]) : pointers[i];
  }
  for (long long i = 0; i < request.patch_count; ++i) {
    Patch patch;
    read_exactly(&patch, sizeof patch, file);
    *reinterpret_cast<char**>(buffers[patch.buffer] + patch.at) =
        buffers[patch.target] + patch.offset;
  }
  fclose(file);
  if (const char* message = run(entries[request.entry], request.launch, values)) {
    fprintf(stderr, "%s", message);
    return 3;
  }
  file = fopen(output, "wb");
  for (long long i = 0; i < buffer_count; ++i) fwrite(buffers[i], 1, sizes[i], file);
  return fclose(file);
}

}  // namespace cuda_on_cpu
