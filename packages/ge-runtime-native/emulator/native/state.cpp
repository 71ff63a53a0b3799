// Settings, error texts, devices and contexts.
#include "state.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "bridge.h"
#include "chips.h"
#include "stream.h"

namespace acl {

size_t bits_of(int dtype) {
  switch (dtype) {
    case 2: case 4: case 12: case 34: case 35: case 36: case 37: return 8;
    case 1: case 6: case 7: case 27: return 16;
    case 0: case 3: case 8: case 33: return 32;
    case 9: case 10: case 11: case 16: return 64;
    case 17: return 128;
    case 29: case 40: case 41: return 4;
    case 30: return 1;
    case 38: case 39: return 6;
    default: return 0;
  }
}

}  // namespace acl

namespace emu {
namespace {

struct Context {
  int device;
};

thread_local std::string error_text;
thread_local std::string given_text;  // what the last aclGetRecentErrMsg returned must stay readable
thread_local Context* context = nullptr;

size_t bytes_from(const char* text, size_t otherwise) {
  if (text == nullptr || *text == 0) return otherwise;
  char* end = nullptr;
  double number = std::strtod(text, &end);
  if (end == text || number <= 0) return otherwise;
  switch (*end) {
    case 'k': case 'K': return static_cast<size_t>(number * 1024);
    case 'm': case 'M': return static_cast<size_t>(number * 1048576);
    case 'g': case 'G': return static_cast<size_t>(number * 1073741824);
    default: return static_cast<size_t>(number);
  }
}

Settings read_settings() {
  Settings s;
  if (const char* v = std::getenv("TAIR_EMULATOR_DEVICES")) s.devices = static_cast<uint32_t>(std::atoi(v));
  if (const char* v = std::getenv("TAIR_EMULATOR_CHIP"); v != nullptr && *v != 0) s.chip = v;
  if (const char* v = std::getenv("TAIR_EMULATOR_CANN")) s.cann = v;
  s.memory = bytes_from(std::getenv("TAIR_EMULATOR_MEMORY"), s.memory);
  s.fill = std::getenv("TAIR_EMULATOR_FILL") != nullptr;
  for (const Chip& chip : kChips)
    if (s.chip == chip.name) s.cube_cores = chip.cube_cores, s.vector_cores = chip.vector_cores;
  return s;
}

// One primary context a device, made on first use and never freed: handles stay valid until the process ends.
std::vector<Context>& contexts() {
  static auto* all = [] {
    auto* made = new std::vector<Context>(settings().devices);
    for (size_t i = 0; i < made->size(); ++i) (*made)[i].device = static_cast<int>(i);
    return made;
  }();
  return *all;
}

bool initialised = false;
bool forked = false;
pid_t owner = 0;

void note_process() {
  static std::once_flag once;
  std::call_once(once, [] {
    owner = getpid();
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
  });
}

}  // namespace

const Settings& settings() {
  static const auto* read = new Settings(read_settings());
  return *read;
}

aclError fail(aclError code, const char* format, ...) {
  char text[4096];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  set_error_text("EZ9999: [emulator] " + std::to_string(code) + ": " + text);
  log("error %d: %s", code, text);
  return code;
}

void set_error_text(const std::string& text) {
  if (!error_text.empty()) error_text += "\n";
  error_text += text;
}

const char* take_error_text() {
  given_text.swap(error_text);
  error_text.clear();
  return given_text.c_str();
}

std::string peek_error_text() { return error_text; }

int current_device() { return context == nullptr ? -1 : context->device; }

aclError need_context(const char* call) {
  if (context == nullptr) return fail(acl::kRtNoContext, "%s: this thread has no context; call aclrtSetDevice", call);
  return refuse_in_fork(call);
}

aclError refuse_in_fork(const char* call) {
  if (!forked) return acl::kOk;
  return fail(acl::kRtNoContext, "%s: this process was forked from %d, which holds the device; use spawn", call, owner);
}

void log(const char* format, ...) {
  static const bool wanted = std::getenv("TAIR_EMULATOR_LOG") != nullptr;
  if (!wanted) return;
  char text[4096];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  std::fprintf(stderr, "[emulator %d] %s\n", getpid(), text);
}

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
  emu::context = &emu::contexts()[static_cast<size_t>(device)];
  return acl::kOk;
}

EMU_API aclError aclrtGetDevice(int32_t* device) {
  if (device == nullptr) return fail(acl::kRtParam, "aclrtGetDevice: device is null");
  if (emu::context == nullptr) return acl::kRtNoContext;  // a question, not a failure: no text
  *device = emu::context->device;
  return acl::kOk;
}

EMU_API aclError aclrtResetDevice(int32_t device) {
  if (device < 0 || static_cast<uint32_t>(device) >= emu::settings().devices)
    return fail(acl::kRtDevice, "aclrtResetDevice: device %d, but there are %u", device, emu::settings().devices);
  emu::drain_device(device);
  if (emu::context != nullptr && emu::context->device == device) emu::context = nullptr;
  return acl::kOk;
}

EMU_API aclError aclrtResetDeviceForce(int32_t device) { return aclrtResetDevice(device); }

EMU_API aclError aclrtCreateContext(aclrtContext* made, int32_t device) {
  if (made == nullptr) return fail(acl::kRtParam, "aclrtCreateContext: context is null");
  if (aclError code = aclrtSetDevice(device)) return code;
  *made = emu::context = new emu::Context{device};
  return acl::kOk;
}

EMU_API aclError aclrtDestroyContext(aclrtContext) { return acl::kOk; }  // contexts are a word each and stay readable

EMU_API aclError aclrtGetCurrentContext(aclrtContext* found) {
  if (found == nullptr) return fail(acl::kRtParam, "aclrtGetCurrentContext: context is null");
  *found = emu::context;
  return emu::context == nullptr ? acl::kRtNoContext : acl::kOk;
}

EMU_API aclError aclrtSetCurrentContext(aclrtContext wanted) {
  if (wanted == nullptr) return fail(acl::kRtParam, "aclrtSetCurrentContext: context is null");
  emu::context = static_cast<emu::Context*>(wanted);
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
