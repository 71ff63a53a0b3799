// The print channel of graphs with a PrintV2 node. Graphs print where they run, so nothing ever comes through it: who
// waits for its tensors sleeps until the channel is gone.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>

#include "state.h"

namespace {

struct Channels {
  std::mutex mutex;
  std::condition_variable gone;
  std::set<const void*> open;
};

Channels& channels() {
  static Channels* all = new Channels;  // receivers may outlive the statics of this library
  return *all;
}

constexpr std::chrono::milliseconds kLongest{1000};  // so that a receiver asks now and then whether it shall go on

}  // namespace

EMU_API void* acltdtCreateChannelWithCapacity(uint32_t, const char*, size_t) {
  auto handle = std::make_unique<char>();
  std::lock_guard lock(channels().mutex);
  channels().open.insert(handle.get());
  return handle.release();
}

EMU_API aclError acltdtDestroyChannel(void* handle) {
  std::lock_guard lock(channels().mutex);
  if (channels().open.erase(handle) == 0) return emu::fail(acl::kInvalidParam, "%s: no such channel", __func__);
  channels().gone.notify_all();
  delete static_cast<char*>(handle);
  return acl::kOk;
}

EMU_API aclError acltdtReceiveTensor(const void* handle, void*, int32_t milliseconds) {
  std::unique_lock lock(channels().mutex);
  const auto wait = milliseconds < 0 ? kLongest : std::min(kLongest, std::chrono::milliseconds(milliseconds));
  channels().gone.wait_for(lock, wait, [handle] { return channels().open.count(handle) == 0; });
  return channels().open.count(handle) ? acl::kRtQueueEmpty : emu::fail(acl::kInvalidParam, "%s: no such channel", __func__);
}

EMU_API void* acltdtCreateDataset() { return new char; }
EMU_API aclError acltdtDestroyDataset(void* dataset) {
  delete static_cast<char*>(dataset);
  return acl::kOk;
}
EMU_API size_t acltdtGetDatasetSize(const void*) { return 0; }
EMU_API void* acltdtGetDataItem(const void*, size_t) { return nullptr; }
EMU_API void* acltdtGetDataAddrFromItem(const void*) { return nullptr; }
EMU_API size_t acltdtGetDataSizeFromItem(const void*) { return 0; }
EMU_API int acltdtGetDataTypeFromItem(const void*) { return acl::kUndefined; }
EMU_API size_t acltdtGetDimNumFromItem(const void*) { return 0; }
EMU_API aclError acltdtGetDimsFromItem(const void*, int64_t*, size_t) { return emu::fail(acl::kRtUnsupported, "%s", __func__); }
