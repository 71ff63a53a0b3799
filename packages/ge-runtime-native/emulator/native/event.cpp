// Events: marks that streams leave and wait for.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "bridge.h"
#include "capture.h"
#include "memory.h"
#include "state.h"
#include "stream.h"

namespace emu {
namespace {

using Clock = std::chrono::steady_clock;

// One recording of an event; a later one makes a new mark, and waiters keep the mark they saw.
struct Mark {
  std::mutex mutex;
  std::condition_variable reached;
  bool done = false;
  Clock::time_point time;
  std::weak_ptr<Recording> recording;  // the capture it was recorded in, if any
  bool captured = false;

  void set() {
    std::lock_guard<std::mutex> lock(mutex);
    done = true;
    time = Clock::now();
    reached.notify_all();
  }
  bool is_done() {
    std::lock_guard<std::mutex> lock(mutex);
    return done;
  }
  bool wait(int64_t ms) {
    std::unique_lock<std::mutex> lock(mutex);
    if (ms < 0) return reached.wait(lock, [this] { return done; }), true;
    return reached.wait_for(lock, std::chrono::milliseconds(ms), [this] { return done; });
  }
};

constexpr uint32_t kExternal = 0x20;

constexpr auto kPatience = std::chrono::seconds(120);  // for what others are to do; a device would wait for ever

// What a captured graph and streams outside it tell each other by an external event: a record opens the gate, a reset
// shuts it, and a wait in the graph lets a replay on when it is open, which may be after the replay was launched.
struct Gate {
  std::mutex mutex;
  std::condition_variable moved;
  bool open = false;

  void set(bool to) {
    std::lock_guard<std::mutex> lock(mutex);
    open = to;
    moved.notify_all();
  }
  bool wait() {
    std::unique_lock<std::mutex> lock(mutex);
    return moved.wait_for(lock, kPatience, [this] { return open; });
  }
};

struct Event {
  uint32_t flags = 0;
  std::shared_ptr<Gate> gate;  // of an external event
  std::mutex mutex;
  std::shared_ptr<Mark> mark;

  std::shared_ptr<Mark> last() {
    std::lock_guard<std::mutex> lock(mutex);
    return mark;
  }
  void put(std::shared_ptr<Mark> fresh) {
    std::lock_guard<std::mutex> lock(mutex);
    mark = std::move(fresh);
  }
};

// The conditions of aclrtValueWait by number: at least (in a circle), equal, a bit in common, not all bits between them.
bool holds(uint64_t found, uint64_t value, uint32_t flag) {
  switch (flag) {
    case 0: return static_cast<int64_t>(found - value) >= 0;
    case 1: return found == value;
    case 2: return (found & value) != 0;
    default: return ~(found | value) != 0;
  }
}

Event* event_of(aclrtEvent handle) { return static_cast<Event*>(handle); }

}  // namespace
}  // namespace emu

using emu::event_of;
using emu::fail;
using emu::Mark;

EMU_API aclError aclrtCreateEventExWithFlag(aclrtEvent* made, uint32_t flag) {
  if (made == nullptr) return fail(acl::kRtParam, "aclrtCreateEvent: event is null");
  if (aclError code = emu::need_context("aclrtCreateEvent")) return code;
  auto* event = new emu::Event;
  event->flags = flag;
  if (flag & emu::kExternal) event->gate = std::make_shared<emu::Gate>();
  *made = event;
  return acl::kOk;
}

EMU_API aclError aclrtCreateEventWithFlag(aclrtEvent* made, uint32_t flag) {
  return aclrtCreateEventExWithFlag(made, flag);
}

EMU_API aclError aclrtCreateEvent(aclrtEvent* made) { return aclrtCreateEventExWithFlag(made, 0); }

EMU_API aclError aclrtDestroyEvent(aclrtEvent handle) {
  if (handle == nullptr) return fail(acl::kRtParam, "aclrtDestroyEvent: event is null");
  delete event_of(handle);
  return acl::kOk;
}

EMU_API aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream_handle) {
  if (handle == nullptr) return fail(acl::kRtParam, "aclrtRecordEvent: event is null");
  std::shared_ptr<emu::Stream> stream;
  if (aclError code = emu::need_stream("aclrtRecordEvent", stream_handle, &stream)) return code;
  auto mark = std::make_shared<Mark>();
  if (auto recording = emu::recording_of(stream)) {
    mark->captured = true;
    mark->recording = recording;
    std::lock_guard<std::mutex> lock(recording->mutex);
    // Only the origin's later work can follow this mark, so a stream has returned once its newest mark is waited for.
    recording->returned.erase(stream.get());
  }
  event_of(handle)->put(mark);
  auto record = [mark, gate = event_of(handle)->gate] {
    mark->set();
    if (gate) gate->set(true);
    return acl::kOk;
  };
  return emu::submit(stream_handle, "event record", record, true);
}

