// Reading many tensors at once through the C functions that DLPack 1.2 asks of an array library's tensor type. Types are
// declared here: nothing of Python or DLPack is needed to build.
#include <cstring>

#include "ge_cann_runner.h"

namespace {

struct Device {
  int32_t type;
  int32_t id;
};

struct DlTensor {
  void* data;
  Device device;
  int32_t rank;
  uint32_t dtype;  // code, bits, lanes
  int64_t* dims;
  int64_t* strides;  // null: dense
  uint64_t byte_offset;
};

using Describe = int (*)(void* object, DlTensor* out);
using Item = void* (*)(void* list, intptr_t index);
using TypeOf = void* (*)(void* object);
using IsSubtype = int (*)(void* type, void* base);
using Release = void (*)(void* object);

bool IsDense(const DlTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  uint64_t step = 1;  // unsigned: sizes of others may overflow
  bool dense = true;
  for (int32_t d = tensor.rank; d-- > 0;) {
    if (tensor.dims[d] == 0) return true;
    if (tensor.dims[d] != 1 && static_cast<uint64_t>(tensor.strides[d]) != step) dense = false;
    step *= static_cast<uint64_t>(tensor.dims[d]);
  }
  return dense;
}

}  // namespace

extern "C" int gec_tensors_read(void* list, size_t n, const gec_tensor_functions* functions, int learn, int64_t* looks,
                                uint64_t* addresses) {
  const auto item = reinterpret_cast<Item>(functions->item);
  const auto type_of = reinterpret_cast<TypeOf>(functions->type_of);
  const auto is_subtype = reinterpret_cast<IsSubtype>(functions->is_subtype);
  const auto release = reinterpret_cast<Release>(functions->release);
  const auto describe = reinterpret_cast<Describe>(functions->describe);
  // isinstance() of the tensor type is Python code for a Parameter: what is asked is the type, and only when it changes
  void* known = functions->type;
  int64_t* look = looks;  // packed, so that looking at many tensors touches little memory
  for (size_t i = 0; i < n; ++i) {
    void* object = item(list, static_cast<intptr_t>(i));
    if (object == nullptr) return 0;
    void* type = type_of(object);
    release(type);  // the object keeps it
    if (type != known && is_subtype(type, functions->type) != 1) return 0;
    known = type;
    DlTensor tensor;
    if (describe(object, &tensor) != 0) return 0;
    if (tensor.rank < 0 || tensor.rank > 25 || tensor.device.type != functions->device_type || !IsDense(tensor)) return 0;
    const int64_t head[2] = {(static_cast<int64_t>(tensor.device.id) << 32) | tensor.rank, tensor.dtype};
    const size_t bytes = sizeof(int64_t) * static_cast<size_t>(tensor.rank);
    if (learn != 0) {
      std::memcpy(look, head, sizeof head);
      if (bytes != 0) std::memcpy(look + 2, tensor.dims, bytes);
    } else if (std::memcmp(look, head, sizeof head) != 0 ||
               (bytes != 0 && std::memcmp(look + 2, tensor.dims, bytes) != 0)) {
      return 0;
    }
    look += 2 + tensor.rank;
    addresses[i] = reinterpret_cast<uint64_t>(tensor.data) + tensor.byte_offset;
  }
  return 1;
}
