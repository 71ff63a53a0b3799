// The C++ interface of the transformer operators (ATB) as callers see it: what they hold by value, and the virtual
// functions in their order.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "opapi.h"

namespace atb {

struct Dims {
  int64_t sizes[8];
  uint64_t rank;
};
struct TensorDesc {
  int dtype;
  int format;
  Dims shape;
};
struct Tensor {
  TensorDesc desc;
  void* device;
  void* host;
  uint64_t bytes;
};
// Up to 64 members in place, more of them behind `beyond`.
struct Tensors {
  uint64_t capacity;
  uint64_t count;
  Tensor in_place[65];
  Tensor* beyond;
};
struct VariantPack {
  Tensors inputs, outputs;
};
static_assert(sizeof(Tensor) == 104 && sizeof(VariantPack) == 0x3500, "callers hold these by value");

class Context {
 public:
  virtual ~Context() = default;
  virtual int SetExecuteStream(aclrtStream stream) = 0;
  virtual aclrtStream GetExecuteStream() const = 0;
};

class Operation {
 public:
  virtual ~Operation() = default;
  virtual std::string GetName() const = 0;
  virtual int InferShape(const void* inputs, void* outputs) const = 0;
  virtual uint32_t GetInputNum() const = 0;
  virtual uint32_t GetOutputNum() const = 0;
  virtual int Setup(const VariantPack& tensors, uint64_t& workspace, Context* context) = 0;
  virtual int Execute(const VariantPack& tensors, uint8_t* workspace, uint64_t bytes, Context* context) = 0;
};

template <typename Parameters>
int CreateOperation(const Parameters& parameters, Operation** made);

}  // namespace atb

namespace emu {

// Where a field of an operation's parameters is, and its type: i for int32, h for uint16, f for float, b for bool.
struct AtbField {
  char type;
  size_t offset;
};
int atb_make(const char* function, const void* parameters, std::initializer_list<AtbField> fields,
             atb::Operation** made);

// Tensors of a call whose memory may be the host's: copied, since its owner may be gone when the stream comes to it.
struct AtbHeld {
  std::vector<std::unique_ptr<aclTensor>> owned;
  std::vector<std::vector<char>> kept;
  const aclTensor* of(const aclTensor* tensor);
  aclTensor* on_host(aclTensor made, const void* bytes, size_t size);
};
// The phases of a function: the plan waits in an operation, which the caller keeps for further calls.
int atb_plan(AclnnCall& call, AtbHeld& held, uint64_t* workspace, atb::Operation** made);
int atb_run(const char* function, atb::Operation* operation, atb::Context* context);

}  // namespace emu
