// Two pieces of work on the same bytes, at least one of which writes, with nothing that orders one after the other.
//
// Each stream's vector clock says which work of the others it has waited for, so an unordered pair is found whatever
// the order in which this process happened to do it.
#pragma once

#include "alias.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <sstream>

namespace dsfix {

using Bytes = std::pair<uintptr_t, uintptr_t>; // the first, the one behind the last

// The bytes of a tensor; gaps of a few large strides are left out.
inline std::vector<Bytes> bytes_of(const at::Tensor& t) {
  constexpr int64_t MOST = 4096;
  if (!t.defined() || !t.numel() || t.layout() != c10::kStrided) return {};
  auto start = reinterpret_cast<uintptr_t>(t.storage().data()) + t.storage_offset() * t.itemsize();
  std::vector<std::pair<int64_t, int64_t>> dimensions; // stride, size
  for (int64_t i = 0; i < t.dim(); i++)
    if (t.size(i) > 1 && t.stride(i)) dimensions.emplace_back(t.stride(i), t.size(i));
  std::sort(dimensions.begin(), dimensions.end());
  int64_t length = 1, pieces = 1;
  std::vector<int64_t> offsets{0};
  for (auto [stride, size] : dimensions) {
    if (pieces == 1 && stride <= length) {
      length += stride * (size - 1);
    } else if (pieces * size <= MOST) {
      std::vector<int64_t> more;
      for (int64_t i = 0; i < size; i++)
        for (auto offset : offsets) more.push_back(offset + i * stride);
      offsets = std::move(more);
      pieces *= size;
    } else { // too many: from the first byte to the last
      length += offsets.back() + stride * (size - 1);
      offsets = {0};
      pieces = 1;
    }
  }
  std::vector<Bytes> out;
  for (auto offset : offsets)
    out.emplace_back(start + offset * t.itemsize(), start + (offset + length) * t.itemsize());
  return out;
}

struct Use {
  std::string what; // operator, argument, tensor
  bool writes;
  std::vector<Bytes> bytes;
};

struct Issued {
  Queue* queue;
  int64_t number;
  std::string node; // of the backward pass
  std::shared_ptr<torch::CapturedTraceback> stack;
};

struct Access {
  std::shared_ptr<Issued> by;
  std::string what;
};

struct Race {
  Access before, after;
  bool before_writes, after_writes;
};

struct Piece {
  uintptr_t end;
  std::optional<Access> write;
  std::vector<Access> reads; // since then, one per stream
};

inline std::map<uintptr_t, Piece> pieces;
inline std::vector<Race> races;

inline std::string described(const at::Tensor& t) {
  std::ostringstream out;
  out << c10::toString(t.scalar_type()) << t.sizes();
  return out.str();
}

// Cuts at an address, so that no piece reaches over it.
inline void cut(uintptr_t at) {
  auto it = pieces.upper_bound(at);
  if (it == pieces.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Piece rest = it->second;
  it->second.end = at;
  pieces.emplace(at, std::move(rest));
}

inline bool ordered(const Access& earlier, const Queue& queue) {
  if (earlier.by->queue == &queue) return true;
  auto index = earlier.by->queue->index;
  return index < queue.clock.size() && queue.clock[index] >= earlier.by->number;
}

inline void compare(const Access& earlier, bool earlier_writes, const Access& later, bool later_writes) {
  if (!ordered(earlier, *later.by->queue)) races.push_back({earlier, later, earlier_writes, later_writes});
}

inline void touch(Piece& piece, const Access& access, bool writes) {
  if (piece.write) compare(*piece.write, true, access, writes);
  if (writes) {
    for (const auto& read : piece.reads)
      if (read.by != access.by) compare(read, false, access, true);
    piece.write = access;
    piece.reads.clear();
    return;
  }
  for (auto& read : piece.reads)
    if (read.by->queue == access.by->queue) {
      read = access;
      return;
    }
  piece.reads.push_back(access);
}

// To be called after the work has been given its number.
inline void look_for_races(Queue& queue, int64_t number, const std::vector<Use>& uses) {
  auto by = std::make_shared<Issued>(Issued{&queue, number, "", torch::CapturedTraceback::gather(true, false, false)});
  if (auto node = torch::autograd::get_current_node()) by->node = node->name();
  for (const auto& use : uses) {
    Access access{by, use.what};
    for (auto [from, end] : use.bytes) {
      cut(from);
      cut(end);
      auto it = pieces.lower_bound(from);
      for (auto at = from; at < end; ++it) {
        if (it == pieces.end() || it->first > at) { // nobody has used these
          auto until = it == pieces.end() ? end : std::min(end, it->first);
          it = pieces.emplace_hint(it, at, Piece{until, std::nullopt, {}});
        }
        touch(it->second, access, use.writes);
        at = it->second.end;
      }
    }
  }
}

} // namespace dsfix
