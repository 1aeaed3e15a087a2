// CUDA tensors for a PyTorch that was built without CUDA, over memory of the host.
//
// The allocator, the device guard and the hooks are where a PyTorch with CUDA has its own. An
// operator of PyTorch does what it does on the CPU, on the same memory; views are views. What this
// package's ops do is not here: it goes through CuPy.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <mutex>
#include <set>

namespace {

// The functions of the CUDA runtime in the library that CuPy is led to.
struct Runtime {
  int (*get_device)(int*);
  int (*set_device)(int);
  int (*allocate)(void**, size_t);
  int (*free)(void*);
  int (*create_event)(void**, unsigned);
  int (*destroy_event)(void*);
  int (*record)(void*, void*);
  int (*wait)(void*, void*, unsigned);
  int (*synchronize)(void*);
};
Runtime runtime;

void check(int status) { TORCH_CHECK(status == 0, "error ", status, " of the CUDA runtime"); }

constexpr int kDevices = 2;
thread_local int64_t streams[kDevices];  // the address of the current one, 0 the default

// What the caching allocator knows of a block: where it was allocated, who else uses it.
struct Block {
  int device;
  int64_t stream;
  std::set<int64_t> recorded;
};
std::mutex mutex;
std::map<const void*, Block> blocks;
long allocations, ignored_records;

int current_device() {
  int device = 0;
  check(runtime.get_device(&device));
  return device;
}

struct OnDevice {
  explicit OnDevice(int device) : before(current_device()) { check(runtime.set_device(device)); }
  ~OnDevice() { runtime.set_device(before); }
  int before;
};

void release(void* data) {
  if (!data) return;
  int device;
  {
    std::lock_guard<std::mutex> lock(mutex);
    device = blocks.at(data).device;
    blocks.erase(data);
  }
  OnDevice on(device);
  runtime.free(data);
}

struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    int device = current_device();
    void* data = nullptr;
    if (bytes) {
      std::lock_guard<std::mutex> lock(mutex);
      check(runtime.allocate(&data, bytes));
      blocks[data] = {device, streams[device], {}};
      ++allocations;
    }
    return {data, data, &release, c10::Device(c10::kCUDA, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
HostAllocator allocator;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device d) const override {
    c10::Device before = getDevice();
    setDevice(d);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, (c10::DeviceIndex)current_device()}; }
  void setDevice(c10::Device d) const override { check(runtime.set_device(d.index())); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { runtime.set_device(d.index()); }
  c10::Stream getStream(c10::Device d) const override {
    return c10::Stream(c10::Stream::UNSAFE, d, streams[d.index()]);
  }
  c10::Stream getDefaultStream(c10::Device d) const override {
    return c10::Stream(c10::Stream::UNSAFE, d, 0);
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    c10::Stream before = getStream(s.device());
    streams[s.device_index()] = s.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream s) const override { return (void*)s.id(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void** event, const c10::Stream& s, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    OnDevice on(s.device_index());
    if (!*event) check(runtime.create_event(event, 2));
    check(runtime.record(*event, (void*)s.id()));
  }
  void block(void* event, const c10::Stream& s) const override {
    OnDevice on(s.device_index());
    if (event) check(runtime.wait((void*)s.id(), event, 0));
  }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event) runtime.destroy_event(event);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& s) const override {
    check(runtime.synchronize((void*)s.id()));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& s) const override {
    if (!data.get()) return;
    std::lock_guard<std::mutex> lock(mutex);
    // As the caching allocator: it knows nothing of memory that is not its own.
    if (data.get_deleter() != &release) {
      ++ignored_records;
      return;
    }
    blocks.at(data.get_context()).recorded.insert(s.id());
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// PyTorch looks for this name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex current_device() const override { return ::current_device(); }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return ::current_device(); }
  void setCurrentDevice(c10::DeviceIndex d) const override { check(runtime.set_device(d)); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
    c10::DeviceIndex before = getCurrentDevice();
    setCurrentDevice(d);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override {
    return exchangeDevice(d);
  }
  c10::Allocator* getCUDADeviceAllocator() const override { return &allocator; }
};

// The same memory as a tensor of the CPU.
struct Aliases {
  std::vector<std::pair<at::Tensor, at::Tensor>> known;  // of CUDA, of the CPU
  int device = -1;

  at::Tensor on_cpu(const at::Tensor& t) {
    if (!t.defined() || !t.is_cuda()) return t;
    if (device < 0) device = t.get_device();
    for (auto& [cuda, cpu] : known)
      if (cuda.is_same(t)) return cpu;
    c10::DataPtr data(const_cast<void*>(t.storage().data()), c10::Device(c10::kCPU));
    c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(), std::move(data),
                         c10::GetAllocator(c10::kCPU), true);
    at::Tensor alias = over(std::move(storage), c10::DispatchKey::CPU, t);
    known.emplace_back(t, alias);
    return alias;
  }

  at::Tensor on_cuda(const at::Tensor& t) {
    if (!t.defined()) return t;
    for (auto& [cuda, cpu] : known) {
      if (cpu.is_same(t)) {
        // What was resized, as `out` is, has new memory.
        if (cpu.storage().data() != cuda.storage().data()) cuda.unsafeGetTensorImpl()->set_storage_keep_dtype(moved(cpu));
        cuda.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
        return cuda;
      }
      if (t.storage().data() && cpu.storage().data() == t.storage().data())
        return over(cuda.storage(), c10::DispatchKey::CUDA, t);
    }
    return over(moved(t), c10::DispatchKey::CUDA, t);
  }

  c10::Storage moved(const at::Tensor& t) {
    size_t bytes = t.storage().nbytes();
    OnDevice on(device < 0 ? current_device() : device);
    c10::DataPtr data = allocator.allocate(bytes);
    if (bytes && t.storage().data()) std::memcpy(data.get(), t.storage().data(), bytes);
    return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), &allocator, true);
  }

  static at::Tensor over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    return t;
  }
};

