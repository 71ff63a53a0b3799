// The part of CANN that the runner calls, without a device: for tests of the runner's own memory and error handling
// under sanitizers. Its graphs are texts such as "static in=2 out=2": result i is input i (modulo) plus one, float32.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../src/ge_runtime/native/cann_abi.h"

namespace {

struct Counts {
  std::atomic<int> groups{0}, sessions{0}, graphs{0}, device_blocks{0}, engine_blocks{0}, streams{0};
};
Counts counts;
std::string error_text;
bool initialized = false;

uint32_t Refuse(const std::string& text) {
  error_text = text;
  return 0xFFFFFFFFU;
}

}  // namespace

std::string TakeErrorText() {
  std::string text;
  text.swap(error_text);
  return text;
}

extern "C" {

int fake_count(const char* what) {
  const std::string name = what;
  if (name == "sessions") return counts.sessions;
  if (name == "graphs") return counts.graphs;
  if (name == "groups") return counts.groups;
  if (name == "device_blocks") return counts.device_blocks;
  if (name == "engine_blocks") return counts.engine_blocks;
  return counts.streams;
}

int HcclGetRootInfo(void* info) { return std::memset(info, 7, 4108), 0; }
int HcclCommInitRootInfo(uint32_t ranks, const void* info, uint32_t rank, void** comm) {
  const auto* bytes = static_cast<const char*>(info);
  if (bytes[0] != 7 || bytes[4107] != 7) return 1;
  if (rank >= ranks) throw std::runtime_error("no such rank");
  ++counts.groups;
  return *comm = new char(static_cast<char>(rank)), 0;
}
int HcclGetCommName(void* comm, char* name) {
  if (*static_cast<char*>(comm) == 3) return 4;
  return std::strcpy(name, "fake-group"), 0;
}
int HcclCommDestroy(void* comm) {
  delete static_cast<char*>(comm);
  return --counts.groups, 0;
}
const char* HcclGetErrorString(int code) { return code == 1 ? "parameter error" : "internal error"; }

int aclInit(const char*) {
  static bool done = false;
  if (done) return 100002;
  done = true;
  return 0;
}
int aclFinalize() { return 0; }
int aclrtGetDeviceCount(uint32_t* n) { return *n = 2, 0; }
int aclrtSetDevice(int32_t device) { return device >= 0 && device < 2 ? 0 : 107001; }
int aclrtResetDevice(int32_t) { return 0; }
const char* aclrtGetSocName() { return "Ascend910B1"; }
int aclGetDeviceCapability(uint32_t, int32_t fact, int64_t* value) { return *value = fact == 0 ? 24 : 48, 0; }
int aclrtCreateStream(void** stream) { return *stream = std::malloc(1), ++counts.streams, 0; }
int aclrtDestroyStream(void* stream) { return std::free(stream), --counts.streams, 0; }
int aclrtSynchronizeStream(void*) { return 0; }
int aclrtSynchronizeDevice() { return 0; }
int aclrtStreamQuery(void*, int32_t* status) { return *status = 0, 0; }
int aclrtMalloc(void** address, size_t bytes, int32_t) {
  if (bytes > (size_t{1} << 30)) return 207001;
  return *address = std::malloc(bytes), ++counts.device_blocks, 0;
}
int aclrtFree(void* address) { return std::free(address), --counts.device_blocks, 0; }
int aclrtMemcpyAsync(void* to, size_t, const void* from, size_t bytes, int32_t, void*) {
  return std::memcpy(to, from, bytes), 0;
}
const char* aclGetRecentErrMsg() { return "the fake device said so"; }
int aclsysGetCANNVersion(int32_t, void* found) { return std::strcpy(static_cast<char*>(found), "8.5.0"), 0; }

}  // extern "C"

namespace ge {

using Status = uint32_t;

class Allocator : public cann::Allocator {};  // for its name, which is part of a symbol

class AscendString {
 public:
  AscendString() = default;
  AscendString(const char* text);
  const char* GetString() const;
  bool operator<(const AscendString& other) const;

 private:
  std::shared_ptr<std::string> text_;
};
AscendString::AscendString(const char* text) : text_(std::make_shared<std::string>(text)) {}
const char* AscendString::GetString() const { return text_ ? text_->c_str() : ""; }
bool AscendString::operator<(const AscendString& other) const {
  return std::strcmp(GetString(), other.GetString()) < 0;
}

class Shape {
 public:
  Shape(const std::vector<int64_t>& dims);
  std::vector<int64_t> GetDims() const;

