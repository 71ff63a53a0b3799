// Launching compiled graphs.
#include <time.h>

#include <cstring>

#include "bridge.h"
#include "memory.h"
#include "session.h"
#include "state.h"
#include "stream.h"

namespace ge {
namespace {

size_t bytes_of(const Value& value) {
  size_t count = 1;
  for (int64_t dim : value.dims) count *= dim < 0 ? 0 : static_cast<size_t>(dim);
  return acl::bytes_of(value.dtype, count);
}

Status check_device(const char* side, size_t index, const Value& value) {
  if (value.host || value.data == nullptr) return kSuccess;
  const std::string what = std::string(side) + " " + std::to_string(index);
  return emu::need_device("run graph", what.c_str(), value.data, value.size) == acl::kOk ? kSuccess : kParamInvalid;
}

void add_words(std::vector<int64_t>* words, const Value& value) {
  words->push_back(reinterpret_cast<int64_t>(value.data));
  words->push_back(static_cast<int64_t>(value.size));
  words->push_back(value.dtype);
  words->push_back(static_cast<int64_t>(value.dims.size()));
  words->insert(words->end(), value.dims.begin(), value.dims.end());
}

extern "C" aclError aclrtMalloc(void** address, size_t bytes, int policy);
extern "C" aclError aclrtFree(void* address);

// Sizes of all outputs from a reply such as "3,4;7;": one entry an output.
void read_sizes(const std::string& reply, std::vector<Value>* outputs) {
  const char* at = reply.c_str();
  for (auto& output : *outputs) {
    output.dims.clear();
    while (*at != 0 && *at != ';') {
      char* end = nullptr;
      output.dims.push_back(std::strtoll(at, &end, 10));
      at = *end == ',' ? end + 1 : end;
    }
    if (*at == ';') ++at;
  }
}

struct Launch {
  std::shared_ptr<GraphEntry> entry;
  std::vector<int64_t> words;
  std::vector<std::string> host;  // copies of host inputs: the caller's may be gone when the stream gets there
  std::string reply;

  aclError operator()() {
    const auto answer = emu::bridge::call("ge.run", "", 0, words);
    reply = answer.reply;
    return answer.value < 0 ? answer.error : acl::kOk;
  }
};

}  // namespace

Status run(const std::shared_ptr<GraphEntry>& entry, void* stream, const std::vector<Value>& inputs,
           std::vector<Value>* outputs, std::vector<Buffer>* made) {
  if (entry->handle < 0)
    if (Status code = compile(entry)) return code;
  const SummaryData& summary = *entry->summary;
  if (outputs->empty()) outputs->resize(summary.dtypes.size());
  if (outputs->size() != summary.dtypes.size())
    return refuse("E13025", "run graph " + std::to_string(entry->id) + ": " + std::to_string(outputs->size()) +
                  " outputs given, the graph has " + std::to_string(summary.dtypes.size()), kParamInvalid);
  std::lock_guard<std::mutex> lock(entry->mutex);
  entry->loaded = true;
  auto launch = std::make_shared<Launch>();
  launch->entry = entry;
  bool wait = entry->gears;
  for (const auto& output : *outputs) wait = wait || output.data == nullptr;
  // handle, whether results are kept, number of inputs, number of outputs, then the tensors
  launch->words = {entry->handle, wait ? 1 : 0, static_cast<int64_t>(inputs.size()), static_cast<int64_t>(outputs->size())};
  launch->host.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    Value value = inputs[i];
    if (Status code = check_device("input", i, value)) return code;
    if (bytes_of(value) > value.size)
      return refuse("E13025", "run graph: input " + std::to_string(i) + " has " + std::to_string(value.size) +
                    " bytes, its shape needs " + std::to_string(bytes_of(value)), kParamInvalid);
    if (value.host && value.data != nullptr) {
      launch->host.emplace_back(static_cast<const char*>(value.data), value.size);
      value.data = launch->host.back().data();
    }
    add_words(&launch->words, value);
  }
  for (size_t i = 0; i < outputs->size(); ++i) {
    if (Status code = check_device("output", i, (*outputs)[i])) return code;
    (*outputs)[i].dtype = summary.dtypes[i];
    add_words(&launch->words, (*outputs)[i]);
  }
  auto task = [launch] {
    const aclError code = (*launch)();
    --launch->entry->running;
    return code;
  };
  ++entry->running;
  if (emu::submit(stream, "graph", task) != acl::kOk) {
    --entry->running;
    return kFailed;
  }
  if (!wait) {
    for (size_t i = 0; i < outputs->size(); ++i) (*outputs)[i].dims = summary.shapes[i];
    return kSuccess;
  }
  // Sizes are known once the graph has run; then its results move into memory of the caller's allocator.
  if (emu::find_stream(stream)->wait(-1, acl::kRtStreamTimeout) != acl::kOk) return kFailed;
  read_sizes(launch->reply, outputs);
  made->resize(outputs->size());
  auto allocator = allocator_of(stream);
  std::vector<int64_t> store{entry->handle, static_cast<int64_t>(outputs->size())};
  for (size_t i = 0; i < outputs->size(); ++i) {
    Value& output = (*outputs)[i];
    const size_t needed = bytes_of(output);
    if (output.data == nullptr) {
      Buffer& buffer = (*made)[i];
      const size_t asked = needed == 0 ? 1 : needed;
      if (allocator != nullptr) {
        buffer.block = allocator->Malloc(asked);
        if (buffer.block == nullptr) return refuse("E19999", "the caller's allocator gave no memory");
      } else if (aclrtMalloc(&buffer.own, asked, 0) != acl::kOk) {
        return kFailed;
      }
      output.data = buffer.address();
      output.size = needed;
    } else if (output.size < needed) {
      return refuse("E13025", "run graph: output " + std::to_string(i) + " needs " + std::to_string(needed) +
                    " bytes, its buffer has " + std::to_string(output.size), kParamInvalid);
    }
    add_words(&store, output);
  }
  return emu::bridge::call("ge.store", launch->reply.data(), launch->reply.size(), store).value < 0 ? kFailed : kSuccess;
}

