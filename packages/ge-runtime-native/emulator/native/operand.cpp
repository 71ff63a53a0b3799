// Descriptions, buffers and attributes of single operators.
#include "operand.h"

#include <cstring>

#include "json.h"
#include "state.h"

using emu::fail;
namespace json = emu::json;

EMU_API aclTensorDesc* aclCreateTensorDesc(int dtype, int rank, const int64_t* dims, int format) {
  if (rank < 0 || (rank > 0 && dims == nullptr)) {
    fail(acl::kInvalidParam, "aclCreateTensorDesc: rank %d", rank);
    return nullptr;
  }
  auto* made = new aclTensorDesc;
  made->dtype = dtype;
  made->dims.assign(dims, dims + rank);
  made->storage_dims = made->dims;
  made->format = made->storage_format = format;
  return made;
}

EMU_API void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete desc; }

EMU_API int aclGetTensorDescType(const aclTensorDesc* desc) { return desc == nullptr ? acl::kUndefined : desc->dtype; }
EMU_API int aclGetTensorDescFormat(const aclTensorDesc* desc) { return desc == nullptr ? -1 : desc->format; }
EMU_API size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) { return desc == nullptr ? 0 : desc->dims.size(); }

EMU_API aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* dim) {
  if (desc == nullptr || dim == nullptr || index >= desc->dims.size())
    return fail(acl::kInvalidParam, "aclGetTensorDescDimV2: dimension %zu", index);
  *dim = desc->dims[index];
  return acl::kOk;
}

EMU_API int64_t aclGetTensorDescDim(const aclTensorDesc* desc, size_t index) {
  return desc == nullptr || index >= desc->dims.size() ? -1 : desc->dims[index];
}

EMU_API size_t aclGetTensorDescElementCount(const aclTensorDesc* desc) {
  size_t count = 1;
  if (desc != nullptr)
    for (int64_t dim : desc->dims) count *= static_cast<size_t>(dim);
  return count;
}

EMU_API size_t aclGetTensorDescSize(const aclTensorDesc* desc) {
  return desc == nullptr ? 0 : acl::bytes_of(desc->dtype, aclGetTensorDescElementCount(desc));
}

EMU_API void aclSetTensorDescName(aclTensorDesc* desc, const char* name) {
  if (desc != nullptr && name != nullptr) desc->name = name;
}

EMU_API aclError aclSetTensorFormat(aclTensorDesc* desc, int format) {
  if (desc == nullptr) return fail(acl::kInvalidParam, "aclSetTensorFormat: null description");
  desc->storage_format = format;
  return acl::kOk;
}

EMU_API aclError aclSetTensorShape(aclTensorDesc* desc, int rank, const int64_t* dims) {
  if (desc == nullptr || rank < 0 || (rank > 0 && dims == nullptr))
    return fail(acl::kInvalidParam, "aclSetTensorShape: rank %d", rank);
  desc->storage_dims.assign(dims, dims + rank);
  return acl::kOk;
}

EMU_API aclError aclSetTensorPlaceMent(aclTensorDesc* desc, int placement) {
  if (desc == nullptr || placement < 0 || placement > 2)
    return fail(acl::kInvalidParam, "aclSetTensorPlaceMent: %d", placement);
  desc->placement = placement;
  return acl::kOk;
}

EMU_API aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) { return new aclDataBuffer{data, size}; }
EMU_API aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) { return delete buffer, acl::kOk; }
EMU_API void* aclGetDataBufferAddr(const aclDataBuffer* buffer) { return buffer == nullptr ? nullptr : buffer->data; }
EMU_API size_t aclGetDataBufferSizeV2(const aclDataBuffer* buffer) { return buffer == nullptr ? 0 : buffer->size; }

EMU_API aclopAttr* aclopCreateAttr() { return new aclopAttr; }
EMU_API void aclopDestroyAttr(const aclopAttr* attr) { delete attr; }

namespace {

aclError put(aclopAttr* attr, const char* name, const char* kind, std::string value) {
  if (attr == nullptr || name == nullptr) return fail(acl::kInvalidParam, "aclopSetAttr%s: null argument", kind);
  attr->values[name] = {kind, std::move(value)};
  return acl::kOk;
}

template <typename T, typename Write>
std::string list_of(const T* values, int count, Write write) {
  return json::list(std::vector<T>(values, values + (count < 0 ? 0 : count)), write);
}

std::string integer(int64_t v) { return std::to_string(v); }

}  // namespace

EMU_API aclError aclopSetAttrBool(aclopAttr* attr, const char* name, uint8_t value) {
  return put(attr, name, "Bool", value != 0 ? "true" : "false");
}
EMU_API aclError aclopSetAttrInt(aclopAttr* attr, const char* name, int64_t value) {
  return put(attr, name, "Int", std::to_string(value));
}
EMU_API aclError aclopSetAttrFloat(aclopAttr* attr, const char* name, float value) {
  return put(attr, name, "Float", json::number(value));
}
EMU_API aclError aclopSetAttrString(aclopAttr* attr, const char* name, const char* value) {
  return put(attr, name, "String", json::text(value == nullptr ? "" : value));
}
EMU_API aclError aclopSetAttrDataType(aclopAttr* attr, const char* name, int value) {
  return put(attr, name, "Type", std::to_string(value));
}
EMU_API aclError aclopSetAttrListBool(aclopAttr* attr, const char* name, int count, const uint8_t* values) {
  return put(attr, name, "ListBool", list_of(values, count, [](uint8_t v) { return v != 0 ? "true" : "false"; }));
}
EMU_API aclError aclopSetAttrListInt(aclopAttr* attr, const char* name, int count, const int64_t* values) {
  return put(attr, name, "ListInt", list_of(values, count, integer));
}
EMU_API aclError aclopSetAttrListFloat(aclopAttr* attr, const char* name, int count, const float* values) {
  return put(attr, name, "ListFloat", list_of(values, count, [](float v) { return json::number(v); }));
}
EMU_API aclError aclopSetAttrListString(aclopAttr* attr, const char* name, int count, const char** values) {
  return put(attr, name, "ListString", list_of(values, count, [](const char* v) { return json::text(v); }));
}
EMU_API aclError aclopSetAttrListDataType(aclopAttr* attr, const char* name, int count, const int* values) {
  return put(attr, name, "ListType", list_of(values, count, integer));
}
EMU_API aclError aclopSetAttrListListInt(aclopAttr* attr, const char* name, int count, const int* sizes,
                                         const int64_t* const values[]) {
  std::string out = "[";
  for (int i = 0; i < count; ++i) out += (i == 0 ? "" : ",") + list_of(values[i], sizes[i], integer);
  return put(attr, name, "ListListInt", out + "]");
}
