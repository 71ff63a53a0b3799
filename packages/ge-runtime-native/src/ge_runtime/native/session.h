// The session of this process: what is open, and what belongs to it.
#pragma once

#include <unistd.h>

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <shared_mutex>
#include <stdexcept>
#include <string>

#include "cann_library.h"
#include "ge_cann_runner.h"
#include "pool.h"

namespace cann {

// Notes a failure for gec_error and gives the code back.
int Fail(int code, const std::string& text);
int FailDevice(const char* call, AclError code);
int FailEngine(const std::string& call, Status status);
// The same for a text that lives as long as the process, where memory may have run out.
int FailPlain(int code, const char* text) noexcept;
// The failure that an exception stands for; to be called where one was caught.
int FailCaught() noexcept;

// What a function of the interface does. No exception of ours, of the engine or of its libraries leaves it.
template <typename Body>
int Guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return FailCaught();
  }
}

// While a thread uses the session it does not end. Functions of the caller that are called meanwhile, such as those for
// memory, may call the interface again.
class Using {
 public:
  Using();
  ~Using();
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;

 private:
  bool holds_;
};

// For what nobody may use meanwhile: opening, ending. Not to be had from within a use.
class Alone {
 public:
  Alone();
  ~Alone();
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  explicit operator bool() const { return holds_; }

 private:
  bool holds_;
};

// Device memory from the caller's functions, or from the pool.
struct Memory {
  gec_malloc take = nullptr;
  gec_free give = nullptr;
  void* context = nullptr;
};

// Gives GE memory on one stream.
class StreamAllocator : public Allocator {
 public:
  explicit StreamAllocator(Stream stream) : stream_(stream) {}
  MemBlock* Malloc(size_t bytes) override;  // both are called by the engine, and throw nothing
  void Free(MemBlock* block) override;

 private:
  Stream stream_;
};

// What the graphs that run on one stream share: a stream keeps its runs in order, so they can work in one memory.
struct StreamState {
  std::mutex mutex;
  std::shared_ptr<StreamAllocator> allocator;
  void* work = nullptr;
  size_t work_bytes = 0;
};

struct Runner {
  std::shared_mutex life;  // of the session: Using and Alone; taken before every other lock
  std::mutex mutex;
  bool libraries_open = false;
  std::atomic<bool> open{false};
  std::atomic<bool> ending{false};
  bool acl_is_ours = false;
  std::atomic<pid_t> process{0};
  std::atomic<uint64_t> generation{0};  // counts sessions; 0: there was none
  int32_t device = 0;
  Session session{};
  uint32_t next_graph = 0;
  std::set<gec_graph*> graphs;
  gec_graph* releasing = nullptr;  // by the end of the session
  bool dropped = false;            // the caller has freed that graph meanwhile
  std::map<Stream, std::unique_ptr<StreamState>> streams;
  Memory memory;
  Pool pool;

  // 0, or the failure that says why nothing can run: no session, an ended one (given its generation), a fork.
  int Check(uint64_t expected);
  bool forked() const { return generation != 0 && process != getpid(); }
  StreamState& On(Stream stream);
  void* Take(Stream stream, size_t bytes, Memory* from);
  static void Give(const Memory& from, Stream stream, void* address);
};

Runner& TheRunner();

// What a graph leaves to its session's end.
void ReleaseGraph(gec_graph* graph, bool session_lives);
void DeleteGraph(gec_graph* graph);

}  // namespace cann

struct gec_result {
  uint64_t generation;
  // of a gert::Tensor
  void* block = nullptr;
  cann::gert::Manager manager = nullptr;
  // of a ge::Tensor
  std::unique_ptr<uint8_t[], std::function<void(uint8_t*)>> data{nullptr, [](uint8_t*) {}};
};
