// Starting and ending, devices and their contexts, and what a device says of itself.
#include <cstdio>
#include <vector>

#include "acl.h"
#include "bridge.h"
#include "state.h"
#include "stream.h"

namespace emu {
namespace {

bool initialised = false;

// One primary context a device, made on first use and never freed: handles stay valid until the process ends.
std::vector<Context>& contexts() {
  static auto* all = [] {
    auto* made = new std::vector<Context>(settings().devices);
    for (size_t i = 0; i < made->size(); ++i) (*made)[i].device = static_cast<int>(i);
    return made;
  }();
  return *all;
}

}  // namespace
}  // namespace emu

using emu::fail;

EMU_API aclError aclInit(const char*) {
  emu::note_process();
  if (emu::initialised) return acl::kRepeatInitialise;
  emu::initialised = true;
  emu::bridge::start_if_python();
  return acl::kOk;
}

EMU_API aclError aclFinalize() {
  if (!emu::initialised) return fail(acl::kUninitialised, "aclFinalize before aclInit");
  emu::drain_all();
  emu::initialised = false;
  return acl::kOk;
}

EMU_API const char* aclGetRecentErrMsg() { return emu::take_error_text(); }

EMU_API const char* aclrtGetSocName() { return emu::settings().chip.c_str(); }

EMU_API aclError aclrtGetDeviceCount(uint32_t* count) {
  if (count == nullptr) return fail(acl::kRtParam, "aclrtGetDeviceCount: count is null");
  *count = emu::settings().devices;
  return acl::kOk;
}

EMU_API aclError aclrtSetDevice(int32_t device) {
  emu::note_process();
  if (aclError code = emu::refuse_in_fork("aclrtSetDevice")) return code;
  if (device < 0 || static_cast<uint32_t>(device) >= emu::settings().devices)
    return fail(acl::kRtDevice, "aclrtSetDevice: device %d, but there are %u", device, emu::settings().devices);
  emu::set_context(&emu::contexts()[static_cast<size_t>(device)]);
  return acl::kOk;
}

EMU_API aclError aclrtGetDevice(int32_t* device) {
  if (device == nullptr) return fail(acl::kRtParam, "aclrtGetDevice: device is null");
  if (emu::current_context() == nullptr) return acl::kRtNoContext;  // a question, not a failure: no text
  *device = emu::current_device();
  return acl::kOk;
}

EMU_API aclError aclrtResetDevice(int32_t device) {
  if (device < 0 || static_cast<uint32_t>(device) >= emu::settings().devices)
    return fail(acl::kRtDevice, "aclrtResetDevice: device %d, but there are %u", device, emu::settings().devices);
  emu::drain_device(device);
  if (emu::current_device() == device) emu::set_context(nullptr);
  return acl::kOk;
}

EMU_API aclError aclrtResetDeviceForce(int32_t device) { return aclrtResetDevice(device); }

EMU_API aclError aclrtCreateContext(aclrtContext* made, int32_t device) {
  if (made == nullptr) return fail(acl::kRtParam, "aclrtCreateContext: context is null");
  if (aclError code = aclrtSetDevice(device)) return code;
  auto* context = new emu::Context{device};
  emu::set_context(context);
  *made = context;
  return acl::kOk;
}

EMU_API aclError aclrtDestroyContext(aclrtContext) { return acl::kOk; }  // contexts are a word each and stay readable

EMU_API aclError aclrtGetCurrentContext(aclrtContext* found) {
  if (found == nullptr) return fail(acl::kRtParam, "aclrtGetCurrentContext: context is null");
  *found = emu::current_context();
  return *found == nullptr ? acl::kRtNoContext : acl::kOk;
}

EMU_API aclError aclrtSetCurrentContext(aclrtContext wanted) {
  if (wanted == nullptr) return fail(acl::kRtParam, "aclrtSetCurrentContext: context is null");
  emu::set_context(static_cast<emu::Context*>(wanted));
  return acl::kOk;
}

EMU_API aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active) {
  if (device < 0 || static_cast<uint32_t>(device) >= emu::settings().devices)
    return fail(acl::kRtDevice, "aclrtGetPrimaryCtxState: device %d", device);
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = emu::initialised ? 1 : 0;
  return acl::kOk;
}

EMU_API aclError aclGetDeviceCapability(uint32_t device, int info, int64_t* value) {
  if (value == nullptr || device >= emu::settings().devices) return fail(acl::kRtParam, "aclGetDeviceCapability");
  const auto& settings = emu::settings();
  if (info < 2 && settings.cube_cores < 0)
    return fail(acl::kRtParam, "aclGetDeviceCapability: the cores of %s are not known here", settings.chip.c_str());
  switch (info) {
    case 0: *value = settings.cube_cores; return acl::kOk;
    case 1: *value = settings.vector_cores; return acl::kOk;
    case 2: *value = 192 << 20; return acl::kOk;
    default: return fail(acl::kRtParam, "aclGetDeviceCapability: unknown question %d", info);
  }
}

EMU_API aclError aclsysGetCANNVersion(int package, void* version) {
  // char version[128], then parts: only the text was ever read.
  if (version == nullptr || package < 0 || package > 7) return fail(acl::kInvalidParam, "aclsysGetCANNVersion");
  if (emu::settings().cann.empty()) return fail(acl::kInternal, "no version file");
  std::snprintf(static_cast<char*>(version), 128, "%s", emu::settings().cann.c_str());
  return acl::kOk;
}

EMU_API aclError aclsysGetVersionStr(char* package, char* version) {
  if (package == nullptr || version == nullptr) return fail(acl::kInvalidParam, "aclsysGetVersionStr");
  std::snprintf(version, 128, "%s", emu::settings().cann.c_str());
  return acl::kOk;
}
