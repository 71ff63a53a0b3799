// Adding, compiling, loading and running one graph.
#include <cstring>

#include "session.h"

using cann::Fail;
using cann::FailEngine;
using cann::Functions;
using cann::StreamState;
using cann::TheRunner;
namespace gert = cann::gert;

namespace {

constexpr int32_t kUndefined = 28;

// Bits of an element by GE's header number; 0 where there is no fixed size.
constexpr uint8_t kBits[] = {32, 16, 8, 32, 8, 0, 16, 16, 32, 64, 64, 64, 8,  0, 8, 8, 64, 128, 8, 16, 32,
                             8,  16, 64, 0, 40, 64, 16, 0, 4, 1, 2, 2, 32, 8, 8, 8, 8, 6, 6, 4, 4};

bool BytesOf(int32_t dtype, int32_t rank, const int64_t* dims, uint64_t* bytes) {
  if (dtype < 0 || static_cast<size_t>(dtype) >= sizeof(kBits) || kBits[dtype] == 0) return false;
  uint64_t count = 1;
  for (int32_t i = 0; i < rank; ++i) {
    if (dims[i] < 0 || __builtin_mul_overflow(count, static_cast<uint64_t>(dims[i]), &count)) return false;
  }
  uint64_t bits = 0;
  if (__builtin_mul_overflow(count, static_cast<uint64_t>(kBits[dtype]), &bits)) return false;
  *bytes = bits / 8 + (bits % 8 != 0 ? 1 : 0);
  return true;
}

void SetShape(gert::Shape& shape, int32_t rank, const int64_t* dims) {
  shape.rank = static_cast<size_t>(rank);
  std::memcpy(shape.dims, dims, sizeof(int64_t) * static_cast<size_t>(rank));
}

const std::function<void(uint8_t*)>& Keep() {
  static const std::function<void(uint8_t*)> keep = [](uint8_t*) {};
  return keep;
}

// Sizes of the result vectors are fixed once, so that running allocates nothing.
template <typename T>
std::vector<T> Empty(size_t n) {
  std::vector<T> made(n);
  return made;
}

}  // namespace

struct gec_graph {
  gec_graph(const char* graph_name, size_t n_inputs, size_t n_outputs)
      : name(graph_name), outputs(n_outputs), described(n_inputs, false), bytes(n_inputs, 0) {
    for (gec_value& value : outputs) {
      std::memset(&value, 0, sizeof(value));
      value.dtype = kUndefined;
    }
  }

  std::string name;
  uint32_t id = 0;
  uint64_t generation = 0;
  std::mutex mutex;
  bool compiled = false;
  bool loaded = false;
  bool is_static = false;
  std::vector<gec_value> outputs;
  std::vector<bool> described;
  std::vector<uint64_t> bytes;
  // one pair is in use, by what the library offers
  std::vector<gert::Tensor> in;
  std::vector<gert::Tensor> out;
  std::vector<cann::GeTensor> old_in;
  std::vector<cann::GeTensor> old_out;
  uint64_t const_bytes = 0;
  uint64_t feature_bytes = 0;
  bool refreshable = false;
  cann::Memory const_from;
  cann::Stream const_stream = nullptr;
  void* const_memory = nullptr;
  void* feature_memory = nullptr;   // what GE was told last
  bool owns_feature_memory = false;
  void* scratch = nullptr;  // a valid address for tensors without elements
  cann::Memory scratch_from;
  cann::Stream scratch_stream = nullptr;

  std::string Called(const std::string& what) const { return what + " of graph '" + name + "'"; }
};

