// Work that waits in a stream's queue: operators, copies and collectives on the addresses that tensors had when it was
// issued.
#pragma once

#include "checks.h"
#include "alias.h"

#include <ATen/EmptyTensor.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/Resize.h>

namespace dsfix {

using Values = std::vector<c10::IValue>;

// CPU tensors over memory that they do not keep alive; equal storages stay equal.
struct Borrowed {
  std::unordered_map<c10::StorageImpl*, c10::Storage> seen;

  at::Tensor of(const at::Tensor& t) {
    if (!on_device(t)) return t;
    auto [found, is_new] = seen.try_emplace(t.storage().unsafeGetStorageImpl());
    if (is_new)
      found->second = c10::Storage(
          c10::Storage::use_byte_size_t(), t.storage().nbytes(),
          c10::DataPtr(const_cast<void*>(t.storage().data()), c10::Device(c10::kCPU)), nullptr, /*resizable=*/false);
    return with_storage(t, found->second, c10::DispatchKey::CPU);
  }
};

// The thread that does the work may be in autograd, autocast or a Python mode that is none of its business.
struct Undisturbed {
  c10::impl::ExcludeDispatchKeyGuard keys{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

// What the operator would return, from shapes alone.
struct Shapes {
  Values results;
  std::vector<at::Tensor> metas; // kept, so that no result has the address of an argument
  std::unordered_map<c10::TensorImpl*, at::Tensor> original;
  std::unordered_map<c10::StorageImpl*, c10::Storage> storage;

  at::Tensor meta(const at::Tensor& t) {
    if (!t.defined() || t.unsafeGetTensorImpl()->is_wrapped_number()) return t;
    at::Tensor m = at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type());
    metas.push_back(m);
    original.emplace(m.unsafeGetTensorImpl(), t);
    storage.emplace(m.storage().unsafeGetStorageImpl(), t.storage());
    return m;
  }

  void find(const c10::OperatorHandle& op, const Values& values) {
    torch::jit::Stack stack;
    for (const auto& value : values)
      stack.push_back(value.isDevice() ? c10::IValue(c10::Device(c10::kMeta)) : map_tensors(value, [&](const at::Tensor& t) { return meta(t); }));
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    results = Values(stack.begin(), stack.end());
  }
};

// The types of the CPU kernel's results, where they may be others than those of a GPU (layer_norm's mean): it is run on
// zeros for each new set of types, flags and requested types.
inline const std::vector<at::ScalarType>& result_types(const c10::OperatorHandle& op, const Values& arguments) {
  static std::mutex mutex;
  static std::map<std::string, std::vector<at::ScalarType>> known;
  std::string key = c10::toString(op.operator_name());
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto& value = arguments[i];
    if (value.isBool()) key += value.toBool() ? "t" : "f";
    if (value.isBoolList()) // which results are wanted
      for (bool each : value.toBoolList()) key += each ? "t" : "f";
    if (value.isInt() && op.schema().arguments()[i].real_type()->str().rfind("ScalarType", 0) == 0) key += std::to_string(value.toInt());
    map_tensors(value, [&](const at::Tensor& t) {
      key += t.defined() ? std::string(c10::toString(t.scalar_type())) + (t.dim() ? "" : "0") : "-";
      return t;
    });
    key += ",";
  }
  std::lock_guard<std::mutex> lock(mutex);
  auto [found, is_new] = known.try_emplace(key);
  if (is_new) {
    Undisturbed guard;
    torch::jit::Stack stack;
    for (const auto& value : arguments)
      stack.push_back(value.isDevice() ? c10::IValue(c10::Device(c10::kCPU)) : map_tensors(value, [&](const at::Tensor& t) {
        if (!t.defined()) return t;
        auto zeros = at::empty_strided(t.sizes(), t.strides(), at::TensorOptions(t.scalar_type())).zero_();
        if (t.unsafeGetTensorImpl()->is_wrapped_number()) zeros.unsafeGetTensorImpl()->set_wrapped_number(true);
        return zeros;
      }));
    try {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    } catch (...) { // else the next call would take the types for known
      known.erase(found);
      throw;
    }
    for (const auto& value : stack)
      map_tensors(value, [&](const at::Tensor& t) {
        found->second.push_back(t.defined() ? t.scalar_type() : at::ScalarType::Undefined);
        return t;
      });
  }
  return found->second;
}

inline bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  return false;
}

// Whether the host has to know the values to go on, so that a GPU waits for its stream.
inline bool host_needs_values(const c10::OperatorHandle& op, const Values& arguments) {
  const auto& schema = op.schema();
  if (op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape)) return true;
  for (const auto& result : schema.returns())
    if (result.type()->kind() != c10::TypeKind::TensorType && result.type()->kind() != c10::TypeKind::ListType) return true;
  bool indexing = rule_of(schema) == Rule::Index;
  for (const auto& each : operands(schema, arguments)) {
    if (each.tensor.layout() != c10::kStrided) return true;
    if (each.written && !on_device(each.tensor)) return true;
    if (indexing && each.name == "indices" && (each.tensor.scalar_type() == at::kBool || each.tensor.scalar_type() == at::kByte))
      return true; // a mask
  }
  return false;
}

// In evaluation the CPU's kernel leaves out the statistics of the batch, which a GPU's returns.
inline bool has_other_shapes_on_a_gpu(const c10::FunctionSchema& schema, const Values& arguments) {
  return schema.name() == "aten::native_batch_norm" && !arguments.at(5).toBool();
}

inline bool returns_new_tensors(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns())
    if (!result.alias_info()) return true;
  return false;
}

