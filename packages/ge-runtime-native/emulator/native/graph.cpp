// libgraph: texts, shapes, tensors, graphs as bytes.
#include <cstdio>
#include <cstring>

#include "bridge.h"
#include "ge.h"
#include "json.h"
#include "state.h"

namespace ge {

// AscendString

AscendString::AscendString(const char* text) {
  if (text != nullptr) text_ = std::make_shared<std::string>(text);
}
AscendString::AscendString(const char* text, size_t length) {
  if (text != nullptr) text_ = std::make_shared<std::string>(text, length);
}
const char* AscendString::GetString() const { return text_ == nullptr ? "" : text_->c_str(); }
size_t AscendString::GetLength() const { return text_ == nullptr ? 0 : text_->size(); }
size_t AscendString::Find(const AscendString& other) const {
  return text_ == nullptr ? std::string::npos : text_->find(other.GetString());
}
size_t AscendString::Hash() const { return std::hash<std::string>()(GetString()); }
bool AscendString::operator<(const AscendString& other) const {
  if (text_ == nullptr || other.text_ == nullptr) return text_ == nullptr && other.text_ != nullptr;
  return *text_ < *other.text_;
}
bool AscendString::operator>(const AscendString& other) const { return other < *this; }
bool AscendString::operator<=(const AscendString& other) const { return !(other < *this); }
bool AscendString::operator>=(const AscendString& other) const { return !(*this < other); }
bool AscendString::operator==(const AscendString& other) const { return !(*this < other) && !(other < *this); }
bool AscendString::operator!=(const AscendString& other) const { return !(*this == other); }

// Shape

Shape::Shape() : dims_(std::make_shared<std::vector<int64_t>>()) {}
Shape::Shape(const std::vector<int64_t>& dims) : dims_(std::make_shared<std::vector<int64_t>>(dims)) {}
size_t Shape::GetDimNum() const { return dims_ == nullptr ? 0 : dims_->size(); }
int64_t Shape::GetDim(size_t index) const { return index < GetDimNum() ? (*dims_)[index] : 0; }
graphStatus Shape::SetDim(size_t index, int64_t value) {
  if (index >= GetDimNum()) return kFailed;
  (*dims_)[index] = value;
  return kSuccess;
}
std::vector<int64_t> Shape::GetDims() const { return dims_ == nullptr ? std::vector<int64_t>() : *dims_; }
int64_t Shape::GetShapeSize() const {
  int64_t size = 1;
  for (int64_t dim : GetDims()) size = dim < 0 ? -1 : size * dim;
  return size;
}

// TensorDesc: a value, copies share nothing.

struct DescData {
  std::vector<int64_t> dims, origin_dims;
  Format format = Format(2), origin_format = Format(2);
  DataType dtype = DataType(0);
  Placement placement = Placement(0);
};

TensorDesc::TensorDesc() : data_(std::make_shared<DescData>()) {}
TensorDesc::TensorDesc(Shape shape, Format format, DataType dtype) : TensorDesc() {
  data_->dims = data_->origin_dims = shape.GetDims();
  data_->format = data_->origin_format = format;
  data_->dtype = dtype;
}
TensorDesc::TensorDesc(const TensorDesc& other) : data_(std::make_shared<DescData>(*other.data_)) {}
TensorDesc::TensorDesc(TensorDesc&& other) : data_(std::make_shared<DescData>(*other.data_)) {}
TensorDesc& TensorDesc::operator=(const TensorDesc& other) {
  data_ = std::make_shared<DescData>(*other.data_);
  return *this;
}
TensorDesc& TensorDesc::operator=(TensorDesc&& other) { return *this = static_cast<const TensorDesc&>(other); }
void TensorDesc::SetShape(const Shape& shape) { data_->dims = shape.GetDims(); }
Shape TensorDesc::GetShape() const { return Shape(data_->dims); }
graphStatus TensorDesc::SetOriginShape(const Shape& shape) { return data_->origin_dims = shape.GetDims(), kSuccess; }
Shape TensorDesc::GetOriginShape() const { return Shape(data_->origin_dims); }
void TensorDesc::SetFormat(Format format) { data_->format = format; }
Format TensorDesc::GetFormat() const { return data_->format; }
void TensorDesc::SetOriginFormat(Format format) { data_->origin_format = format; }
Format TensorDesc::GetOriginFormat() const { return data_->origin_format; }
void TensorDesc::SetDataType(DataType dtype) { data_->dtype = dtype; }
DataType TensorDesc::GetDataType() const { return data_->dtype; }
void TensorDesc::SetPlacement(Placement placement) { data_->placement = placement; }
Placement TensorDesc::GetPlacement() const { return data_->placement; }

// Tensor: a handle, copies share the data.

struct TensorState {
  DescData desc;
  uint8_t* data = nullptr;
  size_t size = 0;
  Tensor::DeleteFunc deleter;
  std::vector<uint8_t> own;