namespace {

int TakeFor(gec_graph& graph, cann::Stream stream, uint64_t size, cann::Memory* from, void** address) {
  *address = TheRunner().Take(stream, size, from);
  if (*address != nullptr) return GEC_OK;
  const std::string why = from->take == nullptr ? ": " + TheRunner().pool.why() : "";
  return Fail(GEC_MEMORY, "graph '" + graph.name + "' needs " + std::to_string(size) + " bytes of device memory" + why);
}

int Load(gec_graph& graph, cann::Stream stream, const cann::Options& options) {
  cann::Runner& runner = TheRunner();
  const cann::Api& api = Functions();
  runner.On(stream);  // registers the allocator
  if (graph.const_bytes != 0 && graph.const_memory == nullptr) {
    graph.const_stream = stream;
    if (const int failed = TakeFor(graph, stream, graph.const_bytes, &graph.const_from, &graph.const_memory)) {
      return failed;
    }
    const cann::Status status = api.set_const_memory(&runner.session, graph.id, graph.const_memory, graph.const_bytes);
    if (status != 0) return FailEngine(graph.Called("SetGraphConstMemoryBase"), status);
  }
  if (graph.feature_bytes != 0 && !graph.refreshable && graph.feature_memory == nullptr) {
    graph.const_stream = stream;
    if (const int failed = TakeFor(graph, stream, graph.feature_bytes, &graph.const_from, &graph.feature_memory)) {
      return failed;
    }
    graph.owns_feature_memory = true;
    const cann::Status status =
        api.update_feature_memory(&runner.session, graph.id, graph.feature_memory, graph.feature_bytes);
    if (status != 0) return FailEngine(graph.Called("UpdateGraphFeatureMemoryBase"), status);
  }
  if (api.executes()) {
    const cann::Status status = api.load_graph(runner.session, graph.id, cann::Map(options), stream);
    if (status != 0) return FailEngine(graph.Called("GeSessionLoadGraph"), status);
  }
  graph.loaded = true;
  return GEC_OK;
}

// The stream's work memory, large enough; told to GE when it is not what the graph knows. The stream's lock is held.
int ShareWork(gec_graph& graph, StreamState& state, cann::Stream stream) {
  cann::Runner& runner = TheRunner();
  if (state.work_bytes < graph.feature_bytes) {
    cann::Memory from;
    void* larger = nullptr;
    if (const int failed = TakeFor(graph, stream, graph.feature_bytes, &from, &larger)) return failed;
    cann::Runner::Give(from, stream, state.work);
    state.work = larger;
    state.work_bytes = graph.feature_bytes;
  }
  if (graph.feature_memory == state.work) return GEC_OK;
  const cann::Status status =
      Functions().update_feature_memory(&runner.session, graph.id, state.work, graph.feature_bytes);
  if (status != 0) return FailEngine(graph.Called("UpdateGraphFeatureMemoryBase"), status);
  graph.feature_memory = state.work;
  return GEC_OK;
}

void PrepareOutput(gec_graph& graph, size_t i, uint64_t address, bool executes) {
  const gec_value& known = graph.outputs[i];
  if (!executes) {
    cann::GeTensor& tensor = graph.old_out[i];
    const cann::Api& api = Functions();
    if (address != 0) {
      api.tensor_reset_data(&tensor, reinterpret_cast<uint8_t*>(address), known.bytes, Keep());
    } else {
      api.tensor_set_data(&tensor, nullptr, 0, Keep());
    }
    return;
  }
  gert::Tensor& tensor = graph.out[i];
  tensor.Drop();
  tensor.data.address = reinterpret_cast<void*>(address);
  tensor.data.bytes = address != 0 ? known.bytes : 0;
  tensor.data.placement = gert::kDevice;
  if (address == 0) tensor.format.origin = tensor.format.storage = cann::kFormatReserved;
}

int Collect(gec_graph& graph, size_t i, uint64_t address, bool executes, gec_value* value) {
  *value = graph.outputs[i];
  value->owner = nullptr;
  value->placement = GEC_ON_DEVICE;
  if (address != 0) {
    value->address = reinterpret_cast<void*>(address);
    return GEC_OK;
  }
  const cann::Api& api = Functions();
  auto owner = std::make_unique<gec_result>();
  owner->generation = graph.generation;
  size_t rank = 0;  // nothing throws from where the engine's memory changes hands
  if (executes) {
    gert::Tensor& tensor = graph.out[i];
    rank = tensor.shape.storage.rank;
    if (rank > cann::kMaxRank) return Fail(GEC_ENGINE, graph.Called("result rank") + " is not valid");
    value->dtype = tensor.dtype;
    std::memcpy(value->dims, tensor.shape.storage.dims, sizeof(int64_t) * rank);
    value->placement = tensor.data.placement == gert::kHost ? GEC_ON_HOST : GEC_ON_DEVICE;
    owner->block = tensor.data.address;
    owner->manager = tensor.data.manager;
    value->address = tensor.data.address;
    tensor.data.address = nullptr;
    tensor.data.manager = nullptr;
    if (owner->manager != nullptr) {
      const cann::Status status = owner->manager(owner->block, gert::kAddress, &value->address);
      if (status != 0) {
        gec_result_free(owner.release());
        return FailEngine(graph.Called("reading the address of a result"), status);
      }
    }
  } else {
    cann::GeTensor& tensor = graph.old_out[i];
    rank = api.tensor_rank(&tensor);
    if (rank > cann::kMaxRank) return Fail(GEC_ENGINE, graph.Called("result rank") + " is not valid");
    value->dtype = api.tensor_dtype(&tensor);
    for (size_t d = 0; d < rank; ++d) value->dims[d] = api.tensor_dim(&tensor, d);
    owner->data = api.tensor_take_data(&tensor);
    value->address = owner->data.get();
  }
  value->rank = static_cast<int32_t>(rank);
  if (!BytesOf(value->dtype, value->rank, value->dims, &value->bytes)) {
    gec_result_free(owner.release());
    return Fail(GEC_ENGINE, graph.Called("result " + std::to_string(i)) + " has no valid size or element type");
  }
  value->owner = owner.release();
  return GEC_OK;
}

int Describe(gec_graph& graph, size_t index, int32_t placement, int32_t dtype, int32_t rank, const int64_t* dims) {
  graph.described[index] = true;
  if (Functions().executes()) {
    gert::Tensor& tensor = graph.in[index];
    SetShape(tensor.shape.origin, rank, dims);
    SetShape(tensor.shape.storage, rank, dims);
    tensor.dtype = dtype;
    tensor.format.origin = tensor.format.storage = cann::kFormatNd;
    tensor.data.placement = placement == GEC_ON_DEVICE ? gert::kDevice : gert::kHost;
    tensor.data.bytes = graph.bytes[index];
    return GEC_OK;
  }
  const cann::Api& api = Functions();
  cann::TensorDesc desc;
  cann::Shape shape;
  api.desc_make(&desc);
  api.shape_make(&shape, std::vector<int64_t>(dims, dims + rank));
  api.desc_set_dtype(&desc, dtype);
  api.desc_set_format(&desc, cann::kFormatNd);
  api.desc_set_origin_format(&desc, cann::kFormatNd);
  api.desc_set_origin_shape(&desc, shape);
  const auto where = placement == GEC_ON_DEVICE ? cann::GePlacement::kDevice : cann::GePlacement::kHost;
  api.desc_set_placement(&desc, static_cast<int32_t>(where));
  cann::GeTensor& tensor = graph.old_in[index];
  cann::Status status = api.tensor_set_desc(&tensor, desc);
  if (status == 0) status = api.tensor_set_rank(&tensor, static_cast<size_t>(rank));
  for (int32_t d = 0; status == 0 && d < rank; ++d) {
    status = api.tensor_set_dim(&tensor, static_cast<size_t>(d), dims[d]);
  }
  return status == 0 ? GEC_OK : FailEngine(graph.Called("describing an input"), status);
}

void MakeTensors(std::vector<gert::Tensor>& tensors, size_t n) {
  tensors = Empty<gert::Tensor>(n);
  for (gert::Tensor& tensor : tensors) {
    // every byte is GE's to read, and a fresh tensor is all zeros but for its format, type and placement
    std::memset(static_cast<void*>(&tensor), 0, sizeof(tensor));
    tensor.format.origin = tensor.format.storage = cann::kFormatReserved;
    tensor.dtype = kUndefined;
    tensor.data.placement = gert::kUnset;
  }
}

bool HasOldRun(const cann::Api& api) {
  return api.run_old && api.shape_make && api.desc_make && api.desc_set_dtype && api.desc_set_format &&
         api.desc_set_origin_format && api.desc_set_origin_shape && api.desc_set_placement && api.tensor_make &&
         api.tensor_set_desc && api.tensor_set_rank && api.tensor_set_dim && api.tensor_set_data &&
         api.tensor_reset_data && api.tensor_take_data && api.tensor_dtype && api.tensor_rank && api.tensor_dim;
}

void MakeOldTensors(std::vector<cann::GeTensor>& tensors, size_t n) {
  tensors = Empty<cann::GeTensor>(n);
  for (cann::GeTensor& tensor : tensors) Functions().tensor_make(&tensor);
}

int ReadSummary(gec_graph& graph) {
  const cann::Api& api = Functions();
  const cann::Summary summary = api.summary(&TheRunner().session, graph.id);
  if (summary == nullptr) return FailEngine(graph.Called("GetCompiledGraphSummary"), 0xFFFFFFFFU);
  const void* found = summary.get();
  graph.is_static = api.is_static(found);
  if (!graph.is_static) return GEC_OK;
  std::vector<cann::Shape> shapes;
  std::vector<int32_t> dtypes;
  cann::Status status = api.output_shapes(found, shapes);
  if (status == 0) status = api.output_dtypes(found, dtypes);
  if (status != 0) return FailEngine(graph.Called("reading the results"), status);
  if (shapes.size() != graph.outputs.size() || dtypes.size() != graph.outputs.size()) {
    return Fail(GEC_ENGINE, graph.Called("summary") + " has " + std::to_string(shapes.size()) + " shapes and " +
                                std::to_string(dtypes.size()) + " element types for " +
                                std::to_string(graph.outputs.size()) + " results");
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    gec_value& value = graph.outputs[i];
    const std::vector<int64_t> dims = api.shape_dims(&shapes[i]);
    if (dims.size() > cann::kMaxRank) return Fail(GEC_ENGINE, graph.Called("result rank") + " is above 25");
    value.dtype = dtypes[i];
    value.rank = static_cast<int32_t>(dims.size());
    if (!dims.empty()) std::memcpy(value.dims, dims.data(), sizeof(int64_t) * dims.size());
    if (!BytesOf(value.dtype, value.rank, value.dims, &value.bytes)) value.bytes = 0;
  }
  size_t bytes = 0;
  if (api.const_bytes && api.set_const_memory && api.const_bytes(found, bytes) == 0) graph.const_bytes = bytes;
  bytes = 0;
  if (api.feature_bytes && api.update_feature_memory && api.feature_bytes(found, bytes) == 0) {
    graph.feature_bytes = bytes;
    if (api.refreshable == nullptr || api.refreshable(found, graph.refreshable) != 0) graph.refreshable = false;
  }
  return GEC_OK;
}

}  // namespace

