#include "pool.h"

#include <cstdint>

#include "cann_library.h"

namespace cann {
namespace {

constexpr size_t kSmall = size_t{1} << 20;
constexpr size_t kGrain = 512;                // the device's own alignment
constexpr size_t kLargeGrain = size_t{2} << 20;  // huge pages
constexpr int32_t kHugeFirst = 0;

// 0 for what no memory holds.
size_t Rounded(size_t bytes) {
  const size_t grain = bytes > kSmall ? kLargeGrain : kGrain;
  if (bytes > SIZE_MAX - grain) return 0;
  return bytes == 0 ? kGrain : (bytes + grain - 1) / grain * grain;
}

}  // namespace

void* Pool::Take(Stream stream, size_t bytes) {
  const size_t size = Rounded(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (size == 0) {
    why_ = std::to_string(bytes) + " bytes are more than any memory has";
    return nullptr;
  }
  void* address = nullptr;
  const auto kept = kept_.find({stream, size});
  if (kept != kept_.end() && !kept->second.empty()) {
    address = kept->second.back();
    kept->second.pop_back();
  } else {
    AclError code = Functions().malloc(&address, size, kHugeFirst);
    if (code == kAclOutOfMemory) {
      Functions().synchronize_device();
      TrimLocked();
      code = Functions().malloc(&address, size, kHugeFirst);
    }
    if (code != 0 || address == nullptr) {
      why_ = "aclrtMalloc of " + std::to_string(size) + " bytes failed with " + std::to_string(code) + "; " +
             std::to_string(used_) + " bytes are in use by this runner";
      return nullptr;
    }
  }
  try {
    blocks_[address] = {stream, size};
  } catch (...) {
    Functions().free(address);
    throw;
  }
  used_ += size;
  return address;
}

bool Pool::Give(void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return false;
  kept_[{found->second.stream, found->second.bytes}].push_back(address);
  used_ -= found->second.bytes;
  blocks_.erase(found);
  return true;
}

void Pool::TrimLocked() {
  for (auto& [key, addresses] : kept_) {
    for (void* address : addresses) Functions().free(address);
  }
  kept_.clear();
}

void Pool::Trim() {
  const std::lock_guard<std::mutex> lock(mutex_);
  TrimLocked();
}

void Pool::Forget() {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.clear();
  blocks_.clear();
  used_ = 0;
}

size_t Pool::used() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return used_;
}

std::string Pool::why() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return why_;
}

}  // namespace cann