  void clear() {
    if (data != nullptr && deleter) deleter(data);
    data = nullptr;
    size = 0;
    deleter = nullptr;
  }
  ~TensorState() { clear(); }
};

namespace {

graphStatus set_dim(std::vector<int64_t>* dims, size_t index, int64_t value) {
  if (index >= dims->size()) return kFailed;
  (*dims)[index] = value;
  return kSuccess;
}

}  // namespace

Tensor::Tensor() : state_(std::make_shared<TensorState>()) {}
graphStatus Tensor::SetTensorDesc(const TensorDesc& desc) {
  DescData& d = state_->desc;
  d.dims = desc.GetShape().GetDims();
  d.origin_dims = desc.GetOriginShape().GetDims();
  d.format = desc.GetFormat();
  d.origin_format = desc.GetOriginFormat();
  d.dtype = desc.GetDataType();
  d.placement = desc.GetPlacement();
  return kSuccess;
}
TensorDesc Tensor::GetTensorDesc() const {
  const DescData& d = state_->desc;
  TensorDesc desc(Shape(d.dims), d.format, d.dtype);
  desc.SetOriginShape(Shape(d.origin_dims));
  desc.SetOriginFormat(d.origin_format);
  desc.SetPlacement(d.placement);
  return desc;
}
graphStatus Tensor::SetData(uint8_t* data, size_t size, const DeleteFunc& deleter) {
  state_->clear();
  state_->data = data;
  state_->size = size;
  state_->deleter = deleter;
  return kSuccess;
}
graphStatus Tensor::SetData(const uint8_t* data, size_t size) {
  state_->clear();
  state_->own.assign(data, data + size);
  state_->data = state_->own.data();
  state_->size = size;
  return kSuccess;
}
graphStatus Tensor::ResetData(uint8_t* data, size_t size, const DeleteFunc& deleter) {
  return SetData(data, size, deleter);
}
std::unique_ptr<uint8_t[], Tensor::DeleteFunc> Tensor::ResetData() {
  auto nothing = [](uint8_t*) {};
  DeleteFunc deleter = state_->deleter ? state_->deleter : DeleteFunc(nothing);
  std::unique_ptr<uint8_t[], DeleteFunc> given(state_->data, deleter);
  state_->deleter = nullptr;
  state_->data = nullptr;
  state_->size = 0;
  return given;
}
uint8_t* Tensor::GetData() { return state_->data; }
const uint8_t* Tensor::GetData() const { return state_->data; }
size_t Tensor::GetSize() const { return state_->size; }
Tensor Tensor::Clone() const {
  Tensor made;
  made.state_->desc = state_->desc;
  if (state_->data != nullptr) made.SetData(state_->data, state_->size);
  return made;
}
graphStatus Tensor::SetDataType(const DataType& dtype) { return state_->desc.dtype = dtype, kSuccess; }
DataType Tensor::GetDataType() const { return state_->desc.dtype; }
graphStatus Tensor::SetFormat(const Format& format) { return state_->desc.format = format, kSuccess; }
Format Tensor::GetFormat() const { return state_->desc.format; }
graphStatus Tensor::SetOriginFormat(const Format& format) { return state_->desc.origin_format = format, kSuccess; }
Format Tensor::GetOriginFormat() const { return state_->desc.origin_format; }
graphStatus Tensor::SetPlacement(const Placement& placement) { return state_->desc.placement = placement, kSuccess; }
Placement Tensor::GetPlacement() const { return state_->desc.placement; }
graphStatus Tensor::SetShapeDimNum(size_t rank) { return state_->desc.dims.resize(rank), kSuccess; }
size_t Tensor::GetShapeDimNum() const { return state_->desc.dims.size(); }
graphStatus Tensor::SetShapeDim(size_t index, int64_t value) { return set_dim(&state_->desc.dims, index, value); }
int64_t Tensor::GetShapeDim(size_t index) const {
  return index < state_->desc.dims.size() ? state_->desc.dims[index] : 0;
}
graphStatus Tensor::SetOriginShapeDimNum(size_t rank) { return state_->desc.origin_dims.resize(rank), kSuccess; }
size_t Tensor::GetOriginShapeDimNum() const { return state_->desc.origin_dims.size(); }
graphStatus Tensor::SetOriginShapeDim(size_t index, int64_t value) {
  return set_dim(&state_->desc.origin_dims, index, value);
}
int64_t Tensor::GetOriginShapeDim(size_t index) const {
  return index < state_->desc.origin_dims.size() ? state_->desc.origin_dims[index] : 0;
}

// Graph: bytes, and a list of its nodes.

struct NodeData {
  std::string name, type;
};

GNode::GNode() = default;
GNode::GNode(std::shared_ptr<NodeData> data) : data_(std::move(data)) {}
graphStatus GNode::GetType(AscendString& type) const {
  if (data_ == nullptr) return kFailed;
  type = AscendString(data_->type.c_str());
  return kSuccess;
}
graphStatus GNode::GetName(AscendString& name) const {
  if (data_ == nullptr) return kFailed;
  name = AscendString(data_->name.c_str());
  return kSuccess;
}

Graph::Graph() = default;
Graph::Graph(const char* name) : data_(std::make_shared<GraphData>()) { data_->name = name == nullptr ? "" : name; }

graphStatus Graph::LoadFromSerializedModelArray(const void* bytes, size_t size) {
  if (bytes == nullptr || size == 0 || size > 2147483647) {
    emu::fail(acl::kInvalidParam, "E18888: model bytes: %zu at %p; 1 to 2147483647 are taken", size, bytes);
    return kFailed;
  }
  // The reply lists the nodes, name and type in turn, each ended by a zero byte.
  const auto answer = emu::bridge::call("ge.read", bytes, size);
  if (answer.value < 0) return kFailed;
  if (data_ == nullptr) data_ = std::make_shared<GraphData>();  // callers make a Graph without calling the library
  data_->bytes.assign(static_cast<const char*>(bytes), size);
  data_->nodes.clear();
  const std::string& reply = answer.reply;
  for (size_t at = 0; at < reply.size();) {
    std::string name = reply.c_str() + at;
    at += name.size() + 1;
    std::string type = reply.c_str() + at;
    at += type.size() + 1;
    data_->nodes.emplace_back(std::move(name), std::move(type));
  }
  return kSuccess;
}

graphStatus Graph::SaveToFile(const char* path) const {
  std::FILE* file = path == nullptr || data_ == nullptr ? nullptr : std::fopen(path, "wb");
  if (file == nullptr) {
    emu::fail(acl::kInvalidParam, "E19999: %s cannot be written", path == nullptr ? "(null)" : path);
    return kFailed;
  }
  const bool whole = std::fwrite(data_->bytes.data(), 1, data_->bytes.size(), file) == data_->bytes.size();
  return std::fclose(file) == 0 && whole ? kSuccess : kFailed;
}

graphStatus Graph::CopyFrom(const Graph& other) {
  if (other.data_ == nullptr) return kFailed;
  data_ = std::make_shared<GraphData>(*other.data_);
  data_->added = false;
  return kSuccess;
}

std::vector<GNode> Graph::GetAllNodes() const {
  std::vector<GNode> nodes;
  if (data_ == nullptr) return nodes;
  for (const auto& [name, type] : data_->nodes) nodes.emplace_back(std::make_shared<NodeData>(NodeData{name, type}));
  return nodes;
}
graphStatus Graph::GetName(AscendString& name) const { return name = AscendString(data_ == nullptr ? "" : data_->name.c_str()), kSuccess; }
bool Graph::IsValid() const { return data_ != nullptr && !data_->bytes.empty(); }

// Operators: asked for their ports and attributes only; the answers come from the same schemas as everything else.

struct OperatorData {
  std::string name, type;
};

Operator::Operator(const char* name, const char* type) : data_(std::make_shared<OperatorData>()) {
  data_->name = name;
  data_->type = type;
}

graphStatus Operator::UpdateInputDesc(const char* name, const TensorDesc&) {
  if (data_ == nullptr || name == nullptr) return kFailed;
  const std::string asked = data_->type + "\n" + name;
  return emu::bridge::call("schema.input", asked.data(), asked.size()).value == 1 ? kSuccess : kFailed;
}

graphStatus Operator::GetAllIrAttrNamesAndTypes(Options& attrs) const {
  if (data_ == nullptr) return kFailed;
  const auto answer = emu::bridge::call("schema.attrs", data_->type.data(), data_->type.size());
  if (answer.value < 0) return kFailed;
  for (size_t at = 0; at < answer.reply.size();) {
    const AscendString name(answer.reply.c_str() + at);
    at += name.GetLength() + 1;
    const AscendString kind(answer.reply.c_str() + at);
    at += kind.GetLength() + 1;
    attrs[name] = kind;
  }
  return kSuccess;
}

Operator OperatorFactory::CreateOperator(const char* name, const char* type) { return Operator(name, type); }

bool OperatorFactory::IsExistOp(const char* type) {
  return type != nullptr && emu::bridge::call("schema.exists", type, std::strlen(type)).value == 1;
}

AscendString GetFormatName(Format format) {
  const auto answer = emu::bridge::call("schema.format", "", 0, {format & 0xff});
  return AscendString(answer.value < 0 ? "RESERVED" : answer.reply.c_str());
}

}  // namespace ge
