// libopapi: tensors, scalars and arrays for operator functions, and the generic form of these functions.
#include "opapi.h"

#include <cstring>

#include "bridge.h"
#include "json.h"
#include "memory.h"
#include "state.h"
#include "stream.h"

namespace emu {
namespace {

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const int exponent = (bits >> 10) & 31;
  const uint32_t fraction = bits & 1023;
  float value;
  if (exponent == 0) {
    value = static_cast<float>(fraction) / 16777216.0f;  // 2^-24
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 31 ? 255u : static_cast<uint32_t>(exponent + 112);
  const uint32_t word = sign | (wide << 23) | (fraction << 13);
  std::memcpy(&value, &word, 4);
  return value;
}

constexpr int kFractalNz = 29;

template <typename T>
T read(const void* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// A scalar as JSON; empty for a type that no scalar has.
std::string scalar_json(const void* data, int dtype) {
  switch (dtype) {
    case 0: return json::number(read<float>(data));
    case 1: return json::number(half_to_float(read<uint16_t>(data)));
    case 2: return std::to_string(read<int8_t>(data));
    case 3: return std::to_string(read<int32_t>(data));
    case 4: return std::to_string(read<uint8_t>(data));
    case 6: return std::to_string(read<int16_t>(data));
    case 7: return std::to_string(read<uint16_t>(data));
    case 8: return std::to_string(read<uint32_t>(data));
    case 9: return std::to_string(read<int64_t>(data));
    case 10: return std::to_string(read<uint64_t>(data));
    case 11: return json::number(read<double>(data));
    case 12: return read<uint8_t>(data) != 0 ? "true" : "false";
    case 16: {
      const auto* parts = static_cast<const float*>(data);
      return "[" + json::number(parts[0]) + "," + json::number(parts[1]) + "]";
    }
    case 17: {
      const auto* parts = static_cast<const double*>(data);
      return "[" + json::number(parts[0]) + "," + json::number(parts[1]) + "]";
    }
    case 27: {
      const uint32_t word = static_cast<uint32_t>(read<uint16_t>(data)) << 16;
      return json::number(read<float>(&word));
    }
    default: return "";
  }
}

}  // namespace

AclnnCall::AclnnCall(const char* function, bool sizes_back) : function_(function), made_(new aclOpExecutor) {
  made_->sizes_back = sizes_back;
  text_ = "{\"function\":" + json::text(function) + ",\"args\":[";
}

void AclnnCall::separate() {
  ++arguments_;
  if (text_.back() != '[') text_ += ',';
}

template <Tag which>
bool AclnnCall::is(const Tagged<which>* object) {
  if (object == nullptr) return false;
  const auto address = reinterpret_cast<uintptr_t>(object);
  // no object of ours, nor of anybody, lies there
  const bool possible = address >= 4096 && address % alignof(uint64_t) == 0 && address >> 47 == 0;
  if (possible && object->tag == which) return true;
  if (error_ == 0) {
    error_ = fail(acl::kInvalidParam, "%s: argument %d is not of the kind that the emulator's table has",
                  function_.c_str(), arguments_);
  }
  return false;
}

std::string AclnnCall::tensor(const aclTensor* t, bool written) {
  if (written) made_->written.push_back(const_cast<aclTensor*>(t));
  if (!is(t)) return "null";
  size_t reach = 1;
  bool empty = false;
  for (size_t i = 0; i < t->dims.size(); ++i) {
    empty = empty || t->dims[i] == 0;
    if (t->strides[i] < 0 && error_ == 0) error_ = fail(acl::kInvalidParam, "%s: a negative stride", function_.c_str());
    reach += static_cast<size_t>((t->dims[i] - 1) * t->strides[i]);
  }
  if (!empty && !t->on_host && error_ == 0) {
    const auto* start = static_cast<const char*>(t->data) + acl::bytes_of(t->dtype, static_cast<size_t>(t->offset));
    error_ = need_device(function_.c_str(), written ? "output" : "input", start, acl::bytes_of(t->dtype, reach));
  }
  auto& words = made_->words;
  words.push_back(reinterpret_cast<int64_t>(t->data));
  words.push_back(t->offset);
  words.insert(words.end(), t->dims.begin(), t->dims.end());
  words.insert(words.end(), t->strides.begin(), t->strides.end());
  std::string tiles;
  if (t->format == kFractalNz && t->storage_dims.size() > t->dims.size()) {  // else nobody has laid it out yet
    tiles = ",\"tiles\"";
    words.push_back(static_cast<int64_t>(t->storage_dims.size()));
    words.insert(words.end(), t->storage_dims.begin(), t->storage_dims.end());
  }
  return "[\"t\"," + std::to_string(t->dtype) + "," + std::to_string(t->dims.size()) + tiles + "]";
}

void AclnnCall::add(const aclTensor* t, bool written) {
  separate();
  text_ += tensor(t, written);
}

void AclnnCall::add(const aclTensorList* list, bool written) {
  separate();
  if (!is(list)) {
    text_ += "null";
    return;
  }
  text_ += "[\"list\"," + json::list(list->members, [&](const aclTensor* t) { return tensor(t, written); }) + "]";
}

void AclnnCall::add(const aclScalar* scalar) {
  separate();
  text_ += !is(scalar) ? "null" : "[\"s\"," + std::to_string(scalar->dtype) + "," + scalar->json + "]";
}

void AclnnCall::add(const aclScalarList* list) {
  separate();
  if (list == nullptr) {
    text_ += "null";
    return;
  }
  text_ += "[\"scalars\"," + json::list(list->members, [](const aclScalar* s) { return s->json; }) + "]";
}

void AclnnCall::add(const aclIntArray* array) {
  separate();
  text_ += !is(array) ? "null" : json::list(array->values, [](int64_t v) { return std::to_string(v); });
}
void AclnnCall::add(const aclFloatArray* array) {
  separate();
  text_ += !is(array) ? "null" : json::list(array->values, [](float v) { return json::number(v); });
}
void AclnnCall::add(const aclBoolArray* array) {
  separate();
  text_ += !is(array) ? "null" : json::list(array->values, [](bool v) { return v ? "true" : "false"; });
}
void AclnnCall::add(int64_t value) { separate(), text_ += std::to_string(value); }
void AclnnCall::add(uint64_t value) { separate(), text_ += std::to_string(value); }
void AclnnCall::add(double value) { separate(), text_ += json::number(value); }
void AclnnCall::add(bool value) { separate(), text_ += value ? "true" : "false"; }
void AclnnCall::add(const char* text) { separate(), text_ += text == nullptr ? "null" : json::text(text); }

int AclnnCall::plan(uint64_t* workspace, aclOpExecutor** executor) {
  if (workspace == nullptr || executor == nullptr)
    return fail(acl::kInvalidParam, "%sGetWorkspaceSize: null result", function_.c_str());
  if (error_ != 0) return error_;
  text_ += "]}";
  // The thread of torch_npu's queue must not ask: others wait for the queue with Python's lock in their hands. What is
  // refused is refused on the stream then.
  if (bridge::may_wait()) {
    auto answer = bridge::call("aclnn.prepare", text_.data(), text_.size());
    if (answer.value < 0) return answer.error;
    made_->caller = std::move(answer.reply);
  }
  made_->text = std::move(text_);
  *workspace = 0;
  *executor = made_.release();
  return 0;
}

int aclnn_most(uint64_t* workspace, aclOpExecutor** executor) {
  if (workspace == nullptr || executor == nullptr) return fail(acl::kInvalidParam, "GetMaxWorkspaceSize: null result");
  *workspace = 0;  // kernels here need none; nobody runs what is asked for the most only
  *executor = nullptr;
  return 0;
}

int aclnn_run(const char* function, aclOpExecutor* executor, aclrtStream stream) {
  if (executor == nullptr) return fail(acl::kInvalidParam, "%s: no executor", function);
  std::shared_ptr<aclOpExecutor> held(executor);  // belongs to this phase
  auto reply = std::make_shared<std::string>();
  auto run = [held, reply]() -> aclError {
    const auto answer = bridge::call("aclnn.run", held->text.data(), held->text.size(), held->words);
    *reply = answer.reply;
    return answer.value < 0 ? answer.error : acl::kOk;
  };
  if (aclError code = submit(stream, {function, run, false, held->caller, 0})) return code;
  if (!held->sizes_back) return 0;
  if (aclError code = find_stream(stream)->wait(-1, acl::kRtStreamTimeout)) return code;
  const char* at = reply->c_str();
  for (auto* output : held->written) {
    std::vector<int64_t> dims;
    while (*at != 0 && *at != ';') {
      char* end = nullptr;
      dims.push_back(std::strtoll(at, &end, 10));
      at = *end == ',' ? end + 1 : end;
    }
    if (*at == ';') ++at;
    if (output != nullptr) output->dims = dims;
  }
  return 0;
}

}  // namespace emu

using emu::fail;

EMU_API aclTensor* aclCreateTensor(const int64_t* dims, uint64_t rank, int dtype, const int64_t* strides, int64_t offset,
                                   int format, const int64_t* storage_dims, uint64_t storage_rank, void* data) {
  auto* made = new aclTensor;
  made->dims.assign(dims, dims + rank);
  if (strides != nullptr) {
    made->strides.assign(strides, strides + rank);
  } else {
    made->strides.assign(rank, 1);
    for (size_t i = rank; i-- > 1;) made->strides[i - 1] = made->strides[i] * made->dims[i];
  }
  if (storage_dims != nullptr) made->storage_dims.assign(storage_dims, storage_dims + storage_rank);
  made->offset = offset;
  made->dtype = dtype;
  made->format = format;
  made->data = data;
  return made;
}
EMU_API int aclDestroyTensor(const aclTensor* tensor) { return delete tensor, 0; }

EMU_API int aclGetViewShape(const aclTensor* tensor, int64_t** dims, uint64_t* rank) {
  if (tensor == nullptr || dims == nullptr || rank == nullptr) return fail(acl::kInvalidParam, "aclGetViewShape: null");
  *rank = tensor->dims.size();
  *dims = new int64_t[tensor->dims.empty() ? 1 : tensor->dims.size()];  // the caller deletes it
  std::memcpy(*dims, tensor->dims.data(), tensor->dims.size() * sizeof(int64_t));
  return 0;
}

EMU_API aclScalar* aclCreateScalar(void* value, int dtype) {
  std::string json = value == nullptr ? "" : emu::scalar_json(value, dtype);
  if (json.empty()) {
    fail(acl::kInvalidParam, "aclCreateScalar: type %d", dtype);
    return nullptr;
  }
  return new aclScalar{{}, std::move(json), dtype};
}
EMU_API int aclDestroyScalar(const aclScalar* scalar) { return delete scalar, 0; }

EMU_API aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t size) {
  return new aclIntArray{{}, std::vector<int64_t>(values, values + size)};
}
EMU_API int aclDestroyIntArray(const aclIntArray* array) { return delete array, 0; }
EMU_API aclFloatArray* aclCreateFloatArray(const float* values, uint64_t size) {
  return new aclFloatArray{{}, std::vector<float>(values, values + size)};
}
EMU_API int aclDestroyFloatArray(const aclFloatArray* array) { return delete array, 0; }
EMU_API aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t size) {
  return new aclBoolArray{{}, std::vector<bool>(values, values + size)};
}
EMU_API int aclDestroyBoolArray(const aclBoolArray* array) { return delete array, 0; }

EMU_API aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, uint64_t size) {
  auto* made = new aclTensorList;
  for (uint64_t i = 0; i < size; ++i) made->members.push_back(const_cast<aclTensor*>(tensors[i]));
  return made;
}
EMU_API int aclDestroyTensorList(const aclTensorList* list) {
  if (list != nullptr)
    for (auto* member : list->members) delete member;  // a list owns its members
  return delete list, 0;
}
EMU_API aclScalarList* aclCreateScalarList(const aclScalar* const* scalars, uint64_t size) {
  return new aclScalarList{{}, std::vector<const aclScalar*>(scalars, scalars + size)};
}
EMU_API int aclDestroyScalarList(const aclScalarList* list) {
  if (list != nullptr)
    for (auto* member : list->members) delete member;
  return delete list, 0;
}
EMU_API int aclDestroyAclOpExecutor(aclOpExecutor* executor) { return delete executor, 0; }