c10::IValue mapped(const c10::IValue& v, const std::function<at::Tensor(const at::Tensor&)>& f) {
  if (v.isTensor()) return f(v.toTensor());
  if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : v.toTensorVector()) list.push_back(f(t));
    return list;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : v.toOptionalTensorVector())
      list.push_back(t.has_value() ? std::optional<at::Tensor>(f(*t)) : t);
    return list;
  }
  return v;
}

// Any operator: what it does on the CPU, with the same memory.
void on_host(const c10::OperatorHandle& op, c10::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  Aliases aliases;
  size_t count = op.schema().arguments().size(), first = stack->size() - count;
  for (size_t n = first; n < first + count; ++n) {
    c10::IValue& v = (*stack)[n];
    if (v.isDevice()) {
      if (v.toDevice().is_cuda() && aliases.device < 0)
        aliases.device = v.toDevice().has_index() ? v.toDevice().index() : current_device();
      v = c10::Device(c10::kCPU);
    } else {
      v = mapped(v, [&](const at::Tensor& t) { return aliases.on_cpu(t); });
    }
  }
  op.callBoxed(stack);
  for (size_t n = first; n < stack->size(); ++n) {
    c10::IValue& v = (*stack)[n];
    v = mapped(v, [&](const at::Tensor& t) { return aliases.on_cuda(t); });
  }
}

// Operators of no device's own: their time is that of a PyTorch with CUDA but for the allocator.
at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  OnDevice on(device.has_value() && device->has_index() ? device->index() : current_device());
  return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor& set_storage(at::Tensor& t, at::Storage source, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  t.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return t;
}

void record_stream(at::Tensor& t, c10::Stream s) {
  Guard().recordDataPtrOnStream(t.storage().data_ptr(), s);
}

}  // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>());
}

// Operators with a kernel for all devices that looks for CUDA's own part.
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  for (const char* name : {"copy_", "resize_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_host>());
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("record_stream", &record_stream);
  m.impl("empty.memory_format", &empty);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
}

extern "C" {
void torch_device_install(const Runtime* functions) { runtime = *functions; }
int64_t torch_device_stream(int device) { return streams[device]; }
void torch_device_set_stream(int device, int64_t stream) { streams[device] = stream; }
long torch_device_allocations() { return allocations; }
long torch_device_ignored_records() { return ignored_records; }

// Whether an address is the beginning of a block, and on which streams it is used.
int torch_device_block(const void* data, int64_t* stream, int64_t* recorded, int room) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = blocks.find(data);
  if (found == blocks.end()) return -1;
  *stream = found->second.stream;
  int n = 0;
  for (int64_t s : found->second.recorded)
    if (n < room) recorded[n++] = s;
  return n;
}
}
