// Aliases: one piece of memory seen as a CPU tensor and as a device tensor.
#pragma once

#include "memory.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <unordered_map>
#include <utility>
#include <vector>

namespace dsfix {

inline bool on_device(const at::Tensor& t) {
  return t.defined() && t.device().type() == TYPE;
}

inline void free_storage(void* storage) {
  delete static_cast<c10::Storage*>(storage);
}

// A CPU storage over the memory of a device storage, which it keeps alive.
inline c10::Storage as_cpu(const c10::Storage& storage) {
  return c10::Storage(
      c10::Storage::use_byte_size_t(),
      storage.nbytes(),
      c10::DataPtr(const_cast<void*>(storage.data()), new c10::Storage(storage), &free_storage, c10::Device(c10::kCPU)),
      c10::GetCPUAllocator(),
      /*resizable=*/true);
}

// A device storage over the memory of a CPU storage, which it keeps alive; counted as memory of `device`. A copy with a
// schedule, where all memory of the device is from the pool.
inline c10::Storage as_device(const c10::Storage& storage, c10::Device device) {
  if (scheduled()) {
    auto memory = allocate_on(device.index(), storage.nbytes());
    if (storage.nbytes()) std::memcpy(memory.get(), storage.data(), storage.nbytes());
    return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(memory), &device_allocator, true);
  }
  auto* block = new Block(device.index(), storage.nbytes(), nullptr, storage);
  return c10::Storage(
      c10::Storage::use_byte_size_t(),
      storage.nbytes(),
      c10::DataPtr(const_cast<void*>(storage.data()), block, &Block::free, device),
      &device_allocator,
      /*resizable=*/true);
}

inline at::Tensor with_storage(
    const at::Tensor& t, c10::Storage storage, c10::DispatchKey key, std::optional<at::ScalarType> type = std::nullopt) {
  auto dtype = type ? c10::scalarTypeToTypeMeta(*type) : t.dtype();
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), dtype);
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return result;
}

inline at::Tensor cpu_alias(const at::Tensor& t) {
  return on_device(t) ? with_storage(t, as_cpu(t.storage()), c10::DispatchKey::CPU) : t;
}

// Applies `f` (Tensor -> Tensor) to every tensor in an argument or result of an operator.
template <class F>
c10::IValue map_tensors(const c10::IValue& v, F&& f) {
  if (v.isTensor()) return f(v.toTensor());
  if (v.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor& t : v.toTensorVector()) out.push_back(f(t));
    return out;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const std::optional<at::Tensor>& t : v.toOptionalTensorVector())
      out.push_back(t ? std::optional<at::Tensor>(f(*t)) : std::nullopt);
    return out;
  }
  if (v.isList() && !v.toListRef().empty() && v.toListRef()[0].isTensorList()) { // Tensor[][] of the collectives
    c10::List<c10::List<at::Tensor>> out;
    for (const c10::IValue& e : v.toListRef()) out.push_back(map_tensors(e, f).toTensorList());
    return out;
  }
  return v;
}

// The aliases of one call: equal storages stay equal, and a returned argument is returned as itself.
struct Aliases {
  std::vector<std::pair<at::Tensor, at::Tensor>> arguments; // device tensor, its CPU alias
  std::unordered_map<c10::StorageImpl*, c10::Storage> device_of, cpu_of;
  std::optional<c10::Device> device; // that of the first device tensor

  at::Tensor to_cpu(const at::Tensor& t) {
    if (!on_device(t)) return t;
    if (!device) device = t.device();
    auto* key = t.storage().unsafeGetStorageImpl();
    auto found = cpu_of.find(key);
    if (found == cpu_of.end()) {
      found = cpu_of.emplace(key, as_cpu(t.storage())).first;
      device_of.emplace(found->second.unsafeGetStorageImpl(), t.storage());
    }
    auto alias = with_storage(t, found->second, c10::DispatchKey::CPU);
    arguments.emplace_back(t, alias);
    return alias;
  }

  at::Tensor to_device(const at::Tensor& t) {
    if (!t.defined() || !t.is_cpu() || t.layout() != c10::kStrided) return t;
    for (auto& [original, alias] : arguments)
      if (alias.unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) return original;
    auto* key = t.storage().unsafeGetStorageImpl();
    auto found = device_of.find(key);
    if (found == device_of.end())
      found = device_of.emplace(key, as_device(t.storage(), device.value_or(current_device()))).first;
    return with_storage(t, found->second, KEY);
  }

  // An operator may resize an argument or replace its storage (out=, resize_, set_): update the original.
  void carry_back() {
    for (auto& [original, alias] : arguments) {
      const auto &from = alias.storage(), &to = original.storage();
      if (from.nbytes() != to.nbytes() || from.data() != to.data()) {
        auto moved = as_device(from, original.device());
        auto* impl = to.unsafeGetStorageImpl();
        impl->set_data_ptr_noswap(std::move(moved.unsafeGetStorageImpl()->mutable_data_ptr()));
        impl->set_nbytes(from.nbytes());
      }
      if (alias.sizes() != original.sizes() || alias.strides() != original.strides() ||
          alias.storage_offset() != original.storage_offset())
        original.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
    }
  }
};

} // namespace dsfix
