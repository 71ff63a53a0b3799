// libatb: operations with parameters, run on tensors of device memory or, for lengths, of the host's.
#include "atb.h"

#include <cstring>
#include <memory>
#include <vector>

#include "memory.h"
#include "opapi.h"
#include "state.h"

namespace emu {
namespace {

class OneStream final : public atb::Context {
 public:
  int SetExecuteStream(aclrtStream stream) override { return stream_ = stream, 0; }
  aclrtStream GetExecuteStream() const override { return stream_; }

 private:
  aclrtStream stream_ = nullptr;
};

template <typename T>
T at(const void* start, size_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(start) + offset, sizeof value);
  return value;
}

// Tensors of a call as operator functions take them.
struct Given : AtbHeld {
  aclTensorList list;

  explicit Given(const atb::Tensors& tensors) {
    const atb::Tensor* first = tensors.beyond != nullptr ? tensors.beyond : tensors.in_place;
    for (uint64_t i = 0; i < tensors.count; ++i) {
      const atb::Tensor& t = first[i];
      if (t.device == nullptr && t.host == nullptr) {
        list.members.push_back(nullptr);
        continue;
      }
      aclTensor made;
      made.dims.assign(t.desc.shape.sizes, t.desc.shape.sizes + t.desc.shape.rank);
      made.strides.assign(made.dims.size(), 1);
      for (size_t axis = made.dims.size(); axis-- > 1;)
        made.strides[axis - 1] = made.strides[axis] * made.dims[axis];
      made.dtype = t.desc.dtype;
      made.format = t.desc.format;
      made.data = t.device;
      if (t.device == nullptr) {
        list.members.push_back(on_host(std::move(made), t.host, t.bytes));
      } else {
        owned.push_back(std::make_unique<aclTensor>(std::move(made)));
        list.members.push_back(owned.back().get());
      }
    }
  }
};

class AtbOperation final : public atb::Operation {
 public:
  AtbOperation(const char* function, const void* parameters, std::initializer_list<AtbField> fields)
      : function_(function) {
    for (const AtbField& field : fields) {
      Value value{field.type, 0, 0};
      switch (field.type) {
        case 'i': value.integer = at<int32_t>(parameters, field.offset); break;
        case 'h': value.integer = at<uint16_t>(parameters, field.offset); break;
        case 'b': value.integer = at<uint8_t>(parameters, field.offset); break;
        default: value.real = at<float>(parameters, field.offset);
      }
      values_.push_back(value);
    }
  }
  std::string GetName() const override { return function_; }
  int InferShape(const void*, void*) const override { return refused("InferShape"); }
  uint32_t GetInputNum() const override { return static_cast<uint32_t>(refused("GetInputNum")); }
  uint32_t GetOutputNum() const override { return static_cast<uint32_t>(refused("GetOutputNum")); }
  int Setup(const atb::VariantPack&, uint64_t& workspace, atb::Context*) override { return workspace = 0, 0; }
  int Execute(const atb::VariantPack& tensors, uint8_t*, uint64_t, atb::Context* context) override {
    Given inputs(tensors.inputs), outputs(tensors.outputs);
    AclnnCall call(function_, false);
    call.add(&inputs.list, false);
    call.add(&outputs.list, true);
    for (const Value& value : values_) {
      if (value.type == 'f') call.add(static_cast<double>(value.real));
      else if (value.type == 'b') call.add(value.integer != 0);
      else call.add(value.integer);
    }
    uint64_t workspace = 0;
    aclOpExecutor* executor = nullptr;
    if (int code = call.plan(&workspace, &executor)) return code;
    executor->written.clear();  // these objects end with this call
    executor->kept = std::move(inputs.kept);
    return aclnn_run(function_, executor, context->GetExecuteStream());
  }

