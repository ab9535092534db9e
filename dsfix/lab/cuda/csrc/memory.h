// The emulated device's memory: host memory counted per device, and a record of pinned host memory.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <atomic>
#include <mutex>
#include <set>

namespace dsfix {

constexpr auto KEY = c10::DispatchKey::CUDA;
constexpr auto TYPE = c10::DeviceType::CUDA;
constexpr int MAX_DEVICES = 64;

inline std::atomic<int> device_count{8};
inline thread_local c10::DeviceIndex current_index = 0;

inline c10::Device current_device() {
  return c10::Device(TYPE, current_index);
}

inline void check_index(int64_t index) {
  TORCH_CHECK(
      index < device_count, "CUDA error: invalid device ordinal (", index, "; there are ", device_count.load(), " emulated devices)");
}

// Makes `device`, if it has an index, the current device of this thread for a scope.
struct OnDevice {
  c10::DeviceIndex before = current_index;
  explicit OnDevice(std::optional<c10::Device> device) {
    if (device && device->has_index()) {
      check_index(device->index());
      current_index = device->index();
    }
  }
  ~OnDevice() { current_index = before; }
};

struct Usage {
  std::atomic<int64_t> bytes{0}, peak{0};

  void add(int64_t n) {
    int64_t now = bytes += n, seen = peak;
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
  }
};

inline std::array<Usage, MAX_DEVICES> usage;

// Counts bytes as used on a device during its lifetime; `owner` keeps memory allocated by the CPU alive.
struct Block {
  c10::DeviceIndex index;
  int64_t bytes;
  void* own;
  c10::Storage owner;

  Block(c10::DeviceIndex index, size_t n, void* own, c10::Storage owner)
      : index(index), bytes(static_cast<int64_t>(n)), own(own), owner(std::move(owner)) {
    usage[index].add(bytes);
  }
  ~Block() {
    usage[index].bytes -= bytes;
    if (own) c10::free_cpu(own);
  }
  static void free(void* block) { delete static_cast<Block*>(block); }
};

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* p = n ? c10::alloc_cpu(n) : nullptr;
    return {p, new Block(current_index, n, p, c10::Storage()), &Block::free, current_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t n) const override { default_copy_data(to, from, n); }
};

inline DeviceAllocator device_allocator;

inline std::mutex pinned_mutex;
inline std::set<const void*> pinned;

struct PinnedAllocator final : c10::Allocator {
  static void free(void* p) {
    {
      std::lock_guard<std::mutex> lock(pinned_mutex);
      pinned.erase(p);
    }
    c10::free_cpu(p);
  }
  c10::DataPtr allocate(size_t n) override {
    void* p = c10::alloc_cpu(n ? n : 1);
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned.insert(p);
    return {p, p, &free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t n) const override { default_copy_data(to, from, n); }
};

inline PinnedAllocator pinned_allocator;

} // namespace dsfix