void cann::ReleaseGraph(gec_graph* graph, bool session_lives) {
  const std::lock_guard<std::mutex> lock(graph->mutex);
  if (session_lives) Functions().remove_graph(&TheRunner().session, graph->id);
  graph->generation = 0;
  graph->out.clear();
  graph->old_out.clear();
  if (session_lives) {
    cann::Runner::Give(graph->const_from, graph->const_stream, graph->const_memory);
    if (graph->owns_feature_memory) {
      cann::Runner::Give(graph->const_from, graph->const_stream, graph->feature_memory);
    }
    cann::Runner::Give(graph->scratch_from, graph->scratch_stream, graph->scratch);
  }
  graph->const_memory = graph->feature_memory = graph->scratch = nullptr;
}

void cann::DeleteGraph(gec_graph* graph) { delete graph; }

namespace {

// Results that were handed over already, given back if the rest fails.
class Handed {
 public:
  explicit Handed(gec_value* results) : results_(results) {}
  ~Handed() {
    for (size_t i = 0; i < count_; ++i) {
      gec_result_free(results_[i].owner);
      results_[i].owner = nullptr;
    }
  }
  Handed(const Handed&) = delete;
  Handed& operator=(const Handed&) = delete;
  void Add() { ++count_; }
  void Keep() { count_ = 0; }