 private:
  std::shared_ptr<std::vector<int64_t>> dims_;
};
Shape::Shape(const std::vector<int64_t>& dims) : dims_(std::make_shared<std::vector<int64_t>>(dims)) {}
std::vector<int64_t> Shape::GetDims() const { return *dims_; }

struct Text {
  std::string text;
  bool dynamic = false;
  size_t inputs = 0, outputs = 0;
  uint64_t feature = 0;
  Text() { ++counts.graphs; }
  ~Text() { --counts.graphs; }
};

class Graph {
 public:
  Graph(const char* name);
  uint32_t LoadFromSerializedModelArray(const void* bytes, size_t size);
  std::shared_ptr<Text> impl;
};
Graph::Graph(const char*) : impl(std::make_shared<Text>()) {}
uint32_t Graph::LoadFromSerializedModelArray(const void* bytes, size_t size) {
  impl->text.assign(static_cast<const char*>(bytes), size);
  char kind[16] = {};
  if (std::sscanf(impl->text.c_str(), "%15s in=%zu out=%zu work=%lu", kind, &impl->inputs, &impl->outputs,
                  &impl->feature) < 3) {
    return Refuse("E18888: these bytes are no graph");
  }
  impl->dynamic = std::strcmp(kind, "dynamic") == 0;
  return 0;
}

enum class DataType : int32_t {};
using Options = std::map<AscendString, AscendString>;

class CompiledGraphSummary {
 public:
  bool IsStatic() const;
  Status GetOutputShapes(std::vector<Shape>& shapes) const;
  Status GetOutputDtypes(std::vector<DataType>& dtypes) const;
  Status GetConstMemorySize(size_t& bytes) const;
  Status GetFeatureMemorySize(size_t& bytes) const;
  Status GetFeatureMemoryBaseRefreshable(bool& yes) const;
  std::shared_ptr<Text> text;
};
bool CompiledGraphSummary::IsStatic() const { return !text->dynamic; }
Status CompiledGraphSummary::GetOutputShapes(std::vector<Shape>& shapes) const {
  for (size_t i = 0; i < text->outputs; ++i) shapes.emplace_back(std::vector<int64_t>{text->dynamic ? -1 : 4});
  return 0;
}
Status CompiledGraphSummary::GetOutputDtypes(std::vector<DataType>& dtypes) const {
  dtypes.resize(text->outputs);
  return 0;
}
Status CompiledGraphSummary::GetConstMemorySize(size_t& bytes) const { return bytes = 64, 0; }
Status CompiledGraphSummary::GetFeatureMemorySize(size_t& bytes) const { return bytes = text->feature, 0; }
Status CompiledGraphSummary::GetFeatureMemoryBaseRefreshable(bool& yes) const { return yes = true, 0; }

struct Loaded {
  std::shared_ptr<Text> text;
  bool compiled = false, loaded = false, has_const = false;
  void* feature = nullptr;
};
struct State {
  std::map<uint32_t, Loaded> graphs;
  std::map<const void*, std::shared_ptr<cann::Allocator>> allocators;
};
State* state = nullptr;
std::mutex guard;

Loaded& Find(uint32_t id) {
  const std::lock_guard<std::mutex> lock(guard);
  return state->graphs.at(id);
}

std::shared_ptr<cann::Allocator> AllocatorOf(const void* stream) {
  const std::lock_guard<std::mutex> lock(guard);
  return state->allocators.at(stream);
}

Status GEInitialize(const Options& options) {
  if (options.count("fail") != 0) return Refuse("E10001: option [fail] is not one that anybody likes");
  initialized = true;
  return 0;
}
Status GEFinalize() { return initialized = false, 0; }

class Session {
 public:
  Session(const Options& options);
  ~Session();
  Status AddGraph(uint32_t id, const Graph& graph, const Options& options);
  Status RemoveGraph(uint32_t id);
  Status CompileGraph(uint32_t id);
  std::shared_ptr<CompiledGraphSummary> GetCompiledGraphSummary(uint32_t id);
  Status SetGraphConstMemoryBase(uint32_t id, const void* memory, size_t bytes);
  Status UpdateGraphFeatureMemoryBase(uint32_t id, const void* memory, size_t bytes);
  Status RegisterExternalAllocator(const void* stream, std::shared_ptr<Allocator> allocator) const;

