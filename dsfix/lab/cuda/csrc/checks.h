// Which devices an operator accepts in a CUDA build.
//
// device_rules.inc is generated at build time from the operator list that torch ships. Operators that it does not name
// require all their tensors on one device (Strict); those that check in TensorIterator also accept one 0-dim CPU input
// (Iterator); a _foreach_ operator runs tensor by tensor if devices differ (Foreach).
#pragma once

#include "alias.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <unordered_set>

namespace dsfix {

enum class Rule { Strict, Iterator, Foreach, Index, None };

inline const std::unordered_map<std::string, Rule> RULES = {
#include "device_rules.inc"
};

inline Rule find_rule(const c10::FunctionSchema& schema) {
  static const std::unordered_set<std::string> index = {
      "aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};
  if (index.count(schema.name())) return Rule::Index;
  if (schema.name().rfind("aten::", 0) != 0) return Rule::None; // its own kernel decides
  auto name = schema.name().substr(6) + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  auto found = RULES.find(name);
  return found == RULES.end() ? Rule::Strict : found->second;
}

inline Rule rule_of(const c10::FunctionSchema& schema) {
  thread_local std::unordered_map<const c10::FunctionSchema*, Rule> seen;
  auto [entry, is_new] = seen.try_emplace(&schema, Rule::None);
  if (is_new) entry->second = find_rule(schema);
  return entry->second;
}

struct Operand {
  at::Tensor tensor;
  bool written;
  const std::string& name;
  int64_t position; // in its list, -1 for a plain tensor
};

inline std::vector<Operand> operands(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& values) {
  std::vector<Operand> out;
  for (size_t i = 0; i < values.size(); i++) {
    const auto& argument = schema.arguments()[i];
    bool written = argument.alias_info() && argument.alias_info()->isWrite();
    int64_t position = values[i].isTensor() ? -1 : 0;
    map_tensors(values[i], [&](const at::Tensor& t) {
      if (t.defined() && !t.is_meta()) out.push_back({t, written, argument.name(), position});
      if (position >= 0) position++;
      return t;
    });
  }
  return out;
}

inline void check_strict(const c10::FunctionSchema& schema, const std::vector<Operand>& all) {
  for (const auto& o : all)
    TORCH_CHECK(
        o.tensor.device() == all[0].tensor.device(), "Expected all tensors to be on the same device, but got ", o.name, " is on ",
        o.tensor.device(), ", different from other tensors on ", all[0].tensor.device(),
        " (when checking argument in method wrapper_CUDA_", schema.name().substr(6), ")");
}

inline void check_iterator(const std::vector<Operand>& all) {
  std::optional<c10::Device> common;
  for (const auto& o : all)
    if (!common && !o.tensor.is_cpu()) common = o.tensor.device();
  if (!common) return;
  bool scalar_seen = false;
  for (const auto& o : all) {
    if (o.tensor.device() == *common) continue;
    TORCH_CHECK(
        o.tensor.is_cpu() && o.tensor.dim() == 0 && !o.written,
        "Expected all tensors to be on the same device, but found at least two devices, ", *common, " and ", o.tensor.device(), "!");
    TORCH_CHECK(!scalar_seen, "Trying to pass too many CPU scalars to non-CPU kernel!");
    scalar_seen = true;
  }
}

inline void check_foreach(const std::vector<Operand>& all) {
  int64_t length = 0;
  for (const auto& o : all) length = std::max(length, o.position + 1);
  for (int64_t i = 0; i < length; i++) {
    std::vector<Operand> row;
    for (const auto& o : all)
      if (o.position == i || o.position == -1) row.push_back(o);
    check_iterator(row);
  }
}

inline void check_index_devices(const std::vector<Operand>& all) {
  const auto self = all[0].tensor.device();
  for (const auto& o : all)
    TORCH_CHECK(
        o.name != "indices" || o.tensor.is_cpu() || o.tensor.device() == self,
        "indices should be either on cpu or on the same device as the indexed tensor (", self, ")");
}

// Raises the error of a GPU if the devices of the tensors do not fit together.
inline void check_devices(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& values) {
  auto rule = rule_of(schema);
  if (rule == Rule::None) return;
  auto all = operands(schema, values);
  if (all.empty()) return;
  if (rule == Rule::Strict) check_strict(schema, all);
  if (rule == Rule::Iterator) check_iterator(all);
  if (rule == Rule::Foreach) check_foreach(all);
  if (rule == Rule::Index) check_index_devices(all);
}

} // namespace dsfix
