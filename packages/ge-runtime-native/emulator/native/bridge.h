// The way to the embedded engine: Python of the same process, found at run time, nothing linked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "acl.h"

namespace emu::bridge {

// What the Python side answered.
struct Answer {
  int64_t value = -1;  // negative: failed, the text is set for this thread
  std::string reply;
  aclError error = 0;
};

// Ask the Python side. `data` is text or bytes, `words` numbers and addresses; the verb says what they mean.
Answer call(const char* verb, const void* data, size_t size, const std::vector<int64_t>& words = {});

// Whether this thread may wait for Python's lock at any time: a thread of Python's own, or one of a program that has no
// Python but this. For any other thread somebody may be waiting who holds the lock.
bool may_wait();

// Import the Python side now if this thread holds Python's lock: later, a stream's thread might wait for an import
// that waits for the stream.
void start_if_python();

// Python's lock is dropped while this lives, if this thread holds it.
class GilReleased {
 public:
  GilReleased();
  ~GilReleased();
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  void* state_ = nullptr;
};

}  // namespace emu::bridge
