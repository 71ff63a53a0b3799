// Descriptions of launched operators for CANN's compiler of kernels: there are no kernels here, so nothing is written.
#include "state.h"

EMU_API aclError aclopStartDumpArgs(uint32_t, const char* path) {
  if (path == nullptr || *path == 0) return emu::fail(acl::kInvalidParam, "aclopStartDumpArgs: path is empty");
  return acl::kOk;
}
EMU_API aclError aclopStopDumpArgs(uint32_t) { return acl::kOk; }
