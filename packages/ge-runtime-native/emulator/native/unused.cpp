// Entry points that must exist and need no effect here: logging, profiling, dumps, overflow modes, bounded strings; and
// those of custom kernels, which nothing on this host could run.
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "state.h"

using emu::fail;

EMU_API void aclAppLog(int, const char*, const char*, uint32_t, const char*, ...) {}
EMU_API aclError aclmdlInitDump() { return acl::kOk; }
EMU_API aclError aclmdlSetDump(const char*) { return acl::kOk; }
EMU_API aclError aclmdlFinalizeDump() { return acl::kOk; }

EMU_API uint64_t MsprofGetHashId(const char*, size_t) { return 0; }
EMU_API int32_t MsprofRegisterCallback(uint32_t, void*) { return 0; }
EMU_API int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return 0; }
EMU_API int32_t MsprofReportApi(uint32_t, const void*) { return 0; }
EMU_API int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { return 0; }
EMU_API uint64_t MsprofSysCycleTime() { return 0; }

EMU_API aclError aclrtSetDeviceSatMode(int mode) { return mode == 0 || mode == 1 ? acl::kOk : acl::kRtParam; }
EMU_API aclError aclrtSetOpExecuteTimeOut(uint32_t) { return acl::kOk; }
EMU_API aclError aclrtSetOpExecuteTimeOutV2(uint64_t wanted, uint64_t* actual) {
  if (actual != nullptr) *actual = wanted;
  return acl::kOk;
}
EMU_API aclError aclrtSetOpWaitTimeout(uint32_t) { return acl::kOk; }
EMU_API aclError aclrtPeekAtLastError(int) { return acl::kOk; }
EMU_API aclError aclrtGetLastError(int) { return acl::kOk; }

namespace {

aclError no_kernels(const char* call) {
  return fail(acl::kRtUnsupported, "%s: binaries for an NPU's cores cannot run here; register a kernel in Python", call);
}

}  // namespace

EMU_API aclError aclrtBinaryLoadFromData(const void*, size_t, const void*, void**) { return no_kernels(__func__); }
EMU_API aclError aclrtBinaryGetFunction(void*, const char*, void**) { return no_kernels(__func__); }
EMU_API aclError aclrtGetFunctionAddr(void*, void**, void**) { return no_kernels(__func__); }
EMU_API int rtDevBinaryRegister(const void*, void**) { return no_kernels(__func__); }
EMU_API int rtFunctionRegister(void*, const void*, const char*, const void*, uint32_t) { return no_kernels(__func__); }
EMU_API int rtKernelLaunch(const void*, uint32_t, void*, uint32_t, void*, void*) { return no_kernels(__func__); }
EMU_API int rtGetC2cCtrlAddr(uint64_t*, uint32_t*) { return no_kernels(__func__); }
EMU_API aclError aclrtMemExportToShareableHandle(void*, int, uint64_t, uint64_t*) { return fail(acl::kRtUnsupported, "%s", __func__); }
EMU_API aclError aclrtMemImportFromShareableHandle(uint64_t, int32_t, void**) { return fail(acl::kRtUnsupported, "%s", __func__); }
EMU_API aclError aclrtMemSetPidToShareableHandle(uint64_t, int32_t*, size_t) { return fail(acl::kRtUnsupported, "%s", __func__); }

EMU_API int vsnprintf_s(char* to, size_t size, size_t most, const char* format, va_list args) {
  if (to == nullptr || format == nullptr || size == 0) return -1;
  const size_t room = most < size ? most + 1 : size;
  const int length = std::vsnprintf(to, room, format, args);
  return length < 0 || static_cast<size_t>(length) >= room ? -1 : length;
}

EMU_API int snprintf_s(char* to, size_t size, size_t most, const char* format, ...) {
  va_list args;
  va_start(args, format);
  const int length = vsnprintf_s(to, size, most, format, args);
  va_end(args);
  return length;
}

EMU_API int strcpy_s(char* to, size_t size, const char* from) {
  if (to == nullptr || from == nullptr) return 22;
  const size_t length = std::strlen(from);
  if (length >= size) return 34;
  std::memcpy(to, from, length + 1);
  return 0;
}