 private:
  gec_value* results_;
  size_t count_ = 0;
};

// A graph among those of the session, unless it could not be added.
class Listed {
 public:
  explicit Listed(gec_graph* graph) : graph_(graph) {
    cann::Runner& runner = TheRunner();
    const std::lock_guard<std::mutex> lock(runner.mutex);
    graph->id = runner.next_graph++;
    graph->generation = runner.generation;
    runner.graphs.insert(graph);
  }
  ~Listed() {
    if (graph_ == nullptr) return;
    const std::lock_guard<std::mutex> lock(TheRunner().mutex);
    TheRunner().graphs.erase(graph_);
  }
  Listed(const Listed&) = delete;
  Listed& operator=(const Listed&) = delete;
  void Keep() { graph_ = nullptr; }

 private:
  gec_graph* graph_;
};

}  // namespace

extern "C" {

int gec_graph_add(const char* name, const void* bytes, size_t size, const char* const* options, size_t n_options,
                  size_t n_inputs, size_t n_outputs, gec_graph** graph) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    *graph = nullptr;
    cann::Runner& runner = TheRunner();
    if (n_inputs > size || n_outputs > size) {  // each takes bytes of the graph
      return Fail(GEC_ARGUMENT, "a graph of " + std::to_string(size) + " bytes cannot have " + std::to_string(n_inputs) +
                                    " inputs and " + std::to_string(n_outputs) + " results");
    }
    if (const int failed = runner.Check(runner.generation)) return failed;
    const cann::Api& api = Functions();
    if (!api.executes() && !HasOldRun(api)) {
      return Fail(GEC_MISSING, "this CANN has neither GeSessionLoadGraph with GeSessionExecuteGraphWithStreamAsync nor "
                               "all that RunGraphWithStreamAsync needs: no graph can run");
    }
    cann::Graph made;
    api.graph_make(&made, name);
    cann::Status status = api.graph_load(&made, bytes, size);
    if (status != 0) return FailEngine(std::string("reading graph '") + name + "'", status);
    auto owner = std::make_unique<gec_graph>(name, n_inputs, n_outputs);
    cann::Options given;
    for (size_t i = 0; i < n_options; ++i) given[options[2 * i]] = options[2 * i + 1];
    Listed listed(owner.get());
    status = api.add_graph(&runner.session, owner->id, made, cann::Map(given));
    if (status != 0) return FailEngine(owner->Called("AddGraph"), status);
    listed.Keep();
    *graph = owner.release();
    return GEC_OK;
  });
}

