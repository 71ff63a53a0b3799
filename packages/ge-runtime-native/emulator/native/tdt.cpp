// The print channel of graphs with a PrintV2 node. No graph here writes into it: creating one says so.
#include "state.h"

EMU_API void* acltdtCreateChannelWithCapacity(uint32_t, const char*, size_t) {
  emu::fail(acl::kRtUnsupported, "acltdtCreateChannelWithCapacity: PrintV2 has no channel on the emulator");
  return nullptr;
}
EMU_API aclError acltdtDestroyChannel(void*) { return acl::kOk; }
EMU_API void* acltdtCreateDataset() { return nullptr; }
EMU_API aclError acltdtDestroyDataset(void*) { return acl::kOk; }
EMU_API aclError acltdtReceiveTensor(const void*, void*, int32_t) { return emu::fail(acl::kRtUnsupported, "%s", __func__); }
EMU_API size_t acltdtGetDatasetSize(const void*) { return 0; }
EMU_API void* acltdtGetDataItem(const void*, size_t) { return nullptr; }
EMU_API void* acltdtGetDataAddrFromItem(const void*) { return nullptr; }
EMU_API size_t acltdtGetDataSizeFromItem(const void*) { return 0; }
EMU_API int acltdtGetDataTypeFromItem(const void*) { return acl::kUndefined; }
EMU_API size_t acltdtGetDimNumFromItem(const void*) { return 0; }
EMU_API aclError acltdtGetDimsFromItem(const void*, int64_t*, size_t) { return emu::fail(acl::kRtUnsupported, "%s", __func__); }
