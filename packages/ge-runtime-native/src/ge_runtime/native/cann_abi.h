// The few types of CANN that a runner touches, as its libraries lay them out.
//
// Nothing of CANN is included or linked: sizes, offsets and the order of virtual functions are facts of its binary
// interface, checked below at compile time. Types that only a library may look into are opaque here; their functions
// are looked up by name at run time (cann_library.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cann {

using Status = uint32_t;    // ge::Status, ge::graphStatus: 0 is success
using AclError = int32_t;   // 0 is success
using Stream = void*;
using HcclResult = int32_t;  // 0 is success
using HcclComm = void*;

constexpr AclError kAclRepeatInitialize = 100002;  // somebody else in the process has called aclInit
constexpr AclError kAclOutOfMemory = 207001;

constexpr int32_t kFormatNd = 2;
constexpr int32_t kFormatReserved = 40;  // an output with this origin format gets everything from the model
constexpr size_t kMaxRank = 25;
constexpr size_t kRootInfoBytes = 4108;  // HcclRootInfo
constexpr size_t kCommNameBytes = 128;

// --- containers and handles --------------------------------------------------------------------------------------

// ge::AscendString, ge::Graph, ge::Shape, ge::TensorDesc, ge::Tensor and ge::CompiledGraphSummary are one shared
// pointer to something that only the libraries know. Constructors are library functions, copies and destructors are
// those of the shared pointer.
struct Handle {
  std::shared_ptr<void> hidden;
};
struct AscendString : Handle {};
struct Graph : Handle {};
struct Shape : Handle {};
struct TensorDesc : Handle {};
struct GeTensor : Handle {};
using Summary = std::shared_ptr<void>;  // std::shared_ptr<ge::CompiledGraphSummary>

static_assert(sizeof(AscendString) == 16);
static_assert(sizeof(Graph) == 16);
static_assert(sizeof(Shape) == 16);
static_assert(sizeof(TensorDesc) == 16);
static_assert(sizeof(GeTensor) == 16);
static_assert(sizeof(Summary) == 16);
static_assert(sizeof(std::vector<Shape>) == 24);

// ge::Session holds one number; the caller owns the object, so its size is fixed.
struct Session {
  uint64_t id;
};
static_assert(sizeof(Session) == 8);

// --- memory ------------------------------------------------------------------------------------------------------

class MemBlock;

// ge::Allocator. GE calls these through the virtual table, in this order.
class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual MemBlock* Malloc(size_t bytes) = 0;
  virtual void Free(MemBlock* block) = 0;
  virtual MemBlock* MallocAdvise(size_t bytes, void* address) {
    (void)address;
    return Malloc(bytes);
  }

 protected:
  Allocator() = default;
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
};
static_assert(sizeof(Allocator) == 8);

// ge::MemBlock. GE counts its users and gives it back to its allocator when the last one is gone.
class MemBlock {
 public:
  MemBlock(Allocator& owner, void* at, size_t size) : allocator(owner), address(at), bytes(size) {}
  virtual ~MemBlock() = default;

  Allocator& allocator;
  void* address;
  size_t uses = 1;
  size_t bytes;
};
static_assert(sizeof(MemBlock) == 40);

// --- tensors of the executor -------------------------------------------------------------------------------------

namespace gert {

struct Shape {
  size_t rank;
  int64_t dims[kMaxRank];
  uint8_t reserved[40];
};
struct StorageShape {
  Shape origin;
  Shape storage;
  uint8_t reserved[40];
};
struct ExpandDims {
  uint64_t bits;
  uint8_t reserved[40];
};
struct StorageFormat {
  int32_t origin;
  int32_t storage;
  ExpandDims expand;
  uint8_t reserved[40];
};

enum Placement : int32_t { kDevice = 0, kHost = 1, kHostFollowing = 2, kDeviceP2p = 3, kUnset = 4 };
enum Operation : int32_t { kAddress = 0, kRelease = 1, kShare = 2 };
// With a manager the address field is its argument: a block, not memory.
using Manager = Status (*)(void* block, Operation operation, void** out);

struct TensorData {
  void* address;
  Manager manager;
  size_t bytes;
  int32_t placement;
  uint32_t reserved0;
  uint8_t reserved[40];
};

struct Tensor {
  StorageShape shape;
  StorageFormat format;
  uint8_t version;  // 1: strides follow, which this runner never makes
  uint8_t reserved0[3];
  int32_t dtype;
  TensorData data;
  uint8_t reserved[40];

  Tensor() = default;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  // Moving takes the memory along; std::vector needs it when it is sized.
  Tensor(Tensor&& other) noexcept : shape(other.shape), format(other.format), version(other.version), reserved0{},
                                    dtype(other.dtype), data(other.data), reserved{} {
    other.data.address = nullptr;
    other.data.manager = nullptr;
  }
  ~Tensor() { Drop(); }

  // As the library's destructor: the manager is called even where the address is null.
  void Drop() {
    if (data.manager != nullptr) data.manager(data.address, kRelease, nullptr);
    data.manager = nullptr;
    data.address = nullptr;
  }
};

static_assert(sizeof(Shape) == 248 && offsetof(Shape, dims) == 8 && offsetof(Shape, reserved) == 208);
static_assert(sizeof(StorageShape) == 536 && offsetof(StorageShape, storage) == 248);
static_assert(sizeof(ExpandDims) == 48);
static_assert(sizeof(StorageFormat) == 96 && offsetof(StorageFormat, storage) == 4);
static_assert(sizeof(TensorData) == 72 && offsetof(TensorData, manager) == 8 && offsetof(TensorData, bytes) == 16 &&
              offsetof(TensorData, placement) == 24);
static_assert(sizeof(Tensor) == 752 && offsetof(Tensor, format) == 536 && offsetof(Tensor, version) == 632 &&
              offsetof(Tensor, dtype) == 636 && offsetof(Tensor, data) == 640 && offsetof(Tensor, reserved) == 712);

}  // namespace gert

// ge::Placement counts the other way round than gert::TensorPlacement.
enum class GePlacement : int32_t { kHost = 0, kDevice = 1 };

}  // namespace cann