 private:
  uint64_t id_;
};
Session::Session(const Options&) : id_(initialized ? 1 : 0) {
  state = new State;
  ++counts.sessions;
}
Session::~Session() {
  delete state;
  state = nullptr;
  --counts.sessions;
}
Status Session::AddGraph(uint32_t id, const Graph& graph, const Options&) {
  const std::lock_guard<std::mutex> lock(guard);
  state->graphs[id].text = graph.impl;
  return 0;
}
Status Session::RemoveGraph(uint32_t id) {
  const std::lock_guard<std::mutex> lock(guard);
  return state->graphs.erase(id) == 1 ? 0 : Refuse("E10062: no such graph");
}
Status Session::CompileGraph(uint32_t id) {
  Loaded& graph = Find(id);
  if (graph.text->text.find("bad") != std::string::npos) return Refuse("EZ3003: no kernel for node [add_7]");
  if (graph.text->text.find("throw") != std::string::npos) throw std::runtime_error("no kernel, no manners");
  if (graph.text->text.find("odd") != std::string::npos) throw 7;
  graph.compiled = true;
  return 0;
}
std::shared_ptr<CompiledGraphSummary> Session::GetCompiledGraphSummary(uint32_t id) {
  auto summary = std::make_shared<CompiledGraphSummary>();
  summary->text = Find(id).text;
  return summary;
}
Status Session::SetGraphConstMemoryBase(uint32_t id, const void* memory, size_t bytes) {
  Loaded& graph = Find(id);
  if (graph.text->dynamic || graph.loaded || graph.has_const || memory == nullptr || bytes < 64) return Refuse("const");
  graph.has_const = true;
  return 0;
}
Status Session::UpdateGraphFeatureMemoryBase(uint32_t id, const void* memory, size_t bytes) {
  Loaded& graph = Find(id);
  if (graph.text->dynamic || !graph.compiled || bytes < graph.text->feature) return Refuse("feature");
  graph.feature = const_cast<void*>(memory);
  return 0;
}
Status Session::RegisterExternalAllocator(const void* stream, std::shared_ptr<Allocator> allocator) const {
  if (stream == nullptr || allocator == nullptr) return Refuse("allocator");
  const std::lock_guard<std::mutex> lock(guard);
  state->allocators[stream] = allocator;
  return 0;
}

}  // namespace ge

namespace {

uint32_t Manage(void* block, cann::gert::Operation operation, void** out) {
  auto* mine = static_cast<cann::MemBlock*>(block);
  if (operation == cann::gert::kAddress) return *out = mine->address, 0;
  if (operation == cann::gert::kShare) return ++mine->uses, 0;
  if (--mine->uses == 0) {
    --counts.engine_blocks;
    mine->allocator.Free(mine);
  }
  return 0;
}

}  // namespace

extern "C" {

uint32_t GeSessionLoadGraph(ge::Session&, uint32_t id, const ge::Options&, void*) {
  ge::Loaded& graph = ge::Find(id);
  if (!graph.compiled || graph.loaded) return Refuse("load");
  graph.loaded = true;
  return 0;
}

uint32_t GeSessionExecuteGraphWithStreamAsync(ge::Session&, uint32_t id, void* stream,
                                              const std::vector<cann::gert::Tensor>& inputs,
                                              std::vector<cann::gert::Tensor>& outputs) {
  ge::Loaded& graph = ge::Find(id);
  if (!graph.loaded) return Refuse("E10062: graph is not loaded");
  if (inputs.size() != graph.text->inputs || outputs.size() != graph.text->outputs) return Refuse("E13025: number");
  if (graph.text->feature != 0) {
    if (graph.feature == nullptr) return Refuse("no work memory");
    std::memset(graph.feature, 0x5A, graph.text->feature);  // a sanitizer sees a wrong base
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const cann::gert::Tensor& in = inputs[i % std::max<size_t>(inputs.size(), 1)];
    cann::gert::Tensor& out = outputs[i];
    const size_t bytes = inputs.empty() ? 16 : in.data.bytes;
    if (out.data.address == nullptr) {
      cann::MemBlock* block = ge::AllocatorOf(stream)->Malloc(bytes);
      if (block == nullptr) return Refuse("out of memory");
      ++counts.engine_blocks;
      out.data.address = block;
      out.data.manager = Manage;
      out.data.bytes = bytes;
      out.dtype = 0;
      out.shape = in.shape;
    }
    void* to = out.data.address;
    if (out.data.manager != nullptr) out.data.manager(out.data.address, cann::gert::kAddress, &to);
    for (size_t k = 0; k < bytes / sizeof(float); ++k) {
      const float x = inputs.empty() ? 0.0F : static_cast<const float*>(in.data.address)[k];
      static_cast<float*>(to)[k] = x + 1.0F;
    }
  }
  return 0;
}

}  // extern "C"

extern "C" char* fake_error_text() { return strdup(TakeErrorText().c_str()); }