int gec_graph_compile(gec_graph* graph) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    const std::lock_guard<std::mutex> lock(graph->mutex);
    if (const int failed = TheRunner().Check(graph->generation)) return failed;
    if (graph->compiled) return GEC_OK;
    const cann::Api& api = Functions();
    const cann::Status status = api.compile_graph(&TheRunner().session, graph->id);
    if (status != 0) return FailEngine(graph->Called("CompileGraph"), status);
    if (const int failed = ReadSummary(*graph)) return failed;
    if (api.executes()) {
      MakeTensors(graph->in, graph->described.size());
      MakeTensors(graph->out, graph->outputs.size());
      for (size_t i = 0; i < graph->outputs.size() && graph->is_static; ++i) {
        const gec_value& value = graph->outputs[i];
        gert::Tensor& tensor = graph->out[i];
        SetShape(tensor.shape.origin, value.rank, value.dims);
        SetShape(tensor.shape.storage, value.rank, value.dims);
        tensor.dtype = value.dtype;
        tensor.format.origin = tensor.format.storage = cann::kFormatNd;
      }
    } else {
      MakeOldTensors(graph->old_in, graph->described.size());
      MakeOldTensors(graph->old_out, graph->outputs.size());
      for (size_t i = 0; i < graph->outputs.size() && graph->is_static; ++i) {
        const gec_value& value = graph->outputs[i];
        cann::TensorDesc desc;
        cann::Shape shape;
        api.desc_make(&desc);
        api.shape_make(&shape, std::vector<int64_t>(value.dims, value.dims + value.rank));
        api.desc_set_dtype(&desc, value.dtype);
        api.desc_set_format(&desc, cann::kFormatNd);
        api.desc_set_origin_format(&desc, cann::kFormatNd);
        api.desc_set_origin_shape(&desc, shape);
        api.desc_set_placement(&desc, static_cast<int32_t>(cann::GePlacement::kDevice));
        api.tensor_set_desc(&graph->old_out[i], desc);
        api.tensor_set_rank(&graph->old_out[i], static_cast<size_t>(value.rank));
        for (int32_t d = 0; d < value.rank; ++d) {
          api.tensor_set_dim(&graph->old_out[i], static_cast<size_t>(d), value.dims[d]);
        }
      }
    }
    graph->compiled = true;
    return GEC_OK;
  });
}

