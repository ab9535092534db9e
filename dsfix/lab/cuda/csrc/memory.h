// The emulated device's memory: host memory counted per device, and a record of pinned host memory.
//
// With a schedule, memory that is freed goes to the next tensor of its size on the stream that it was allocated on, as
// by the caching allocator: at once, whatever other streams still do with it, unless record_stream was called for them.
#pragma once

#include "streams.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace dsfix {

constexpr auto KEY = c10::DispatchKey::CUDA;
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

// Free memory, by stream and size. None goes back to the system: work that waits has bare addresses.
struct Pool {
  struct Delayed {
    void* memory;
    size_t bytes;
    Queue* queue;
    std::vector<Point> until;
  };
  std::mutex mutex;
  std::map<std::pair<Queue*, size_t>, std::vector<void*>> free;
  std::vector<Delayed> delayed;

  static size_t rounded(size_t bytes) { return (bytes + 511) / 512 * 512; }

  void* take(Queue& queue, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < delayed.size();) {
      auto& each = delayed[i];
      if (!std::all_of(each.until.begin(), each.until.end(), is_done)) {
        i++;
        continue;
      }
      free[{each.queue, each.bytes}].push_back(each.memory);
      delayed.erase(delayed.begin() + i);
    }
    auto& found = free[{&queue, rounded(bytes)}];
    if (found.empty()) {
      void* memory = c10::alloc_cpu(rounded(bytes));
      std::memset(memory, 0, rounded(bytes)); // a run can be repeated exactly
      return memory;
    }
    void* memory = found.back();
    found.pop_back();
    return memory;
  }

  void give(Queue& queue, void* memory, size_t bytes, const std::vector<Queue*>& users) {
    std::vector<Point> until;
    for (auto* user : users) until.push_back(now(*user));
    std::lock_guard<std::mutex> lock(mutex);
    if (until.empty())
      free[{&queue, rounded(bytes)}].push_back(memory);
    else
      delayed.push_back({memory, rounded(bytes), &queue, std::move(until)});
  }
};

inline Pool& pool() {
  static auto* one = new Pool; // outlives every tensor
  return *one;
}

// Counts bytes as used on a device during its lifetime; `owner` keeps memory allocated by the CPU alive.
struct Block {
  c10::DeviceIndex index;
  int64_t bytes;
  void* own;
  c10::Storage owner;
  Queue* queue = nullptr; // the stream that `own` was allocated on, if it is from the pool
  std::vector<Queue*> users; // other streams, by record_stream

  Block(c10::DeviceIndex index, size_t n, void* own, c10::Storage owner)
      : index(index), bytes(static_cast<int64_t>(n)), own(own), owner(std::move(owner)) {
    usage[index].add(bytes);
  }
  ~Block() {
    usage[index].bytes -= bytes;
    if (queue)
      pool().give(*queue, own, bytes, users);
    else if (own && !scheduled()) // else it is older than the schedule, and something that waits may have its address
      c10::free_cpu(own);
  }
  static void free(void* block) { delete static_cast<Block*>(block); }
};

inline c10::DataPtr allocate_on(c10::DeviceIndex index, size_t n) {
  auto device = c10::Device(TYPE, index);
  if (!n || !scheduled()) {
    void* p = n ? c10::alloc_cpu(n) : nullptr;
    return {p, new Block(index, n, p, c10::Storage()), &Block::free, device};
  }
  auto& queue = current_queue(index);
  void* p = pool().take(queue, n);
  auto* block = new Block(index, n, p, c10::Storage());
  block->queue = &queue;
  return {p, block, &Block::free, device};
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override { return allocate_on(current_index, n); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t n) const override { default_copy_data(to, from, n); }
};

// The memory is not handed out again before `user` has done what it was given until it is freed.
inline void record_use(const c10::DataPtr& data, Queue& user) {
  if (data.get_deleter() != &Block::free) return;
  auto* block = static_cast<Block*>(data.get_context());
  if (!block->queue || block->queue == &user) return;
  Lock lock(running);
  if (std::find(block->users.begin(), block->users.end(), &user) == block->users.end()) block->users.push_back(&user);
}

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