EMU_API aclError aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent handle) {
  if (handle == nullptr) return fail(acl::kRtParam, "aclrtStreamWaitEvent: event is null");
  std::shared_ptr<emu::Stream> stream;
  if (aclError code = emu::need_stream("aclrtStreamWaitEvent", stream_handle, &stream)) return code;
  if (auto gate = event_of(handle)->gate; gate != nullptr)
    return emu::submit(stream_handle, "event wait", [gate] {
      if (gate->wait()) return acl::kOk;
      return fail(acl::kRtWaitTimeout, "a replay waits for an external event that nobody recorded within 120 s");
    });
  auto mark = event_of(handle)->last();
  if (mark == nullptr) return acl::kOk;  // never recorded: nothing to wait for
  auto of_event = mark->captured ? mark->recording.lock() : nullptr;
  auto of_stream = emu::recording_of(stream);
  if (of_event != nullptr && !of_event->finished && (of_stream == nullptr || of_stream == of_event)) {
    {
      std::lock_guard<std::mutex> lock(of_event->mutex);
      if (of_stream == nullptr) {  // a second stream joins the capture
        stream->record_into(of_event);
        of_event->joined.insert(stream.get());
      } else if (stream == of_event->origin) {
        of_event->returned = of_event->joined;
      }
    }
    // Tasks are replayed in launch order, so the wait is kept already; it counts as a task all the same.
    return emu::submit(stream_handle, "event wait", [] { return acl::kOk; });
  }
  if (mark->captured && (event_of(handle)->flags & emu::kExternal) == 0 && of_event == nullptr)
    return fail(acl::kRtCaptureEvent, "aclrtStreamWaitEvent: the event was recorded inside a captured graph");
  return emu::submit(stream_handle, "event wait", [mark] { return mark->wait(-1), acl::kOk; });
}

EMU_API aclError aclrtResetEvent(aclrtEvent handle, aclrtStream stream) {
  if (handle == nullptr) return fail(acl::kRtParam, "aclrtResetEvent: event is null");
  event_of(handle)->put(nullptr);
  return emu::submit(stream, "event reset", [gate = event_of(handle)->gate] {
    if (gate) gate->set(false);
    return acl::kOk;
  });
}

// Words of memory that streams write and wait for; newer torch_npu makes external events of them.

EMU_API aclError aclrtValueWrite(void* address, uint64_t value, uint32_t flag, aclrtStream stream) {
  if (address == nullptr || flag != 0) return fail(acl::kRtParam, "aclrtValueWrite: address %p, flag %u", address, flag);
  if (aclError code = emu::need_device("aclrtValueWrite", "target", address, sizeof value)) return code;
  auto write = [address, value] {
    __atomic_store_n(static_cast<uint64_t*>(address), value, __ATOMIC_RELEASE);
    return acl::kOk;
  };
  return emu::submit(stream, "value write", write, true);
}

EMU_API aclError aclrtValueWait(void* address, uint64_t value, uint32_t flag, aclrtStream stream) {
  if (address == nullptr || flag > 3) return fail(acl::kRtParam, "aclrtValueWait: address %p, flag %u", address, flag);
  if (aclError code = emu::need_device("aclrtValueWait", "source", address, sizeof value)) return code;
  return emu::submit(stream, "value wait", [address, value, flag] {
    const auto end = std::chrono::steady_clock::now() + emu::kPatience;
    while (!emu::holds(__atomic_load_n(static_cast<uint64_t*>(address), __ATOMIC_ACQUIRE), value, flag)) {
      if (std::chrono::steady_clock::now() > end)
        return fail(acl::kRtWaitTimeout, "aclrtValueWait: nobody wrote what a stream waits for within 120 s");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return acl::kOk;
  });
}

EMU_API aclError aclrtQueryEventStatus(aclrtEvent handle, int* status) {
  if (handle == nullptr || status == nullptr) return fail(acl::kRtParam, "aclrtQueryEventStatus: null argument");
  auto mark = event_of(handle)->last();
  *status = mark == nullptr || mark->is_done() ? 1 : 0;
  return acl::kOk;
}

EMU_API aclError aclrtQueryEventWaitStatus(aclrtEvent handle, int* status) {
  if (handle == nullptr || status == nullptr) return fail(acl::kRtParam, "aclrtQueryEventWaitStatus: null argument");
  auto mark = event_of(handle)->last();
  *status = mark == nullptr || mark->is_done() ? 0 : 1;
  return acl::kOk;
}

EMU_API aclError aclrtSynchronizeEventWithTimeout(aclrtEvent handle, int32_t timeout) {
  if (handle == nullptr) return fail(acl::kRtParam, "aclrtSynchronizeEvent: event is null");
  auto mark = event_of(handle)->last();
  if (mark == nullptr) return acl::kOk;
  if (auto recording = mark->captured ? mark->recording.lock() : nullptr; recording != nullptr && !recording->finished)
    return emu::refuse_in_capture("aclrtSynchronizeEvent", recording->origin);
  emu::bridge::GilReleased released;
  if (mark->wait(timeout)) return acl::kOk;
  return fail(acl::kRtWaitTimeout, "aclrtSynchronizeEvent: not reached after %d ms", timeout);
}

EMU_API aclError aclrtSynchronizeEvent(aclrtEvent handle) { return aclrtSynchronizeEventWithTimeout(handle, -1); }

EMU_API aclError aclrtEventElapsedTime(float* ms, aclrtEvent start, aclrtEvent end) {
  if (ms == nullptr || start == nullptr || end == nullptr) return fail(acl::kRtParam, "aclrtEventElapsedTime: null");
  auto first = event_of(start)->last(), second = event_of(end)->last();
  if (first == nullptr || second == nullptr || !first->is_done() || !second->is_done())
    return fail(acl::kRtEventUnrecorded, "aclrtEventElapsedTime: an event has not been reached");
  *ms = std::chrono::duration<float, std::milli>(second->time - first->time).count();
  return acl::kOk;
}

EMU_API aclError aclrtEventGetTimestamp(aclrtEvent handle, uint64_t* stamp) {
  if (handle == nullptr || stamp == nullptr) return fail(acl::kRtParam, "aclrtEventGetTimestamp: null argument");
  auto mark = event_of(handle)->last();
  if (mark == nullptr || !mark->is_done()) return fail(acl::kRtEventUnrecorded, "the event has not been reached");
  *stamp = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(mark->time.time_since_epoch()).count());
  return acl::kOk;
}