int gec_graph_info(gec_graph* graph, int* is_static, size_t* n_outputs, uint64_t* const_bytes,
                   uint64_t* feature_bytes) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    const std::lock_guard<std::mutex> lock(graph->mutex);
    if (!graph->compiled) return Fail(GEC_STATE, graph->Called("asking for the results") + " before it is compiled");
    *is_static = graph->is_static ? 1 : 0;
    *n_outputs = graph->outputs.size();
    *const_bytes = graph->const_bytes;
    *feature_bytes = graph->feature_bytes;
    return GEC_OK;
  });
}

int gec_graph_output(gec_graph* graph, size_t index, gec_value* value) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    const std::lock_guard<std::mutex> lock(graph->mutex);
    if (index >= graph->outputs.size()) return Fail(GEC_ARGUMENT, graph->Called("result") + " does not exist");
    *value = graph->outputs[index];
    return GEC_OK;
  });
}

int gec_graph_load(gec_graph* graph, void* stream, const char* const* options, size_t n_options) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    const std::lock_guard<std::mutex> lock(graph->mutex);
    if (const int failed = TheRunner().Check(graph->generation)) return failed;
    if (!graph->compiled) return Fail(GEC_STATE, graph->Called("loading") + " before it is compiled");
    if (graph->loaded) return GEC_OK;
    cann::Options given;
    for (size_t i = 0; i < n_options; ++i) given[options[2 * i]] = options[2 * i + 1];
    return Load(*graph, stream, given);
  });
}

int gec_graph_describe(gec_graph* graph, size_t index, int32_t placement, int32_t dtype, int32_t rank,
                       const int64_t* dims) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    const std::lock_guard<std::mutex> lock(graph->mutex);
    if (!graph->compiled) return Fail(GEC_STATE, graph->Called("describing an input") + " before it is compiled");
    if (index >= graph->described.size()) {
      return Fail(GEC_ARGUMENT, graph->Called("input " + std::to_string(index)) + " does not exist");
    }
    if (rank < 0 || static_cast<size_t>(rank) > cann::kMaxRank ||
        !BytesOf(dtype, rank, dims, &graph->bytes[index])) {
      return Fail(GEC_ARGUMENT, graph->Called("input " + std::to_string(index)) +
                                    " has a rank above 25, a negative size or a type without a fixed size");
    }
    return Describe(*graph, index, placement, dtype, rank, dims);
  });
}