namespace {

Value value_of(const Tensor& tensor) {
  Value value;
  value.data = const_cast<uint8_t*>(tensor.GetData());
  value.size = tensor.GetSize();
  value.dtype = tensor.GetDataType();
  value.host = tensor.GetPlacement() == Placement(0);
  for (size_t i = 0; i < tensor.GetShapeDimNum(); ++i) value.dims.push_back(tensor.GetShapeDim(i));
  return value;
}

void give(Tensor* tensor, const Value& value, const Buffer& buffer) {
  tensor->SetDataType(DataType(value.dtype));
  tensor->SetFormat(Format(2));
  tensor->SetOriginFormat(Format(2));
  tensor->SetPlacement(Placement(1));
  tensor->SetShapeDimNum(value.dims.size());
  tensor->SetOriginShapeDimNum(value.dims.size());
  for (size_t i = 0; i < value.dims.size(); ++i) {
    tensor->SetShapeDim(i, value.dims[i]);
    tensor->SetOriginShapeDim(i, value.dims[i]);
  }
  if (buffer.address() == nullptr) return;
  auto* address = static_cast<uint8_t*>(buffer.address());
  tensor->SetData(address, value.size, [block = buffer.block](uint8_t* data) {
    if (block != nullptr)
      block->drop();
    else
      aclrtFree(data);
  });
}

Value value_of(const gert::Tensor& tensor) {
  Value value;
  value.data = tensor.data.address;
  if (tensor.data.manager != nullptr) tensor.data.manager(tensor.data.address, 0, &value.data);
  value.size = tensor.data.size;
  value.dtype = tensor.dtype;
  value.host = tensor.data.placement == gert::kHost || tensor.data.placement == 2;
  const size_t rank = tensor.shape.storage.rank > 25 ? 25 : tensor.shape.storage.rank;
  value.dims.assign(tensor.shape.storage.dims, tensor.shape.storage.dims + rank);
  return value;
}

uint32_t manage_block(void* block, int operation, void** out) {
  auto* held = static_cast<MemBlock*>(block);
  if (held == nullptr) return operation == 0 ? 1 : 0;
  switch (operation) {
    case 0: *out = held->address(); return 0;
    case 1: held->drop(); return 0;
    case 2: held->share(); return 0;
    default: return 1;
  }
}

struct OwnBlock {
  void* address;
  std::atomic<int> uses{1};
};

uint32_t manage_own(void* block, int operation, void** out) {
  auto* held = static_cast<OwnBlock*>(block);
  if (held == nullptr) return operation == 0 ? 1 : 0;
  switch (operation) {
    case 0: *out = held->address; return 0;
    case 1:
      if (--held->uses == 0) {
        aclrtFree(held->address);
        delete held;
      }
      return 0;
    case 2: ++held->uses; return 0;
    default: return 1;
  }
}

void give(gert::Tensor* tensor, const Value& value, const Buffer& buffer) {
  tensor->dtype = value.dtype;
  tensor->version = 0;
  tensor->format.origin = tensor->format.storage = 2;
  tensor->shape.origin.rank = tensor->shape.storage.rank = value.dims.size();
  for (size_t i = 0; i < value.dims.size() && i < 25; ++i)
    tensor->shape.origin.dims[i] = tensor->shape.storage.dims[i] = value.dims[i];
  if (buffer.address() == nullptr) return;
  if (buffer.block != nullptr) {
    tensor->data.address = buffer.block;
    tensor->data.manager = manage_block;
  } else {
    tensor->data.address = new OwnBlock{buffer.own};
    tensor->data.manager = manage_own;
  }
  tensor->data.size = value.size;
  tensor->data.placement = gert::kDevice;
}

// CPU time that this thread has spent launching graphs: benchmarks take it off a caller's, to know the caller's own.
thread_local int64_t launch_nanoseconds = 0;

struct Clock {
  static int64_t now() {
    timespec at{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
  }
  int64_t start = now();
  ~Clock() { launch_nanoseconds += now() - start; }
};

template <typename T>
Status run_tensors(uint64_t session, const char* call, uint32_t id, void* stream, bool needs_load,
                   const std::vector<T>& inputs, std::vector<T>& outputs) {
  const Clock clock;
  std::shared_ptr<GraphEntry> entry;
  if (Status code = find_graph(session, id, call, &entry)) return code;
  if (needs_load && !entry->loaded)
    return refuse("E10062", std::string(call) + " before LoadGraph", kParamInvalid);
  std::vector<Value> from, to;
  for (const auto& tensor : inputs) from.push_back(value_of(tensor));
  for (const auto& tensor : outputs) to.push_back(value_of(tensor));
  std::vector<Buffer> made;
  const bool all = outputs.empty();
  if (Status code = run(entry, stream, from, &to, &made)) return code;
  if (all) {
    std::vector<T> fresh(to.size());
    outputs.swap(fresh);
  }
  for (size_t i = 0; i < to.size(); ++i) {
    const Buffer buffer = i < made.size() ? made[i] : Buffer();
    if (all || buffer.address() != nullptr || entry->gears) give(&outputs[i], to[i], buffer);
  }
  return kSuccess;
}

}  // namespace

Status Session::RunGraphWithStreamAsync(uint32_t id, void* stream, const std::vector<Tensor>& inputs,
                                        std::vector<Tensor>& outputs) {
  return run_tensors(id_, "RunGraphWithStreamAsync", id, stream, false, inputs, outputs);
}

Status Session::RunGraph(uint32_t id, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
  outputs.clear();
  if (Status code = run_tensors(id_, "RunGraph", id, nullptr, false, inputs, outputs)) return code;
  if (emu::find_stream(nullptr)->wait(-1, acl::kRtStreamTimeout) != acl::kOk) return kFailed;
  for (auto& output : outputs) output.SetPlacement(Placement(0));  // the same memory serves as host memory
  return kSuccess;
}

}  // namespace ge

