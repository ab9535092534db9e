// The device guard and the CUDA hooks, which ATen and autograd query.
#pragma once

#include "memory.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace dsfix {

// No `override` here, and all of the guard's functions are noexcept: torch's releases differ in both.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const noexcept { return TYPE; }
  c10::Device exchangeDevice(c10::Device device) const noexcept {
    auto before = current_device();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const noexcept { return current_device(); }
  void setDevice(c10::Device device) const noexcept {
    check_index(device.index());
    if (device.has_index()) current_index = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept {
    if (device.has_index()) current_index = device.index();
  }
  c10::Stream getStream(c10::Device device) const noexcept { return stream(device, current_id[device.index()]); }
  c10::Stream getDefaultStream(c10::Device device) const noexcept { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const noexcept { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const noexcept { return stream(device, new_stream_id()); }
  c10::Stream exchangeStream(c10::Stream next) const noexcept {
    auto before = getStream(next.device());
    current_id[next.device_index()] = next.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept { return static_cast<c10::DeviceIndex>(device_count.load()); }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const noexcept {
    if (!*event) *event = new Point;
    if (scheduled()) *static_cast<Point*>(*event) = now(queue_of(on));
  }
  void block(void* event, const c10::Stream& on) const noexcept {
    if (event && scheduled()) wait(queue_of(on), *static_cast<Point*>(event));
  }
  bool queryEvent(void* event) const noexcept {
    synchronizeEvent(event);
    return true;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept { delete static_cast<Point*>(event); }
  bool queryStream(const c10::Stream& on) const noexcept {
    synchronizeStream(on);
    return true;
  }
  void synchronizeStream(const c10::Stream& on) const noexcept {
    if (scheduled()) finish(queue_of(on));
  }
  void synchronizeEvent(void* event) const noexcept {
    if (event) finish(*static_cast<Point*>(event));
  }
  void synchronizeDevice(const c10::DeviceIndex index) const noexcept { finish_device(index); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& user) const noexcept {
    if (scheduled()) record_use(data, queue_of(user));
  }

 private:
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const {}
  bool hasCUDA() const { return true; }
  bool isBuilt() const { return true; }
  bool isAvailable() const { return true; }
  // asked by scaled_dot_product_attention in a build with cuDNN
  long versionCuDNN() const { return 0; }
  long versionRuntimeCuDNN() const { return 0; }
  long versionCuDNNFrontend() const { return 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const { return true; }
  int getNumGPUs() const { return device_count; }
  c10::DeviceIndex deviceCount() const { return static_cast<c10::DeviceIndex>(device_count.load()); }
  c10::DeviceIndex current_device() const { return current_index; }
  c10::DeviceIndex getCurrentDevice() const { return current_index; }
  void setCurrentDevice(c10::DeviceIndex index) const { exchangeDevice(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const {
    check_index(index);
    auto before = current_index;
    current_index = index;
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const { return exchangeDevice(index); }
  void deviceSynchronize(c10::DeviceIndex index) const { finish_device(index); }
  // host and device share one generator, because the kernels are those of the CPU
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const { return at::detail::createCPUGenerator(); }
  c10::Device getDeviceFromPtr(void*) const { return dsfix::current_device(); }
  c10::Allocator* getCUDADeviceAllocator() const { return &device_allocator; }
  c10::Allocator* getPinnedMemoryAllocator() const { return &pinned_allocator; }
  bool isPinnedPtr(const void* p) const {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    return pinned.count(p) != 0;
  }
};

} // namespace dsfix
