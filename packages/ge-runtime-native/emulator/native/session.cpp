// libge_runner: sessions, adding and compiling graphs, memory that the caller hands over.
#include "session.h"

#include <cstdlib>
#include <cstring>

#include "bridge.h"
#include "json.h"
#include "state.h"
#include "stream.h"

namespace ge {
namespace {

struct Engine {
  std::mutex mutex;
  bool initialised = false;
  Options options;
  uint64_t next_session = 1;
  std::map<uint64_t, std::shared_ptr<SessionData>> sessions;
  std::map<const void*, std::shared_ptr<Allocator>> allocators;
};

Engine& engine() {
  static auto* made = new Engine;
  return *made;
}

std::string options_json(const Options& options) {
  std::string out = "{";
  for (const auto& [key, value] : options)
    out += (out.size() > 1 ? "," : "") + emu::json::text(key.GetString()) + ":" + emu::json::text(value.GetString());
  return out + "}";
}

std::string number(uint64_t value) { return std::to_string(value); }

// Options whose values GE checks: ask the Python side, which has the table.
Status check_options(const Options& options, const char* level) {
  const std::string text = std::string("{\"level\":\"") + level + "\",\"options\":" + options_json(options) + "}";
  return emu::bridge::call("ge.options", text.data(), text.size()).value < 0 ? kFailed : kSuccess;
}

}  // namespace

Status refuse(const char* error, const std::string& text, Status code) {
  emu::set_error_text(std::string(error) + ": " + text);
  emu::log("ge %s: %s", error, text.c_str());
  return code;
}

std::shared_ptr<SessionData> find_session(uint64_t id) {
  auto& e = engine();
  std::lock_guard<std::mutex> lock(e.mutex);
  auto found = e.sessions.find(id);
  return found == e.sessions.end() ? nullptr : found->second;
}

Status find_graph(uint64_t session, uint32_t id, const char* call, std::shared_ptr<GraphEntry>* found) {
  auto data = find_session(session);
  if (data == nullptr) return refuse("E10062", std::string(call) + ": the session is not open (GEInitialize failed or missing?)");
  std::lock_guard<std::mutex> lock(data->mutex);
  auto at = data->graphs.find(id);
  if (at == data->graphs.end()) return refuse("E10062", std::string(call) + ": graph " + number(id) + " was not added");
  *found = at->second;
  return kSuccess;
}

std::shared_ptr<Allocator> allocator_of(const void* stream) {
  auto& e = engine();
  std::lock_guard<std::mutex> lock(e.mutex);
  auto found = e.allocators.find(stream);
  return found == e.allocators.end() ? nullptr : found->second;
}

Status GEInitialize(const Options& options) {
  auto& e = engine();
  {
    std::lock_guard<std::mutex> lock(e.mutex);
    if (e.initialised) return kSuccess;  // a second call's options count for nothing
  }
  if (Status code = check_options(options, "global")) return code;
  std::lock_guard<std::mutex> lock(e.mutex);
  e.options = options;
  e.initialised = true;
  return kSuccess;
}

Status GEFinalize() {
  auto& e = engine();
  std::lock_guard<std::mutex> lock(e.mutex);
  e.initialised = false;
  e.sessions.clear();
  e.allocators.clear();
  return kSuccess;
}

extern "C" GE_API aclError aclrtSetDevice(int32_t device);

Session::Session(const Options& options) {
  auto& e = engine();
  std::unique_lock<std::mutex> lock(e.mutex);
  if (!e.initialised) {
    refuse("E10062", "Session before GEInitialize");
    return;  // no exception: every later call fails
  }
  int device = 0;
  for (const auto* key : {"ge.session_device_id", "ge.exec.deviceId"}) {
    auto found = options.find(AscendString(key));
    if (found == options.end() && std::strcmp(key, "ge.exec.deviceId") == 0) {
      found = e.options.find(AscendString(key));
      if (found == e.options.end()) break;
    }
    if (found == options.end()) continue;
    device = std::atoi(found->second.GetString());
    break;
  }
  if (aclrtSetDevice(device) != acl::kOk) return;
  id_ = e.next_session++;
  auto data = std::make_shared<SessionData>();
  data->options = options;
  e.sessions[id_] = data;
}

Session::~Session() {
  std::shared_ptr<SessionData> gone;
  auto& e = engine();
  {
    std::lock_guard<std::mutex> lock(e.mutex);
    auto found = e.sessions.find(id_);
    if (found == e.sessions.end()) return;
    gone = found->second;
    e.sessions.erase(found);
  }
  for (auto& [id, entry] : gone->graphs)
    if (entry->handle >= 0) emu::bridge::call("ge.drop", "", 0, {entry->handle});
}

Status Session::AddGraph(uint32_t id, const Graph& graph) { return AddGraph(id, graph, Options()); }

Status Session::AddGraph(uint32_t id, const Graph& graph, const Options& options) {
  auto data = find_session(id_);
  if (data == nullptr) return refuse("E10062", "AddGraph: the session is not open (GEInitialize failed or missing?)");
  if (!graph.IsValid()) return refuse("E18888", "AddGraph: the graph is empty");
  for (const auto& [key, value] : options)
    if (key.GetLength() == 0) return refuse("E10059", "AddGraph: an option has an empty name");
  if (Status code = check_options(options, "graph")) return code;
  std::lock_guard<std::mutex> lock(data->mutex);
  if (data->graphs.count(id) != 0) return kSuccess;  // GE counts up and ignores the new graph
  if (graph.data()->added)
    return refuse("E19999", "AddGraph: this Graph object was added before (GE_GRAPH_GRAPH_ALREADY_EXIST)");
  graph.data()->added = true;
  auto entry = std::make_shared<GraphEntry>();
  entry->id = id;
  entry->graph = graph.data();
  entry->options = options;
  entry->gears = options.count(AscendString("ge.dynamicDims")) != 0;
  data->graphs[id] = entry;
  return kSuccess;
}

Status Session::AddGraphWithCopy(uint32_t id, const Graph& graph, const Options& options) {
  Graph copy;
  copy.CopyFrom(graph);
  return AddGraph(id, copy, options);
}

Status Session::RemoveGraph(uint32_t id) {
  std::shared_ptr<GraphEntry> entry;
  if (Status code = find_graph(id_, id, "RemoveGraph", &entry)) return code;
  if (entry->running > 0) emu::drain_all();  // launched work reads the graph; real GE refuses, its caller waits
  if (entry->handle >= 0) emu::bridge::call("ge.drop", "", 0, {entry->handle});
  auto data = find_session(id_);
  std::lock_guard<std::mutex> lock(data->mutex);
  data->graphs.erase(id);
  return kSuccess;
}

// The reply of ge.compile: "1;0:3,4;9:" is static, then type and sizes of each output; after '|' pairs of an input and
// the output that shares its memory.
static void read_summary(const std::string& reply, SummaryData* summary) {
  const char* at = reply.c_str();
  summary->fixed = *at == '1';
  while (*at != 0 && *at != ';') ++at;
  while (*at == ';') {
    char* end = nullptr;
    summary->dtypes.push_back(static_cast<int>(std::strtol(at + 1, &end, 10)));
    std::vector<int64_t> dims;
    at = end + 1;  // past ':'
    while (*at != 0 && *at != ';' && *at != '|') {
      dims.push_back(std::strtoll(at, &end, 10));
      at = *end == ',' ? end + 1 : end;
    }
    summary->shapes.push_back(dims);
  }
  while (*at == '|') {
    char* end = nullptr;
    const auto input = static_cast<uint32_t>(std::strtoul(at + 1, &end, 10));
    const auto output = static_cast<uint32_t>(std::strtoul(end + 1, &end, 10));
    summary->same_addresses.emplace_back(input, output);
    at = end;
  }
}

Status compile(const std::shared_ptr<GraphEntry>& entry) {
  std::lock_guard<std::mutex> lock(entry->mutex);
  if (entry->handle >= 0) return kSuccess;
  const std::string text = options_json(entry->options);
  const std::string& bytes = entry->graph->bytes;
  emu::bridge::GilReleased released;  // other threads of Python go on; the call takes the lock again
  const auto answer = emu::bridge::call(
      "ge.compile", text.data(), text.size(),
      {reinterpret_cast<int64_t>(bytes.data()), static_cast<int64_t>(bytes.size()), static_cast<int64_t>(entry->id)});
  if (answer.value < 0) return kFailed;
  auto summary = std::make_shared<SummaryData>();
  read_summary(answer.reply, summary.get());
  summary->const_bytes = summary->fixed ? 512 : 0;
  summary->feature_bytes = summary->fixed ? 1024 : 0;
  summary->fixed_bytes = 512;
  auto refresh = entry->options.find(AscendString("ge.featureBaseRefreshable"));
  summary->refreshable = refresh != entry->options.end() && refresh->second == AscendString("1");
  entry->summary = summary;
  entry->handle = answer.value;
  return kSuccess;
}

Status Session::CompileGraph(uint32_t id) {
  std::shared_ptr<GraphEntry> entry;
  if (Status code = find_graph(id_, id, "CompileGraph", &entry)) return code;
  return compile(entry);
}

std::shared_ptr<CompiledGraphSummary> Session::GetCompiledGraphSummary(uint32_t id) {
  std::shared_ptr<GraphEntry> entry;
  if (find_graph(id_, id, "GetCompiledGraphSummary", &entry) != kSuccess || entry->summary == nullptr) return nullptr;
  return std::make_shared<CompiledGraphSummary>(entry->summary);
}

// Memory bases: the emulator needs none of it and holds callers to GE's rules.

Status Session::SetGraphConstMemoryBase(uint32_t id, const void* memory, size_t size) {
  std::shared_ptr<GraphEntry> entry;
  if (Status code = find_graph(id_, id, "SetGraphConstMemoryBase", &entry)) return code;
  if (entry->summary == nullptr) return refuse("E19999", "SetGraphConstMemoryBase before CompileGraph (GE_GRAPH_NOT_BUILT)");
  if (!entry->summary->fixed) return refuse("E19999", "SetGraphConstMemoryBase: the graph is dynamic (GE_GRAPH_UNSUPPORTED)");
  if (entry->const_base || entry->loaded)
    return refuse("E19999", "SetGraphConstMemoryBase: given before, or loaded (GE_GRAPH_REPEAT_OPERATION)");
  if (memory == nullptr || size < entry->summary->const_bytes)
    return refuse("E19999", "SetGraphConstMemoryBase: null or too small (PARAM_INVALID)");
  entry->const_base = true;
  return kSuccess;
}

Status Session::UpdateGraphFeatureMemoryBase(uint32_t id, const void* memory, size_t size) {
  std::shared_ptr<GraphEntry> entry;
  if (Status code = find_graph(id_, id, "UpdateGraphFeatureMemoryBase", &entry)) return code;
  if (entry->summary == nullptr) return refuse("E19999", "UpdateGraphFeatureMemoryBase before CompileGraph");
  if (!entry->summary->fixed || entry->fixed_base || entry->refreshable_base)
    return refuse("E19999", "UpdateGraphFeatureMemoryBase: dynamic, or another base was set (GE_GRAPH_UNSUPPORTED)");
  if (entry->feature_base && !entry->summary->refreshable)
    return refuse("E19999", "UpdateGraphFeatureMemoryBase: the base is not refreshable (GE_GRAPH_REPEAT_OPERATION)");
  if (memory == nullptr || size < entry->summary->feature_bytes)
    return refuse("E19999", "UpdateGraphFeatureMemoryBase: null or too small (PARAM_INVALID)");
  entry->feature_base = true;
  return kSuccess;
}

Status Session::SetGraphFixedFeatureMemoryBase(uint32_t id, const void*, size_t) {
  std::shared_ptr<GraphEntry> entry;
  if (Status code = find_graph(id_, id, "SetGraphFixedFeatureMemoryBase", &entry)) return code;
  if (entry->summary == nullptr || entry->loaded)
    return refuse("E19999", "SetGraphFixedFeatureMemoryBase: before CompileGraph or after loading");
  if (entry->feature_base) return refuse("E19999", "SetGraphFixedFeatureMemoryBase: a feature base was set");
  entry->fixed_base = true;
  return kSuccess;
}

Status Session::UpdateGraphRefreshableFeatureMemoryBase(uint32_t id, const void*, size_t) {
  std::shared_ptr<GraphEntry> entry;
  if (Status code = find_graph(id_, id, "UpdateGraphRefreshableFeatureMemoryBase", &entry)) return code;
  if (entry->summary == nullptr || entry->feature_base)
    return refuse("E19999", "UpdateGraphRefreshableFeatureMemoryBase: before CompileGraph, or a feature base was set");
  entry->refreshable_base = true;
  return kSuccess;
}

Status Session::RegisterExternalAllocator(const void* stream, std::shared_ptr<Allocator> allocator) const {
  if (allocator == nullptr) return refuse("E19999", "RegisterExternalAllocator: the allocator is null");
  auto& e = engine();
  std::lock_guard<std::mutex> lock(e.mutex);
  e.allocators[stream] = std::move(allocator);
  return kSuccess;
}

Status Session::UnregisterExternalAllocator(const void* stream) const {
  auto& e = engine();
  std::lock_guard<std::mutex> lock(e.mutex);
  e.allocators.erase(stream);
  return kSuccess;
}

Status Session::LoadGraph(uint32_t id, const Options&, void*) const {
  std::shared_ptr<GraphEntry> entry;
  if (Status code = find_graph(id_, id, "LoadGraph", &entry)) return code;
  if (entry->handle < 0) return refuse("E10062", "LoadGraph before CompileGraph");
  if (entry->loaded) return refuse("E19999", "LoadGraph: loaded before (GE_GRAPH_REPEAT_OPERATION)");
  entry->loaded = true;
  return kSuccess;
}

// Summary

bool CompiledGraphSummary::IsStatic() const { return data_->fixed; }
Status CompiledGraphSummary::GetConstMemorySize(size_t& size) const { return size = data_->const_bytes, kSuccess; }
Status CompiledGraphSummary::GetFeatureMemorySize(size_t& size) const { return size = data_->feature_bytes, kSuccess; }
Status CompiledGraphSummary::GetFixedFeatureMemorySize(size_t& size) const { return size = data_->fixed_bytes, kSuccess; }
Status CompiledGraphSummary::GetRefreshableFeatureMemorySize(size_t& size) const { return size = 512, kSuccess; }
Status CompiledGraphSummary::GetFeatureMemoryBaseRefreshable(bool& is) const { return is = data_->refreshable, kSuccess; }
Status CompiledGraphSummary::GetStreamNum(size_t& number) const { return number = 1, kSuccess; }
Status CompiledGraphSummary::GetEventNum(size_t& number) const { return number = 0, kSuccess; }
Status CompiledGraphSummary::GetOutputShapes(std::vector<Shape>& shapes) const {
  if (!data_->fixed) return refuse("E19999", "GetOutputShapes: the graph is dynamic");
  shapes.clear();
  for (const auto& dims : data_->shapes) shapes.emplace_back(dims);
  return kSuccess;
}
Status CompiledGraphSummary::GetOutputDtypes(std::vector<DataType>& dtypes) const {
  dtypes.clear();
  for (int dtype : data_->dtypes) dtypes.push_back(DataType(dtype));
  return kSuccess;
}
Status CompiledGraphSummary::GetIOIndexesWithSameAddr(std::vector<std::pair<uint32_t, uint32_t>>& pairs) const {
  return pairs = data_->same_addresses, kSuccess;
}

AscendString GEGetErrorMsgV2() { return AscendString(emu::take_error_text()); }
AscendString GEGetWarningMsgV2() { return AscendString(""); }

}  // namespace ge

// For the one function whose result is a string of the old layout: see old_abi.cpp.
extern "C" const char* TairEmulatorTakeError() { return emu::take_error_text(); }
