// Recording what is launched on streams, and replaying it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "acl.h"
#include "stream.h"

namespace emu {

// Tasks in the order they were launched, from all streams that joined: replayed one after the other, which every
// order between the streams permits.
struct Recording : Recorder {
  uint32_t id = 0;
  std::shared_ptr<Stream> origin;
  std::thread::id thread;
  int mode = 0;

  std::mutex mutex;
  std::vector<Task> tasks;
  std::set<Stream*> joined;    // other streams under capture
  std::set<Stream*> returned;  // those whose last work the origin waits for
  bool valid = true;
  bool finished = false;
  std::atomic<int> running{0};
  ptrdiff_t group_start = -1;  // where an open group of tasks begins

  aclError add(Task task) override;
};

// What a stream is captured into; null if it is not.
std::shared_ptr<Recording> recording_of(const std::shared_ptr<Stream>& stream);

// 0, or 107030 and an invalid recording: waiting while a capture is under way. `stream` null: any stream.
aclError refuse_in_capture(const char* call, const std::shared_ptr<Stream>& stream);

}  // namespace emu