int gec_graph_run(gec_graph* graph, void* stream, const uint64_t* inputs, const uint64_t* outputs,
                  gec_value* results) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    const std::lock_guard<std::mutex> lock(graph->mutex);
    cann::Runner& runner = TheRunner();
    if (const int failed = runner.Check(graph->generation)) return failed;
    if (!graph->compiled) return Fail(GEC_STATE, graph->Called("running") + " before it is compiled");
    if (!graph->loaded) {
      if (const int failed = Load(*graph, stream, {})) return failed;
    }
    const cann::Api& api = Functions();
    const bool executes = api.executes();
    const size_t n_inputs = graph->described.size();
    const size_t n_outputs = graph->outputs.size();
    if (results == nullptr) {
      for (size_t i = 0; i < n_outputs; ++i) {
        if (outputs[i] == 0) return Fail(GEC_ARGUMENT, graph->Called("a result") + " has no place to go");
      }
    }
    for (size_t i = 0; i < n_inputs; ++i) {
      if (!graph->described[i]) {
        return Fail(GEC_ARGUMENT, graph->Called("input " + std::to_string(i)) + " is not described");
      }
      uint64_t address = inputs[i];
      if (address == 0) {
        if (graph->bytes[i] != 0) {
          return Fail(GEC_ARGUMENT, graph->Called("input " + std::to_string(i)) + " has the address 0");
        }
        if (graph->scratch == nullptr) {
          graph->scratch_stream = stream;
          if (const int failed = TakeFor(*graph, stream, 512, &graph->scratch_from, &graph->scratch)) return failed;
        }
        address = reinterpret_cast<uint64_t>(graph->scratch);
      }
      if (executes) {
        graph->in[i].data.address = reinterpret_cast<void*>(address);
      } else {
        const cann::Status status =
            api.tensor_reset_data(&graph->old_in[i], reinterpret_cast<uint8_t*>(address), graph->bytes[i], Keep());
        if (status != 0) return FailEngine(graph->Called("setting an input"), status);
      }
    }
    for (size_t i = 0; i < n_outputs; ++i) PrepareOutput(*graph, i, outputs[i], executes);
    StreamState& state = runner.On(stream);
    cann::Status status = 0;
    {
      std::unique_lock<std::mutex> in_order(state.mutex, std::defer_lock);
      if (graph->feature_bytes != 0 && graph->refreshable) {
        in_order.lock();
        if (const int failed = ShareWork(*graph, state, stream)) return failed;
      }
      status = executes ? api.execute_graph(runner.session, graph->id, stream, graph->in, graph->out)
                        : api.run_old(&runner.session, graph->id, stream, graph->old_in, graph->old_out);
    }
    if (status != 0) return FailEngine(graph->Called("running"), status);
    if (results == nullptr) return GEC_OK;
    Handed handed(results);
    for (size_t i = 0; i < n_outputs; ++i) {
      if (const int failed = Collect(*graph, i, outputs[i], executes, &results[i])) return failed;
      handed.Add();
    }
    handed.Keep();
    return GEC_OK;
  });
}

void gec_graph_free(gec_graph* graph) {
  if (graph == nullptr) return;
  (void)cann::Guarded([&]() -> int {
    const cann::Using use;
    cann::Runner& runner = TheRunner();
    bool known = false;
    if (!runner.forked()) {
      const std::lock_guard<std::mutex> lock(runner.mutex);
      if (runner.releasing == graph) {  // by this very thread, which deletes it when it is through
        runner.dropped = true;
        return GEC_OK;
      }
      known = runner.graphs.erase(graph) != 0;
    }
    const std::unique_ptr<gec_graph> owner(graph);
    // a graph may still be running on its stream, and its memory may not go before
    if (known && runner.Check(graph->generation) == GEC_OK) Functions().synchronize_device();
    if (known) cann::ReleaseGraph(graph, true);
    return GEC_OK;
  });
}

void gec_result_free(gec_result* result) {
  if (result == nullptr) return;
  (void)cann::Guarded([&]() -> int {
    const cann::Using use;
    cann::Runner& runner = TheRunner();
    const std::unique_ptr<gec_result> owner(result);
    const bool lives = !runner.forked() && runner.open && result->generation == runner.generation;
    if (!lives) {
      // its memory went with its session, and the code that would release it may not run any more
      (void)result->data.release();
    } else if (result->manager != nullptr) {
      result->manager(result->block, gert::kRelease, nullptr);
    }
    return GEC_OK;
  });
}

}  // extern "C"