inline bool is_random(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

inline c10::Storage new_storage(size_t bytes, c10::Device device) {
  return c10::Storage(
      c10::Storage::use_byte_size_t(), bytes, allocate_on(device.index(), bytes), &device_allocator, /*resizable=*/true);
}

// Puts an operator in its stream's queue, and its results, whose values are not known yet, on the stack. False: it has
// to be done at once.
inline bool defer(const c10::OperatorHandle& op, const Values& arguments, c10::Device device, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  if (is_random(op) || host_needs_values(op, arguments) || has_other_shapes_on_a_gpu(schema, arguments)) return false;
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
  Shapes shapes;
  std::vector<at::ScalarType> types;
  try {
    shapes.find(op, arguments);
    if (returns_new_tensors(schema)) types = result_types(op, arguments);
  } catch (...) { // it has no shapes without values, or the call is wrong: its kernel says how
    return false;
  }
  for (auto& [impl, original] : shapes.original)
    if (impl->sizes() != original.sizes()) return false; // resized

  Borrowed borrowed;
  std::vector<at::Tensor> targets;
  Values results;
  std::unordered_map<c10::StorageImpl*, c10::Storage> fresh;
  for (size_t i = 0; i < shapes.results.size(); i++) {
    results.push_back(map_tensors(shapes.results[i], [&](const at::Tensor& m) {
      at::Tensor target;
      if (!m.defined()) {
        targets.push_back(target);
        return m;
      }
      if (auto argument = shapes.original.find(m.unsafeGetTensorImpl()); argument != shapes.original.end()) {
        targets.push_back(target);
        return argument->second;
      }
      auto type = types.at(targets.size());
      auto* key = m.storage().unsafeGetStorageImpl();
      bool viewed = shapes.storage.count(key);
      if (!viewed && !fresh.count(key))
        fresh.emplace(key, new_storage(m.storage().nbytes() / m.itemsize() * c10::elementSize(type), device));
      auto result = with_storage(m, viewed ? shapes.storage.at(key) : fresh.at(key), KEY, type);
      if (!viewed) target = borrowed.of(result);
      targets.push_back(target);
      return result;
    }));
  }
  Values inputs;
  for (const auto& value : arguments) {
    if (value.isDevice() && value.toDevice().type() == TYPE)
      inputs.emplace_back(c10::Device(c10::kCPU));
    else // a host tensor has been read by the time that the call returns
      inputs.push_back(map_tensors(value, [&](const at::Tensor& t) {
        if (on_device(t) || !t.defined()) return borrowed.of(t);
        auto copy = t.clone();
        if (t.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
        return copy;
      }));
  }
  auto work = [op, inputs = std::move(inputs), targets = std::move(targets)]() {
    Undisturbed guard;
    torch::jit::Stack stack(inputs.begin(), inputs.end());
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    size_t next = 0;
    for (const auto& value : stack)
      map_tensors(value, [&](const at::Tensor& t) {
        const auto& target = targets.at(next++);
        if (target.defined()) {
          TORCH_CHECK(
              t.sizes() == target.sizes() && t.dtype() == target.dtype(), op.schema().name(),
              " has a result of another shape or type than announced");
          at::Tensor(target).copy_(t);
        }
        return t;
      });
  };
  issue(current_queue(device.index()), {std::move(work), {}});
  for (auto& result : results) stack->push_back(std::move(result));
  return true;
}

// Random numbers are drawn in the order of the calls: an operator that fills its argument is done at once, elsewhere,
// and what it drew is copied when its stream comes to it. False: its numbers depend on values, so it has to wait.
inline bool draw_now(const c10::OperatorHandle& op, const Values& arguments, c10::Device device, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  auto all = operands(schema, arguments);
  if (all.size() != 1 || !all[0].written || schema.returns().size() != 1) return false;
  auto& target = all[0].tensor;
  auto drawn = at::empty_strided(target.sizes(), target.strides(), target.options().device(c10::kCPU));
  torch::jit::Stack own;
  for (const auto& value : arguments)
    own.push_back(map_tensors(value, [&](const at::Tensor& t) { return t.defined() ? drawn : t; }));
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &own);
  auto work = [drawn, to = Borrowed().of(target)] {
    Undisturbed guard;
    at::Tensor(to).copy_(drawn);
  };
  issue(current_queue(device.index()), {std::move(work), {}});
  stack->push_back(target);
  return true;
}

inline void finish_current(c10::DeviceIndex index) {
  finish(current_queue(index));
}

inline void copy_values(const at::Tensor& to, const at::Tensor& from) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::autograd_dispatch_keyset);
  at::Tensor(to).copy_(from);
}

// A copy, as CUDA has it: on the current stream; a blocking one, or one to pageable memory, waits for that stream, and
// pageable memory has been read when the call returns.
inline void copy_in_order(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  auto index = on_device(to) ? to.device().index() : from.device().index();
  auto& queue = current_queue(index);
  Borrowed borrowed;
  auto work = [](at::Tensor to, at::Tensor from) {
    return [to = std::move(to), from = std::move(from)] {
      Undisturbed guard;
      at::Tensor(to).copy_(from);
    };
  };
  if (on_device(to) && on_device(from)) {
    if (to.device() != from.device()) { // each device's current stream waits for the other's
      auto& other = current_queue(from.device().index());
      wait(queue, now(other));
      issue(queue, {work(borrowed.of(to), borrowed.of(from)), {}});
      wait(other, now(queue));
      return;
    }
    issue(queue, {work(borrowed.of(to), borrowed.of(from)), {}});
    return;
  }
  if (on_device(to)) {
    bool pinned = from.is_pinned();
    issue(queue, {work(borrowed.of(to), pinned ? from : from.clone()), {}});
    if (!non_blocking) finish(queue);
    return;
  }
  issue(queue, {work(to, borrowed.of(from)), {}});
  if (!non_blocking || !to.is_pinned()) finish(queue);
}

} // namespace dsfix
