// What a session keeps of its graphs.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "acl.h"
#include "ge.h"

namespace ge {

struct SummaryData {
  bool fixed = true;  // every shape is known
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int> dtypes;
  size_t const_bytes = 0, feature_bytes = 0, fixed_bytes = 0;
  bool refreshable = true;
  std::vector<std::pair<uint32_t, uint32_t>> same_addresses;  // input, output
};

struct GraphEntry {
  uint32_t id = 0;
  std::shared_ptr<GraphData> graph;
  Options options;
  std::mutex mutex;   // one compile or launch at a time
  int64_t handle = -1;  // of the compiled graph on the Python side
  std::shared_ptr<SummaryData> summary;
  bool loaded = false, gears = false;
  bool const_base = false, feature_base = false, fixed_base = false, refreshable_base = false;
  std::atomic<int> running{0};
};

struct SessionData {
  std::mutex mutex;
  Options options;
  std::map<uint32_t, std::shared_ptr<GraphEntry>> graphs;
};

// Set the error text and give the code back.
Status refuse(const char* error, const std::string& text, Status code = kFailed);
std::shared_ptr<SessionData> find_session(uint64_t id);
// The graph of a session, or a refusal with E10062.
Status find_graph(uint64_t session, uint32_t id, const char* call, std::shared_ptr<GraphEntry>* found);
Status compile(const std::shared_ptr<GraphEntry>& entry);
std::shared_ptr<Allocator> allocator_of(const void* stream);

// A tensor on its way to or from a graph, whichever class the caller uses.
struct Value {
  void* data = nullptr;
  size_t size = 0;
  int dtype = 0;
  bool host = false;
  std::vector<int64_t> dims;
};

// What the engine hands back for an output without buffer.
struct Buffer {
  MemBlock* block = nullptr;  // from the caller's allocator, or
  void* own = nullptr;        // from ours
  void* address() const { return block != nullptr ? block->address() : own; }
};

// Launch on a stream. `outputs` with data are written; for those without, `made` gets memory and `outputs` the sizes.
Status run(const std::shared_ptr<GraphEntry>& entry, void* stream, const std::vector<Value>& inputs,
           std::vector<Value>* outputs, std::vector<Buffer>* made);

}  // namespace ge
