// Declarations of our own for the classes of libgraph and libge_runner: names, sizes and order of members only.
// The classes that callers hold by value are one shared pointer to something only the library knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#define GE_API __attribute__((visibility("default")))

namespace ge {

enum DataType : int {};
enum Format : int {};
enum Placement : int {};
using Status = uint32_t;
using graphStatus = uint32_t;

inline constexpr Status kSuccess = 0;
inline constexpr Status kFailed = 0xFFFFFFFF;
inline constexpr Status kParamInvalid = 145000;

class GE_API AscendString {
 public:
  AscendString() = default;
  AscendString(const char* text);
  AscendString(const char* text, size_t length);
  const char* GetString() const;
  size_t GetLength() const;
  size_t Find(const AscendString& other) const;
  size_t Hash() const;
  bool operator<(const AscendString& other) const;
  bool operator>(const AscendString& other) const;
  bool operator<=(const AscendString& other) const;
  bool operator>=(const AscendString& other) const;
  bool operator==(const AscendString& other) const;
  bool operator!=(const AscendString& other) const;

 private:
  std::shared_ptr<std::string> text_;
};

using Options = std::map<AscendString, AscendString>;

class GE_API Shape {
 public:
  Shape();
  explicit Shape(const std::vector<int64_t>& dims);
  size_t GetDimNum() const;
  int64_t GetDim(size_t index) const;
  graphStatus SetDim(size_t index, int64_t value);
  std::vector<int64_t> GetDims() const;
  int64_t GetShapeSize() const;

 private:
  std::shared_ptr<std::vector<int64_t>> dims_;
};

struct DescData;
class GE_API TensorDesc {
 public:
  TensorDesc();
  explicit TensorDesc(Shape shape, Format format, DataType dtype);
  TensorDesc(const TensorDesc& other);
  TensorDesc(TensorDesc&& other);
  TensorDesc& operator=(const TensorDesc& other);
  TensorDesc& operator=(TensorDesc&& other);
  void SetShape(const Shape& shape);
  Shape GetShape() const;
  graphStatus SetOriginShape(const Shape& shape);
  Shape GetOriginShape() const;
  void SetFormat(Format format);
  Format GetFormat() const;
  void SetOriginFormat(Format format);
  Format GetOriginFormat() const;
  void SetDataType(DataType dtype);
  DataType GetDataType() const;
  void SetPlacement(Placement placement);
  Placement GetPlacement() const;

 private:
  std::shared_ptr<DescData> data_;
};

struct TensorState;
class GE_API Tensor {
 public:
  using DeleteFunc = std::function<void(uint8_t*)>;
  Tensor();
  graphStatus SetTensorDesc(const TensorDesc& desc);
  TensorDesc GetTensorDesc() const;
  graphStatus SetData(uint8_t* data, size_t size, const DeleteFunc& deleter);
  graphStatus SetData(const uint8_t* data, size_t size);
  graphStatus ResetData(uint8_t* data, size_t size, const DeleteFunc& deleter);
  std::unique_ptr<uint8_t[], DeleteFunc> ResetData();
  uint8_t* GetData();
  const uint8_t* GetData() const;
  size_t GetSize() const;
  Tensor Clone() const;
  graphStatus SetDataType(const DataType& dtype);
  DataType GetDataType() const;
  graphStatus SetFormat(const Format& format);
  Format GetFormat() const;
  graphStatus SetPlacement(const Placement& placement);
  Placement GetPlacement() const;
  graphStatus SetShapeDimNum(size_t rank);
  size_t GetShapeDimNum() const;
  graphStatus SetShapeDim(size_t index, int64_t value);
  int64_t GetShapeDim(size_t index) const;
  graphStatus SetOriginShapeDimNum(size_t rank);
  size_t GetOriginShapeDimNum() const;
  graphStatus SetOriginShapeDim(size_t index, int64_t value);
  int64_t GetOriginShapeDim(size_t index) const;
  graphStatus SetOriginFormat(const Format& format);
  Format GetOriginFormat() const;

 private:
  std::shared_ptr<TensorState> state_;
};

struct NodeData;
class GE_API GNode {
 public:
  GNode();
  explicit GNode(std::shared_ptr<NodeData> data);
  graphStatus GetType(AscendString& type) const;
  graphStatus GetName(AscendString& name) const;

 private:
  std::shared_ptr<NodeData> data_;
};

// What a Graph shares with the session after AddGraph.
struct GraphData {
  std::string name;
  std::string bytes;  // ge.proto.ModelDef
  std::vector<std::pair<std::string, std::string>> nodes;  // name and type
  bool added = false;
};
class GE_API Graph {
 public:
  Graph();
  explicit Graph(const char* name);
  graphStatus LoadFromSerializedModelArray(const void* bytes, size_t size);
  graphStatus SaveToFile(const char* path) const;
  graphStatus CopyFrom(const Graph& other);
  std::vector<GNode> GetAllNodes() const;
  graphStatus GetName(AscendString& name) const;
  bool IsValid() const;
  const std::shared_ptr<GraphData>& data() const { return data_; }

 private:
  std::shared_ptr<GraphData> data_;
};

struct OperatorData;
class GE_API Operator {
 public:
  Operator() = default;
  Operator(const char* name, const char* type);
  virtual ~Operator() = default;
  graphStatus UpdateInputDesc(const char* name, const TensorDesc& desc);
  graphStatus GetAllIrAttrNamesAndTypes(Options& attrs) const;

