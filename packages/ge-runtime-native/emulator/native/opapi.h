// Objects and the generic form of operator functions (aclnn*).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "acl.h"

namespace emu {

// The first word of each object: a caller whose arguments are others than the table's rows is refused, not followed.
enum class Tag : uint64_t { tensor = 0x61636c5401, tensors, scalar, scalars, ints, floats, bools };

template <Tag which>
struct Tagged {
  Tag tag = which;
};

}  // namespace emu

struct aclTensor : emu::Tagged<emu::Tag::tensor> {
  std::vector<int64_t> dims, strides, storage_dims;
  int64_t offset = 0;  // in elements
  int dtype = acl::kUndefined;
  int format = 2;
  void* data = nullptr;
  bool on_host = false;
};
struct aclTensorList : emu::Tagged<emu::Tag::tensors> {
  std::vector<aclTensor*> members;
};
struct aclScalar : emu::Tagged<emu::Tag::scalar> {
  std::string json;
  int dtype;
};
struct aclScalarList : emu::Tagged<emu::Tag::scalars> {
  std::vector<const aclScalar*> members;
};
struct aclIntArray : emu::Tagged<emu::Tag::ints> {
  std::vector<int64_t> values;
};
struct aclFloatArray : emu::Tagged<emu::Tag::floats> {
  std::vector<float> values;
};
struct aclBoolArray : emu::Tagged<emu::Tag::bools> {
  std::vector<bool> values;
};
struct aclOpExecutor {
  std::string text;             // function and arguments as JSON: what the Python side goes by
  std::vector<int64_t> words;   // addresses, offsets, sizes and strides of all tensors in order
  std::vector<aclTensor*> written;
  std::string caller;           // the user's line, as the Python side tells it; empty if it is not known
  bool sizes_back = false;
  std::vector<std::vector<char>> kept;  // copies of operands on the host
};

namespace emu {

// Collects the arguments of one call in order.
class AclnnCall {
 public:
  AclnnCall(const char* function, bool sizes_back);
  void add(const aclTensor* tensor, bool written);
  void add(const aclTensorList* list, bool written);
  void add(const aclScalar* scalar);
  void add(const aclScalarList* list);
  void add(const aclIntArray* array);
  void add(const aclFloatArray* array);
  void add(const aclBoolArray* array);
  void add(int64_t value);
  void add(uint64_t value);
  void add(double value);
  void add(bool value);
  void add(const char* text);
  // Ask the Python side whether it takes the call; make the executor.
  int plan(uint64_t* workspace, aclOpExecutor** executor);

 private:
  void separate();
  // Whether an argument is an object of this kind, or null; notes the refusal if it is not.
  template <emu::Tag which>
  bool is(const emu::Tagged<which>* object);
  std::string tensor(const aclTensor* tensor, bool written);
  std::string function_;
  std::string text_;
  std::unique_ptr<aclOpExecutor> made_;
  aclError error_ = 0;
  int arguments_ = 0;
};

// The second phase, the same for every function.
int aclnn_run(const char* function, aclOpExecutor* executor, aclrtStream stream);

// The second planning function that some have: the most workspace of calls like this one.
int aclnn_most(uint64_t* workspace, aclOpExecutor** executor);

}  // namespace emu
