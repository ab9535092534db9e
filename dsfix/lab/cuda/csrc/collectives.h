// Collectives of a process group whose tensors are on the device: on a stream of their own, as NCCL's are.
#pragma once

#include "deferred.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace dsfix {

// Waiting for it makes the current stream wait, not the host. No `override`: torch's releases differ.
struct IssuedWork final : c10d::Work {
  Point point;
  std::vector<at::Tensor> outputs;

  IssuedWork(Point point, std::vector<at::Tensor> outputs) : point(std::move(point)), outputs(std::move(outputs)) {}

  void synchronize() { dsfix::wait(current_queue(point.queue->device), point); }
  bool wait(std::chrono::milliseconds) {
    synchronize();
    return true;
  }
  void blockCurrentStream() { synchronize(); }
  bool isCompleted() {
    dsfix::finish(point);
    return true;
  }
  bool isSuccess() const { return true; }
  std::exception_ptr exception() const { return nullptr; }
  std::vector<at::Tensor> result() { return outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() {
    dsfix::finish(point);
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(outputs));
    return future;
  }
};

inline std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  std::vector<at::Tensor> out;
  map_tensors(value, [&](const at::Tensor& t) {
    out.push_back(t);
    return t;
  });
  return out;
}

inline void issue_collective(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  auto popped = torch::jit::pop(*stack, schema.arguments().size());
  Values arguments(popped.begin(), popped.end());
  std::vector<at::Tensor> all;
  const void* group = nullptr;
  for (const auto& argument : arguments) {
    auto found = tensors_in(argument);
    all.insert(all.end(), found.begin(), found.end());
    if (argument.isCustomClass() && !group) group = argument.toCustomClass<c10d::ProcessGroup>().get();
  }
  auto index = all.at(0).device().index();
  auto outputs = tensors_in(arguments[0]);
  auto& current = current_queue(index);
  // one stream per process group
  static std::map<const void*, c10::StreamId> streams;
  Lock lock(running);
  auto id = streams.try_emplace(group, -static_cast<c10::StreamId>(streams.size()) - 1).first->second;
  auto& queue = queue_of(index, id);
  for (const auto& t : all) record_use(t.storage().data_ptr(), queue);
  wait(queue, now(current));
  // the addresses of now, kept alive: the caller may give its tensors others meanwhile
  Borrowed borrowed;
  Values inputs;
  std::vector<c10::Storage> owners;
  for (const auto& t : all) owners.push_back(t.storage());
  for (const auto& a : arguments)
    inputs.push_back(map_tensors(a, [&](const at::Tensor& t) { return t.defined() ? borrowed.of(t) : t; }));
  auto work = [op, inputs = std::move(inputs), owners = std::move(owners)] {
    Undisturbed guard;
    torch::jit::Stack own(inputs.begin(), inputs.end());
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &own);
    // to its end: callers may wait for the last of several only
    for (const auto& value : own)
      if (value.isCustomClass()) value.toCustomClass<c10d::Work>()->wait();
  };
  issue(queue, {std::move(work), {}, ++last_collective});
  auto issued = c10::make_intrusive<IssuedWork>(now(queue), outputs);
  if (schema.name() == "c10d::barrier") finish(issued->point);
  for (const auto& result : schema.returns()) {
    if (result.type()->kind() == c10::TypeKind::ClassType)
      stack->emplace_back(c10::intrusive_ptr<c10d::Work>(issued));
    else
      stack->push_back(arguments[0]);
  }
}

} // namespace dsfix