 private:
  std::shared_ptr<OperatorData> data_;
};

class GE_API OperatorFactory {
 public:
  static Operator CreateOperator(const char* name, const char* type);
  static bool IsExistOp(const char* type);
};

GE_API AscendString GetFormatName(Format format);

// The caller's allocator.
class MemBlock;
class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual MemBlock* Malloc(size_t size) = 0;
  virtual void Free(MemBlock* block) = 0;
  virtual MemBlock* MallocAdvise(size_t size, void*) { return Malloc(size); }
};

class MemBlock {
 public:
  explicit MemBlock(Allocator& allocator, void* address, size_t size)
      : allocator_(allocator), address_(address), count_(1), size_(size) {}
  virtual ~MemBlock() = default;
  void* address() { return address_; }
  void drop() {
    if (count_ > 0 && --count_ == 0) allocator_.Free(this);
  }
  void share() { ++count_; }

 private:
  Allocator& allocator_;
  void* address_;
  size_t count_;
  size_t size_;
};

struct SummaryData;
class GE_API CompiledGraphSummary {
 public:
  explicit CompiledGraphSummary(std::shared_ptr<SummaryData> data) : data_(std::move(data)) {}
  bool IsStatic() const;
  Status GetConstMemorySize(size_t& size) const;
  Status GetFeatureMemorySize(size_t& size) const;
  Status GetFixedFeatureMemorySize(size_t& size) const;
  Status GetRefreshableFeatureMemorySize(size_t& size) const;
  Status GetFeatureMemoryBaseRefreshable(bool& refreshable) const;
  Status GetStreamNum(size_t& number) const;
  Status GetEventNum(size_t& number) const;
  Status GetOutputShapes(std::vector<Shape>& shapes) const;
  Status GetOutputDtypes(std::vector<DataType>& dtypes) const;
  Status GetIOIndexesWithSameAddr(std::vector<std::pair<uint32_t, uint32_t>>& pairs) const;

 private:
  std::shared_ptr<SummaryData> data_;
};

class GE_API Session {
 public:
  explicit Session(const Options& options);
  ~Session();
  Status AddGraph(uint32_t id, const Graph& graph);
  Status AddGraph(uint32_t id, const Graph& graph, const Options& options);
  Status AddGraphWithCopy(uint32_t id, const Graph& graph, const Options& options);
  Status RemoveGraph(uint32_t id);
  Status CompileGraph(uint32_t id);
  std::shared_ptr<CompiledGraphSummary> GetCompiledGraphSummary(uint32_t id);
  Status SetGraphConstMemoryBase(uint32_t id, const void* memory, size_t size);
  Status UpdateGraphFeatureMemoryBase(uint32_t id, const void* memory, size_t size);
  Status SetGraphFixedFeatureMemoryBase(uint32_t id, const void* memory, size_t size);
  Status UpdateGraphRefreshableFeatureMemoryBase(uint32_t id, const void* memory, size_t size);
  Status RegisterExternalAllocator(const void* stream, std::shared_ptr<Allocator> allocator) const;
  Status UnregisterExternalAllocator(const void* stream) const;
  Status LoadGraph(uint32_t id, const Options& options, void* stream) const;
  Status RunGraph(uint32_t id, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs);
  Status RunGraphWithStreamAsync(uint32_t id, void* stream, const std::vector<Tensor>& inputs,
                                 std::vector<Tensor>& outputs);
  uint64_t id() const { return id_; }

 private:
  uint64_t id_ = 0;
};

GE_API Status GEInitialize(const Options& options);
GE_API Status GEFinalize();
GE_API AscendString GEGetErrorMsgV2();
GE_API AscendString GEGetWarningMsgV2();

}  // namespace ge

// Run-time tensors: plain layouts, no function of theirs is linked.
namespace gert {

struct Shape {
  size_t rank;
  int64_t dims[25];
  uint8_t reserved[40];
};

struct StorageShape {
  Shape origin, storage;
  uint8_t reserved[40];
};

struct StorageFormat {
  int32_t origin, storage;
  uint64_t expand;
  uint8_t expand_reserved[40];
  uint8_t reserved[40];
};

using Manager = uint32_t (*)(void* block, int operation, void** out);

struct TensorData {
  void* address;
  Manager manager;
  size_t size;
  int32_t placement;
  uint32_t reserved;
  uint8_t more_reserved[40];
};

struct Tensor {
  StorageShape shape;
  StorageFormat format;
  uint8_t version;
  uint8_t reserved[3];
  int32_t dtype;
  TensorData data;
  uint8_t more_reserved[40];
};

inline constexpr int32_t kDevice = 0;
inline constexpr int32_t kHost = 1;
inline constexpr int32_t kFormatReserved = 40;

}  // namespace gert

static_assert(sizeof(ge::AscendString) == 16 && sizeof(ge::Shape) == 16 && sizeof(ge::TensorDesc) == 16);
static_assert(sizeof(ge::Tensor) == 16 && sizeof(ge::Graph) == 16 && sizeof(ge::GNode) == 16);
static_assert(sizeof(ge::Operator) == 24 && sizeof(ge::Session) == 8 && sizeof(ge::CompiledGraphSummary) == 16);
static_assert(sizeof(ge::Allocator) == 8 && sizeof(ge::MemBlock) == 40 && sizeof(ge::Tensor::DeleteFunc) == 32);
static_assert(sizeof(gert::Shape) == 248 && sizeof(gert::StorageShape) == 536 && sizeof(gert::StorageFormat) == 96);
static_assert(sizeof(gert::TensorData) == 72 && sizeof(gert::Tensor) == 752);
static_assert(offsetof(gert::Tensor, format) == 536 && offsetof(gert::Tensor, version) == 632);
static_assert(offsetof(gert::Tensor, dtype) == 636 && offsetof(gert::Tensor, data) == 640);
static_assert(sizeof(ge::Options) == 48);
