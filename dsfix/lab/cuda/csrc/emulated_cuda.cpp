// An emulated CUDA device for any build of torch: takes over the CUDA dispatch key.
//
// "cuda" tensors are in host memory; an operator without a composite kernel runs the CPU kernel on aliases, after the
// device checks of a CUDA build. Must be loaded before torch looks up its CUDA hooks.
#include "device.h"
#include "ops.h"

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>

using namespace dsfix;

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

namespace c10 {
REGISTER_ALLOCATOR(TYPE, &device_allocator)
}

// in a build for GPUs torch has registered its own
static const bool HOOKS = [] {
  at::CUDAHooksRegistry()->Register(
      "CUDAHooks", [](at::CUDAHooksArgs args) { return std::unique_ptr<at::CUDAHooksInterface>(new Hooks(args)); },
      c10::REGISTRY_PREFERRED);
  return true;
}();

// by which DistributedDataParallel measures its passes; CUDA's asks the driver for events
struct HostTimer final : c10d::Timer {
  using Nanoseconds = decltype(std::declval<c10d::Timer&>().getTimestamp(Event::kForwardStart));  // some optional
  Nanoseconds measureDifference(Event start, Event end) override { return getTimeRef(end) - getTimeRef(start); }
};
static const bool TIMERS = [] {
  auto timer = [](c10::Device) { return std::unique_ptr<c10d::Timer>(new HostTimer); };
  c10d::TimerRegistry()->Register(c10::kCUDA, timer, c10::REGISTRY_PREFERRED);
  return true;
}();

// torch warns about each kernel that replaces its own
struct SilentWarnings {
  struct Silence final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silence;
  c10::WarningHandler* before = c10::WarningUtils::get_warning_handler();
  SilentWarnings() { c10::WarningUtils::set_warning_handler(&silence); }
  ~SilentWarnings() { c10::WarningUtils::set_warning_handler(before); }
};

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  SilentWarnings silent;
  // a build for GPUs has kernels of its own, which a fallback does not replace
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findOp(name);
    if (name.name.rfind("aten::", 0) == 0 && op->hasSchema() && op->hasKernelForDispatchKey(KEY))
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
  m.impl("empty.memory_format", &dsfix::empty);
  m.impl("empty_strided", &dsfix::empty_strided);
  m.impl("copy_", &dsfix::copy);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &dsfix::resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage_strided);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_nothing);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("record_stream", &record_stream);
  m.impl("is_pinned", &dsfix::is_pinned);
  m.impl("_pin_memory", &pin_memory);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  // has a composite kernel that rounds differently from the CPU kernel
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

constexpr const char* COLLECTIVES[] = {
    "broadcast_", "allreduce_", "allreduce_coalesced_", "reduce_", "allgather_", "_allgather_base_",
    "allgather_coalesced_", "allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "barrier"};

TORCH_LIBRARY_IMPL(c10d, CUDA, m) {
  SilentWarnings silent;
  for (const char* name : {"send", "recv_", "recv_any_source_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&point_to_point>());
  for (const char* name : COLLECTIVES)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&collective>());
}

TORCH_LIBRARY_IMPL(c10d, AutogradCPU, m) {
  SilentWarnings silent;
  for (const char* name : COLLECTIVES)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&host_collective>());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.attr("MAX_DEVICES") = MAX_DEVICES;
  m.def("hooked", [] { return at::detail::getCUDAHooks().hasCUDA(); });
  m.def("device_count", [] { return device_count.load(); });
  m.def("set_device_count", [](int n) { device_count = n; });
  m.def("current_device", [] { return static_cast<int64_t>(current_index); });
  m.def("set_device", [](int64_t index) {
    check_index(index);
    if (index >= 0) current_index = static_cast<c10::DeviceIndex>(index);
  });
  m.def("bytes", [](int64_t index) { return usage.at(index).bytes.load(); });
  m.def("peak_bytes", [](int64_t index) { return usage.at(index).peak.load(); });
  m.def("reset_peak", [](int64_t index) { usage.at(index).peak = usage.at(index).bytes.load(); });
  m.def("set_schedule", &set_schedule);
  m.def("new_stream", &new_stream_id);
  m.def("current_stream", [](int64_t index) { return current_id.at(index); });
  m.def("set_stream", [](int64_t index, int64_t id) { current_id.at(index) = id; });
  py::class_<Point>(m, "Point").def(py::init<>()); // of a stream: what an event holds
  py::call_guard<py::gil_scoped_release> without_gil;
  auto stream = [](int64_t index, int64_t id) -> Queue& { return queue_of(static_cast<c10::DeviceIndex>(index), id); };
  m.def("now", [=](int64_t index, int64_t id) { return scheduled() ? now(stream(index, id)) : Point(); }, without_gil);
  m.def("wait", [=](int64_t index, int64_t id, const Point& point) { wait(stream(index, id), point); }, without_gil);
  m.def("finish", [](const Point& point) { finish(point); }, without_gil);
  m.def("finish_device", [](int64_t index) { finish_device(static_cast<c10::DeviceIndex>(index)); }, without_gil);
  m.def("finish_all", &finish_all, without_gil);
  // torch.UntypedStorage.resize_ has no CUDA branch in a build without CUDA
  m.def("resize_storage", [](const at::Tensor& over, int64_t n) {
    OnDevice on(over.device());
    if (scheduled() && over.storage().nbytes() && n) finish_current(over.device().index()); // what is in it is moved
    at::native::resize_bytes_cpu(over.storage().unsafeGetStorageImpl(), static_cast<size_t>(n));
  });
}
