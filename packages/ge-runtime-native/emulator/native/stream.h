// Streams: ordered queues, each worked off by a thread of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "acl.h"

namespace emu {

// What a stream does. Gives 0, or an error code after `fail`.
struct Task {
  std::string name;
  std::function<aclError()> run;
  bool always = false;  // even after an error: others may wait for it
  std::string caller;   // the user's line, as the Python side tells it; empty if it is not known
  uint32_t stream = 0;  // number of the stream that it was launched on; `submit` sets it

  // Run, and put the user's line into the text of an error, before what to do next.
  aclError perform() const;
};

// What takes the tasks of a captured stream in its place.
struct Recorder {
  virtual ~Recorder() = default;
  virtual aclError add(Task task) = 0;
};

class Stream {
 public:
  Stream(int device, uint32_t id, uint32_t priority, uint32_t flags);

  int device() const { return device_; }
  uint32_t id() const { return id_; }

  // Put a task after all others; starts the thread on first use.
  void push(Task task);
  // Wait until everything pushed so far has run. Gives the stream's error, once, or `timeout_code` after `ms`
  // (negative: no limit). Drops Python's lock while it waits, if this thread holds it. On the stream's own thread it
  // returns at once: there Python may collect an object that waits for the stream before it goes, and what runs on the
  // stream is the very task that collects.
  aclError wait(int64_t ms, aclError timeout_code);
  bool idle();
  void close();

  // Null while the stream is not captured.
  std::shared_ptr<Recorder> recorder();
  void record_into(std::shared_ptr<Recorder> recorder);

 private:
  friend struct Worker;
  void work();

  const int device_;
  const uint32_t id_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Task> tasks_;
  uint64_t pushed_ = 0, finished_ = 0;
  aclError error_ = 0;
  std::string error_text_;
  bool started_ = false, closed_ = false;
  std::atomic<std::thread::id> worker_{};
  std::shared_ptr<Recorder> recorder_;
  std::shared_ptr<Stream> self_;  // the thread's own hold, from start to close
  friend std::shared_ptr<Stream> make_stream(int, uint32_t, uint32_t);
};

std::shared_ptr<Stream> make_stream(int device, uint32_t priority, uint32_t flags);
// The stream behind a handle; null stands for the default stream of this thread's device. Null if there is none.
std::shared_ptr<Stream> find_stream(aclrtStream handle);
aclError need_stream(const char* call, aclrtStream handle, std::shared_ptr<Stream>* found);

// Queue a task, or add it to the recording if the stream is being captured.
aclError submit(aclrtStream handle, Task task);
aclError submit(aclrtStream handle, const char* name, std::function<aclError()> run, bool always = false);

// All streams of a device; -1: of all devices.
std::vector<std::shared_ptr<Stream>> streams_of(int device);
void drain_device(int device);
void drain_all();

}  // namespace emu
