// The calls that wait for streams, or ask whether they are done.
#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "bridge.h"
#include "capture.h"
#include "state.h"
#include "stream.h"

namespace emu {
namespace {

// Whether torch_npu made the call that returns to `address`.
bool from_torch_npu(const void* address) {
  Dl_info found;
  return dladdr(address, &found) != 0 && found.dli_fname != nullptr && std::strstr(found.dli_fname, "libtorch_npu") != nullptr;
}

// Of a failed wait torch_npu's copies to the host show the number alone. So torch_npu, on a thread of Python, gets the
// words as a C++ exception, which torch makes a RuntimeError of; everybody else gets the number.
aclError synchronize(aclrtStream handle, int32_t timeout, const void* returns_to) {
  std::shared_ptr<Stream> stream;
  if (aclError code = need_stream("aclrtSynchronizeStream", handle, &stream)) return code;
  if (aclError code = refuse_in_capture("aclrtSynchronizeStream", stream)) return code;
  const aclError code = stream->wait(timeout, acl::kRtStreamTimeout);
  if (code == acl::kOk || !bridge::may_wait() || !from_torch_npu(returns_to)) return code;
  throw std::runtime_error("ACL stream synchronize failed, error code is " + std::to_string(code) + "\n" + take_error_text());
}

}  // namespace
}  // namespace emu

using emu::fail;
using StreamPtr = std::shared_ptr<emu::Stream>;

EMU_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t timeout) {
  return emu::synchronize(handle, timeout, __builtin_return_address(0));
}

EMU_API aclError aclrtSynchronizeStream(aclrtStream handle) {
  return emu::synchronize(handle, -1, __builtin_return_address(0));
}

EMU_API aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) {
  if (aclError code = emu::need_context("aclrtSynchronizeDevice")) return code;
  if (aclError code = emu::refuse_in_capture("aclrtSynchronizeDevice", nullptr)) return code;
  aclError first = acl::kOk;
  for (auto& stream : emu::streams_of(emu::current_device()))
    if (aclError code = stream->wait(timeout, acl::kRtDeviceTimeout); first == acl::kOk) first = code;
  return first;
}

EMU_API aclError aclrtSynchronizeDevice() { return aclrtSynchronizeDeviceWithTimeout(-1); }

EMU_API aclError aclrtStreamQuery(aclrtStream handle, int* status) {
  StreamPtr stream;
  if (status == nullptr) return fail(acl::kRtParam, "aclrtStreamQuery: status is null");
  if (aclError code = emu::need_stream("aclrtStreamQuery", handle, &stream)) return code;
  if (aclError code = emu::refuse_in_capture("aclrtStreamQuery", stream)) return code;
  *status = stream->idle() ? 0 : 1;
  return acl::kOk;
}
