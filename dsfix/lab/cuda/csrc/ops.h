// The kernels: a few operators of the device itself; all others run the CPU kernel on aliases.
#pragma once

#include "collectives.h"

#include <torch/library.h>

namespace dsfix {

// A result that is a written argument (`add_`, `out=`) must be returned as that same argument.
inline const c10::IValue* written_argument(
    const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments, const c10::Argument& result) {
  const auto* info = result.alias_info();
  if (!info || !info->isWrite()) return nullptr;
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto* other = schema.arguments()[i].alias_info();
    if (other && other->isWrite() && other->beforeSets() == info->beforeSets()) return &arguments[i];
  }
  return nullptr;
}

// That of the first device tensor, or the one that is asked for.
inline c10::Device device_of(const std::vector<c10::IValue>& arguments) {
  auto found = current_device();
  bool seen = false;
  for (const auto& a : arguments) {
    if (a.isDevice() && a.toDevice().type() == TYPE && a.toDevice().has_index() && !seen) found = a.toDevice();
    for (const auto& t : tensors_in(a))
      if (on_device(t) && !seen) {
        found = t.device();
        seen = true;
      }
  }
  return found;
}

inline void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack, bool check) {
  const auto& schema = op.schema();
  auto arguments = torch::jit::pop(*stack, schema.arguments().size());
  if (check) check_devices(schema, arguments);
  if (scheduled() && !is_view(schema)) {
    auto device = device_of(arguments);
    Values values(arguments.begin(), arguments.end());
    if (defer(op, values, device, stack)) return;
    if (is_random(op) && draw_now(op, values, device, stack)) return;
    finish_current(device.index());
  }
  Aliases aliases;
  for (const auto& a : arguments) {
    if (a.isDevice() && a.toDevice().type() == TYPE) {
      aliases.device = a.toDevice().has_index() ? a.toDevice() : current_device();
      stack->emplace_back(c10::Device(c10::kCPU));
    } else {
      stack->push_back(map_tensors(a, [&](const at::Tensor& t) { return aliases.to_cpu(t); }));
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  aliases.carry_back();
  auto results = torch::jit::pop(*stack, schema.returns().size());
  for (size_t i = 0; i < results.size(); i++) {
    if (const auto* argument = written_argument(schema, arguments, schema.returns()[i]))
      stack->push_back(*argument);
    else
      stack->push_back(map_tensors(results[i], [&](const at::Tensor& t) { return aliases.to_device(t); }));
  }
}

inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_on_cpu(op, stack, /*check=*/true);
}

// Sends and receives run on the process group's CPU backend.
inline void point_to_point(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_on_cpu(op, stack, /*check=*/false);
}

// So do collectives, which finish here: on a GPU the stream orders them, and callers may wait for the last one only.
inline void collective(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (scheduled()) return issue_collective(op, stack);
  run_on_cpu(op, stack, /*check=*/false);
  const auto& result = torch::jit::peek(*stack, op.schema().returns().size() - 1, op.schema().returns().size());
  if (result.isCustomClass()) result.toCustomClass<c10d::Work>()->wait();
}

inline at::Tensor empty(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  OnDevice on(device);
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &device_allocator, c10::DispatchKeySet(KEY), c10::dtype_or_default(dtype), format);
}

inline at::Tensor empty_strided(
    c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  OnDevice on(device);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &device_allocator, c10::DispatchKeySet(KEY),
      c10::dtype_or_default(dtype));
}

inline at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (scheduled()) {
    c10::impl::ExcludeDispatchKeyGuard guard(c10::autograd_dispatch_keyset);
    copy_in_order(self, source, non_blocking);
    return self;
  }
  auto to = cpu_alias(self), from = cpu_alias(source);
  c10::impl::ExcludeDispatchKeyGuard guard(c10::autograd_dispatch_keyset);
  to.copy_(from);
  return self;
}

inline at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  auto target = to;
  copy(target, self, non_blocking);
  return to;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

inline const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  OnDevice on(self.device());
  if (scheduled() && self.storage().nbytes()) finish_current(self.device().index()); // what is in it may be moved
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

inline at::Tensor& set_storage_strided(
    at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  TORCH_CHECK(
      source.device() == self.device(), "Attempted to set the storage of a tensor on device \"", self.device(),
      "\" to a storage on different device \"", source.device(),
      "\".  This is no longer allowed; the devices must match.");
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return self;
}

inline at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  auto n = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_strided(self, std::move(source), 0, {n}, {1});
}

inline at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage_strided(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

inline at::Tensor& set_nothing(at::Tensor& self) {
  OnDevice on(self.device());
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, device_allocator.allocate(0), &device_allocator, /*resizable=*/true);
  return set_storage_strided(self, std::move(none), 0, {0}, {1});
}

inline at::Scalar local_scalar_dense(const at::Tensor& t) {
  if (scheduled()) finish_current(t.device().index());
  return at::_local_scalar_dense(cpu_alias(t));
}

// Through torch 2.5 these two are called for CPU tensors, too.
inline bool is_pinned(const at::Tensor& self, std::optional<at::Device>) {
  return at::detail::getCUDAHooks().isPinnedPtr(self.storage().data());
}

inline at::Tensor pin_memory(const at::Tensor& self, std::optional<at::Device>) {
  TORCH_CHECK(self.device().is_cpu(), "cannot pin '", self.toString(), "' only dense CPU tensors can be pinned");
  auto size = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.dtype().itemsize());
  c10::Storage storage(c10::Storage::use_byte_size_t(), size, &pinned_allocator, /*resizable=*/false);
  auto result = with_storage(self, std::move(storage), c10::DispatchKey::CPU);
  result.unsafeGetTensorImpl()->set_sizes_and_strides(self.sizes(), self.strides(), 0);
  c10::impl::ExcludeDispatchKeyGuard guard(c10::autograd_dispatch_keyset);
  return result.copy_(self);
}

inline void record_stream(at::Tensor& self, c10::Stream stream) {
  if (scheduled()) record_use(self.storage().data_ptr(), queue_of(stream));
}

// Collectives on host tensors make the host wait for other ranks, which may wait for what is still in a queue here.
inline void host_collective(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (scheduled()) finish_collectives();
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// `parameter.data = tensor of the other device`: allowed between CPU and CUDA.
inline bool has_compatible_shallow_copy_type(const at::Tensor& a, const at::Tensor& b) {
  auto dense = [](const at::Tensor& t) { return t.layout() == c10::kStrided && (t.is_cpu() || on_device(t)); };
  return dense(a) && dense(b);
}

} // namespace dsfix
