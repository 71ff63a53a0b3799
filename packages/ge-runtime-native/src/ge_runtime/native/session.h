// The session of this process: what is open, and what belongs to it.
#pragma once

#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "cann_library.h"
#include "ge_cann_runner.h"
#include "pool.h"

namespace cann {

// Notes a failure for gec_error and gives the code back.
int Fail(int code, const std::string& text);
int FailDevice(const char* call, AclError code);
int FailEngine(const std::string& call, Status status);

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
  MemBlock* Malloc(size_t bytes) override;
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
  std::mutex mutex;
  bool libraries_open = false;
  bool open = false;
  bool acl_is_ours = false;
  pid_t process = 0;
  std::atomic<uint64_t> generation{0};  // counts sessions; 0: there was none
  int32_t device = 0;
  Session session{};
  uint32_t next_graph = 0;
  std::set<gec_graph*> graphs;
  std::map<Stream, std::unique_ptr<StreamState>> streams;
  Memory memory;
  Pool pool;

  // 0, or the failure that says why nothing can run: no session, an ended one (given its generation), a fork.
  int Check(uint64_t expected);
  StreamState& On(Stream stream);
  void* Take(Stream stream, size_t bytes, Memory* from);
  static void Give(const Memory& from, Stream stream, void* address);
};

Runner& TheRunner();

// What a graph leaves to its session's end.
void ReleaseGraph(gec_graph* graph, bool session_lives);

}  // namespace cann

struct gec_result {
  uint64_t generation;
  // of a gert::Tensor
  void* block = nullptr;
  cann::gert::Manager manager = nullptr;
  // of a ge::Tensor
  std::unique_ptr<uint8_t[], std::function<void(uint8_t*)>> data{nullptr, [](uint8_t*) {}};
};