 private:
  struct Value {
    char type;
    int64_t integer;
    float real;
  };
  int refused(const char* what) const {
    return fail(acl::kInvalidParam, "%s: the emulator has no %s", function_, what);
  }
  const char* function_;
  std::vector<Value> values_;
};

class PlannedOperation final : public atb::Operation {
 public:
  std::unique_ptr<aclOpExecutor> planned;
  std::string GetName() const override { return "function"; }
  int InferShape(const void*, void*) const override { return acl::kInvalidParam; }
  uint32_t GetInputNum() const override { return 0; }
  uint32_t GetOutputNum() const override { return 0; }
  int Setup(const atb::VariantPack&, uint64_t&, atb::Context*) override { return acl::kInvalidParam; }
  int Execute(const atb::VariantPack&, uint8_t*, uint64_t, atb::Context*) override { return acl::kInvalidParam; }
};

}  // namespace

aclTensor* AtbHeld::on_host(aclTensor made, const void* bytes, size_t size) {
  const auto* first = static_cast<const char*>(bytes);
  kept.emplace_back(first, first + size);
  made.data = kept.back().data();
  made.offset = 0;
  made.on_host = true;
  owned.push_back(std::make_unique<aclTensor>(std::move(made)));
  return owned.back().get();
}

const aclTensor* AtbHeld::of(const aclTensor* tensor) {
  if (tensor == nullptr || tensor->data == nullptr || room_at(tensor->data, MemoryKind::kDevice) > 0) return tensor;
  size_t count = 1;
  for (size_t i = 0; i < tensor->dims.size(); ++i) {
    if (tensor->dims[i] == 0) return tensor;
    count += static_cast<size_t>((tensor->dims[i] - 1) * tensor->strides[i]);
  }
  const size_t before = acl::bytes_of(tensor->dtype, static_cast<size_t>(tensor->offset));
  const auto* start = static_cast<const char*>(tensor->data) + before;
  return on_host(*tensor, start, acl::bytes_of(tensor->dtype, count));
}

int atb_plan(AclnnCall& call, AtbHeld& held, uint64_t* workspace, atb::Operation** made) {
  aclOpExecutor* executor = nullptr;
  if (made == nullptr) return fail(acl::kInvalidParam, "an operation of ATB: null result");
  if (int code = call.plan(workspace, &executor)) return code;
  executor->written.clear();  // the caller ends its tensors when it likes
  executor->kept = std::move(held.kept);
  auto* operation = dynamic_cast<PlannedOperation*>(*made);
  if (operation == nullptr) *made = operation = new PlannedOperation;
  operation->planned.reset(executor);
  return 0;
}

int atb_run(const char* function, atb::Operation* operation, atb::Context* context) {
  auto* planned = dynamic_cast<PlannedOperation*>(operation);
  if (planned == nullptr || context == nullptr) return fail(acl::kInvalidParam, "%s: no operation", function);
  return aclnn_run(function, planned->planned.release(), context->GetExecuteStream());
}

int atb_make(const char* function, const void* parameters, std::initializer_list<AtbField> fields,
             atb::Operation** made) {
  if (made == nullptr) return fail(acl::kInvalidParam, "%s: null result", function);
  *made = new AtbOperation(function, parameters, fields);
  return 0;
}

}  // namespace emu

namespace atb {

struct Utils {
  static uint64_t GetTensorSize(const Tensor& tensor);
};

uint64_t Utils::GetTensorSize(const Tensor& tensor) {
  size_t count = tensor.desc.shape.rank == 0 ? 0 : 1;
  for (uint64_t i = 0; i < tensor.desc.shape.rank; ++i) count *= static_cast<size_t>(tensor.desc.shape.sizes[i]);
  return acl::bytes_of(tensor.desc.dtype, count);
}

int CreateContext(Context** made) { return *made = new emu::OneStream, 0; }
int DestroyContext(Context* context) { return delete context, 0; }
int DestroyOperation(Operation* operation) { return delete operation, 0; }

}  // namespace atb
