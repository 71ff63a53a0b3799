// Opening CANN's libraries at run time and finding the functions that the runner calls.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cann_abi.h"

namespace cann {

// Order of option maps as the libraries have it: by text.
struct StringLess {
  bool operator()(const AscendString& a, const AscendString& b) const;
};
using OptionMap = std::map<AscendString, AscendString, StringLess>;
static_assert(sizeof(OptionMap) == 48);
using Options = std::map<std::string, std::string>;

// One member a function; a null one was not found. Member functions take the object first, results that are classes
// come back by value as the platform's C++ ABI has it.
struct Api {
  // libascendcl
  AclError (*init)(const char* config);
  AclError (*finalize)();
  AclError (*device_count)(uint32_t* count);
  AclError (*set_device)(int32_t device);
  AclError (*reset_device)(int32_t device);
  AclError (*get_device)(int32_t* device);
  const char* (*soc_name)();
  AclError (*capability)(uint32_t device, int32_t fact, int64_t* value);
  AclError (*memory_info)(int32_t attribute, size_t* free, size_t* total);
  AclError (*create_stream)(Stream* stream);
  AclError (*destroy_stream)(Stream stream);
  AclError (*synchronize_stream)(Stream stream);
  AclError (*synchronize_device)();
  AclError (*query_stream)(Stream stream, int32_t* status);
  AclError (*malloc)(void** address, size_t bytes, int32_t policy);
  AclError (*free)(void* address);
  AclError (*memcpy_async)(void* to, size_t room, const void* from, size_t bytes, int32_t kind, Stream stream);
  const char* (*recent_error)();
  AclError (*version)(int32_t package, void* found);
  AclError (*version_text)(char* package, char* found);

  // libhccl: null on hosts whose graphs have no collectives
  HcclResult (*root_info)(void* info);
  HcclResult (*comm_init)(uint32_t ranks, const void* info, uint32_t rank, HcclComm* comm);
  HcclResult (*comm_name)(HcclComm comm, char* name);
  HcclResult (*comm_destroy)(HcclComm comm);
  const char* (*hccl_error)(HcclResult code);

  // libgraph
  void (*string_make)(AscendString* self, const char* text);
  const char* (*string_text)(const AscendString* self);
  bool (*string_less)(const AscendString* self, const AscendString& other);
  void (*graph_make)(Graph* self, const char* name);
  Status (*graph_load)(Graph* self, const void* bytes, size_t size);
  std::vector<int64_t> (*shape_dims)(const Shape* self);
  void (*shape_make)(Shape* self, const std::vector<int64_t>& dims);
  void (*desc_make)(TensorDesc* self);
  void (*desc_set_dtype)(TensorDesc* self, int32_t dtype);
  void (*desc_set_format)(TensorDesc* self, int32_t format);
  void (*desc_set_origin_format)(TensorDesc* self, int32_t format);
  void (*desc_set_origin_shape)(TensorDesc* self, const Shape& shape);
  void (*desc_set_placement)(TensorDesc* self, int32_t placement);
  void (*tensor_make)(GeTensor* self);
  Status (*tensor_set_desc)(GeTensor* self, const TensorDesc& desc);
  Status (*tensor_set_rank)(GeTensor* self, size_t rank);
  Status (*tensor_set_dim)(GeTensor* self, size_t index, int64_t size);
  Status (*tensor_set_data)(GeTensor* self, uint8_t* data, size_t bytes, const std::function<void(uint8_t*)>& drop);
  Status (*tensor_reset_data)(GeTensor* self, uint8_t* data, size_t bytes, const std::function<void(uint8_t*)>& drop);
  std::unique_ptr<uint8_t[], std::function<void(uint8_t*)>> (*tensor_take_data)(GeTensor* self);
  int32_t (*tensor_dtype)(const GeTensor* self);
  size_t (*tensor_rank)(const GeTensor* self);
  int64_t (*tensor_dim)(const GeTensor* self, size_t index);

  // libge_runner
  Status (*ge_initialize)(const OptionMap& options);
  Status (*ge_finalize)();
  void* error_text;  // returns a std::string of the old ABI: error_text.cc
  void (*session_make)(Session* self, const OptionMap& options);
  void (*session_end)(Session* self);
  Status (*add_graph)(Session* self, uint32_t id, const Graph& graph, const OptionMap& options);
  Status (*remove_graph)(Session* self, uint32_t id);
  Status (*compile_graph)(Session* self, uint32_t id);
  Summary (*summary)(Session* self, uint32_t id);
  bool (*is_static)(const void* summary);
  Status (*output_shapes)(const void* summary, std::vector<Shape>& shapes);
  Status (*output_dtypes)(const void* summary, std::vector<int32_t>& dtypes);
  Status (*const_bytes)(const void* summary, size_t& bytes);
  Status (*feature_bytes)(const void* summary, size_t& bytes);
  Status (*refreshable)(const void* summary, bool& yes);
  Status (*set_const_memory)(Session* self, uint32_t id, const void* memory, size_t bytes);
  Status (*update_feature_memory)(Session* self, uint32_t id, const void* memory, size_t bytes);
  Status (*register_allocator)(const Session* self, const void* stream, std::shared_ptr<Allocator> allocator);
  Status (*run_old)(Session* self, uint32_t id, void* stream, const std::vector<GeTensor>& inputs,
                    std::vector<GeTensor>& outputs);
  Status (*load_graph)(Session& session, uint32_t id, const OptionMap& options, void* stream);
  Status (*execute_graph)(Session& session, uint32_t id, void* stream, const std::vector<gert::Tensor>& inputs,
                          std::vector<gert::Tensor>& outputs);

  // Whether graphs are loaded and executed by the newer pair of functions; the older one call does both.
  bool executes() const { return load_graph != nullptr && execute_graph != nullptr; }
};

// What was looked for; one row of the table.
struct Finding {
  const char* library;
  const char* symbol;   // null for the library itself
  const char* purpose;  // what does not work without it
  bool required;        // for every graph
  bool found;
  std::string detail;  // where it was found, or the loader's own words
};

// Opens the libraries that are not open yet and fills the table. Libraries stay open: CANN starts threads in them.
std::vector<Finding> Open(Api& api);

// The functions in use; all null until Open.
Api& Functions();

// Text of GE's last error on this thread, empty if there is none; asking takes it away.
std::string GeErrorText();

AscendString Text(const std::string& text);
OptionMap Map(const Options& options);

}  // namespace cann
