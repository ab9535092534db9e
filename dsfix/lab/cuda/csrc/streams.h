// Streams and events. With a schedule, work on a stream waits in a queue and is done when that schedule wants it.
//
// The host only ever adds to the end of a queue, so whatever a piece of work waits for was issued before it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <pthread.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace dsfix {

constexpr auto TYPE = c10::DeviceType::CUDA;
constexpr int MAX_DEVICES = 64;

enum class Schedule {
  None, // every call is synchronous, streams mean nothing
  Early, // work is done when it is issued
  Late, // work is done when something that is ordered after it needs it
  Ahead, // work on the default stream is late, on all others early
  Random, // seeded
};

inline Schedule schedule = Schedule::None;
inline std::mt19937_64 dice;

inline bool scheduled() {
  return schedule != Schedule::None;
}

struct Queue;

// The work of a stream up to `number`.
struct Point {
  Queue* queue = nullptr;
  int64_t number = 0;
};

struct Task {
  std::function<void()> run;
  std::vector<Point> needs;
  int64_t collective = 0; // counts the collectives of this process from 1; 0: none
};

struct Queue {
  c10::DeviceIndex device;
  c10::StreamId id; // 0: the default stream; negative: the stream of a process group
  std::deque<Task> waiting;
  std::atomic<int64_t> issued{0}, done{0};
};

inline std::recursive_mutex running;
inline std::map<std::pair<c10::DeviceIndex, c10::StreamId>, std::unique_ptr<Queue>> queues;
inline std::vector<Queue*> every_queue;
inline c10::StreamId last_id = 0;
inline thread_local std::array<c10::StreamId, MAX_DEVICES> current_id{};
inline std::map<int64_t, Point> waiting_collectives;
inline int64_t last_collective = 0;

using Lock = std::lock_guard<std::recursive_mutex>;

inline Queue& queue_of(c10::DeviceIndex device, c10::StreamId id) {
  Lock lock(running);
  auto& found = queues[{device, id}];
  if (!found) {
    found.reset(new Queue{device, id, {}, {}, {}});
    every_queue.push_back(found.get());
  }
  return *found;
}

inline Queue& queue_of(const c10::Stream& stream) {
  return queue_of(stream.device_index(), stream.id());
}

inline Queue& current_queue(c10::DeviceIndex device) {
  return queue_of(device, current_id[device]);
}

inline c10::StreamId new_stream_id() {
  Lock lock(running);
  return ++last_id;
}

inline Point now(Queue& queue) {
  Lock lock(running);
  return {&queue, queue.issued};
}

inline bool is_done(const Point& point) {
  return !point.queue || point.queue->done >= point.number;
}

// Does the work up to a point, and whatever that waits for.
inline void run(const Point& point) {
  Lock lock(running);
  while (!is_done(point)) {
    struct Step {
      Queue& queue;
      Task task;
      explicit Step(Queue& queue) : queue(queue), task(std::move(queue.waiting.front())) { queue.waiting.pop_front(); }
      ~Step() {
        queue.done++;
        if (task.collective) waiting_collectives.erase(task.collective);
      }
    } step(*point.queue);
    for (const auto& need : step.task.needs) run(need);
    // in one order on all ranks, whatever each of them needs first: two that differed would wait for each other
    while (step.task.collective && waiting_collectives.begin()->first < step.task.collective)
      run(Point(waiting_collectives.begin()->second));
    if (!step.task.run) continue;
    try {
      step.task.run();
    } catch (const std::exception& error) {
      TORCH_CHECK(false, "CUDA error, of work on stream ", step.queue.id, " that was waiting: ", error.what());
    }
  }
}

// The host waits for a point.
inline void finish(const Point& point) {
  if (!point.queue) return;
  Lock lock(running);
  run(point);
}

inline void finish(Queue& queue) {
  finish(now(queue));
}

inline void finish_device(c10::DeviceIndex device) {
  Lock lock(running);
  for (auto* queue : std::vector<Queue*>(every_queue))
    if (queue->device == device) finish(*queue);
}

inline void finish_all() {
  Lock lock(running);
  for (auto* queue : std::vector<Queue*>(every_queue)) finish(*queue);
}

inline void finish_collectives() {
  Lock lock(running);
  while (!waiting_collectives.empty()) run(Point(waiting_collectives.begin()->second));
}

inline void issue(Queue& queue, Task task) {
  Lock lock(running);
  int64_t number = ++queue.issued;
  if (task.collective) waiting_collectives[task.collective] = {&queue, number};
  queue.waiting.push_back(std::move(task));
  if (schedule == Schedule::Early || (schedule == Schedule::Ahead && queue.id != 0)) run({&queue, number});
  if (schedule == Schedule::Random && dice() % 2) {
    auto& any = *every_queue[dice() % every_queue.size()];
    run({&any, any.done + static_cast<int64_t>(dice() % (any.issued - any.done + 1))});
  }
}

// The work that is issued to `queue` from now on waits for a point.
inline void wait(Queue& queue, const Point& point) {
  if (!point.queue || point.queue == &queue) return;
  Lock lock(running);
  if (!is_done(point)) issue(queue, {nullptr, {point}});
}

inline void after_fork() {
  new (&running) std::recursive_mutex();
}

inline void set_schedule(const std::string& name, uint64_t seed) {
  static const std::map<std::string, Schedule> known = {
      {"early", Schedule::Early}, {"late", Schedule::Late}, {"ahead", Schedule::Ahead}, {"random", Schedule::Random}};
  schedule = known.at(name);
  dice.seed(seed);
  pthread_atfork(nullptr, nullptr, &after_fork);
}

} // namespace dsfix