extern "C" {

GE_API int64_t TairEmulatorLaunchNanoseconds() { return ge::launch_nanoseconds; }

GE_API uint32_t GeSessionLoadGraph(ge::Session& session, uint32_t id, const ge::Options& options, void* stream) {
  return session.LoadGraph(id, options, stream);
}

GE_API uint32_t GeSessionExecuteGraphWithStreamAsync(ge::Session& session, uint32_t id, void* stream,
                                                     const std::vector<gert::Tensor>& inputs,
                                                     std::vector<gert::Tensor>& outputs) {
  return ge::run_tensors(session.id(), "ExecuteGraphWithStreamAsync", id, stream, true, inputs, outputs);
}

GE_API uint32_t GetRegisteredIrDef(const char* type, std::vector<std::pair<ge::AscendString, ge::AscendString>>& inputs,
                                   std::vector<std::pair<ge::AscendString, ge::AscendString>>& outputs,
                                   std::vector<std::pair<ge::AscendString, ge::AscendString>>& attrs) {
  if (type == nullptr) return ge::kFailed;
  const auto answer = emu::bridge::call("schema.ports", type, std::strlen(type));
  if (answer.value < 0) return ge::kFailed;
  // Three lists of name and kind, each entry ended by a zero byte, each list by an empty entry.
  std::vector<std::pair<ge::AscendString, ge::AscendString>>* lists[] = {&inputs, &outputs, &attrs};
  size_t at = 0;
  for (auto* list : lists) {
    while (at < answer.reply.size() && answer.reply[at] != 0) {
      const ge::AscendString name(answer.reply.c_str() + at);
      at += name.GetLength() + 1;
      const ge::AscendString kind(answer.reply.c_str() + at);
      at += kind.GetLength() + 1;
      list->emplace_back(name, kind);
    }
    ++at;
  }
  return ge::kSuccess;
}

}  // extern "C"
