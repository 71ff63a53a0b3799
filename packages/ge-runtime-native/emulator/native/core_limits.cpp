// Upper limits of cores, of a device, of a stream and of a thread that takes a stream's (aclrt*ResLimit). They are kept
// and answered; nothing here runs on cores.
#include <map>
#include <memory>
#include <mutex>

#include "state.h"
#include "stream.h"

using emu::fail;

namespace {

constexpr int kKinds = 2;  // cube cores, vector cores

struct Limits {
  int64_t of[kKinds] = {-1, -1};  // -1: no limit of its own
};

struct Book {
  std::mutex mutex;
  std::map<int, Limits> devices;
  std::map<uint32_t, Limits> streams;  // by the stream's number, which no other stream gets
};

Book& book() {
  static auto* made = new Book;
  return *made;
}

thread_local uint32_t used = 0;  // the stream whose limits this thread takes
thread_local bool uses = false;

aclError need_kind(const char* call, int kind) {
  if (kind < 0 || kind >= kKinds) return fail(acl::kRtParam, "%s: unknown kind of core %d", call, kind);
  if (emu::settings().cube_cores < 0)
    return fail(acl::kRtParam, "%s: the cores of %s are not known here", call, emu::settings().chip.c_str());
  return acl::kOk;
}

aclError need_device(const char* call, int device) {
  if (device >= 0 && static_cast<uint32_t>(device) < emu::settings().devices) return acl::kOk;
  return fail(acl::kRtDevice, "%s: device %d", call, device);
}

int64_t cores(int kind) { return kind == 0 ? emu::settings().cube_cores : emu::settings().vector_cores; }

// A limit above what the chip has is the chip's.
void limit(Limits& limits, int kind, uint32_t value) {
  limits.of[kind] = value < cores(kind) ? static_cast<int64_t>(value) : cores(kind);
}

// With the book's lock: the stream's, else the device's, else what the chip has.
uint32_t found(const Limits* stream, int device, int kind) {
  if (stream != nullptr && stream->of[kind] >= 0) return static_cast<uint32_t>(stream->of[kind]);
  auto of_device = book().devices.find(device);
  if (of_device != book().devices.end() && of_device->second.of[kind] >= 0)
    return static_cast<uint32_t>(of_device->second.of[kind]);
  return static_cast<uint32_t>(cores(kind));
}

const Limits* of_stream(uint32_t id) {
  auto it = book().streams.find(id);
  return it == book().streams.end() ? nullptr : &it->second;
}

}  // namespace

EMU_API aclError aclrtGetDeviceResLimit(int32_t device, int kind, uint32_t* value) {
  if (value == nullptr) return fail(acl::kRtParam, "aclrtGetDeviceResLimit: value is null");
  if (aclError code = need_device("aclrtGetDeviceResLimit", device)) return code;
  if (aclError code = need_kind("aclrtGetDeviceResLimit", kind)) return code;
  std::lock_guard<std::mutex> lock(book().mutex);
  *value = found(nullptr, device, kind);
  return acl::kOk;
}

EMU_API aclError aclrtSetDeviceResLimit(int32_t device, int kind, uint32_t value) {
  if (aclError code = need_device("aclrtSetDeviceResLimit", device)) return code;
  if (aclError code = need_kind("aclrtSetDeviceResLimit", kind)) return code;
  std::lock_guard<std::mutex> lock(book().mutex);
  limit(book().devices[device], kind, value);
  return acl::kOk;
}

EMU_API aclError aclrtResetDeviceResLimit(int32_t device) {
  if (aclError code = need_device("aclrtResetDeviceResLimit", device)) return code;
  std::lock_guard<std::mutex> lock(book().mutex);
  book().devices.erase(device);
  return acl::kOk;
}

EMU_API aclError aclrtGetStreamResLimit(aclrtStream handle, int kind, uint32_t* value) {
  std::shared_ptr<emu::Stream> stream;
  if (value == nullptr) return fail(acl::kRtParam, "aclrtGetStreamResLimit: value is null");
  if (aclError code = emu::need_stream("aclrtGetStreamResLimit", handle, &stream)) return code;
  if (aclError code = need_kind("aclrtGetStreamResLimit", kind)) return code;
  std::lock_guard<std::mutex> lock(book().mutex);
  *value = found(of_stream(stream->id()), stream->device(), kind);
  return acl::kOk;
}

EMU_API aclError aclrtSetStreamResLimit(aclrtStream handle, int kind, uint32_t value) {
  std::shared_ptr<emu::Stream> stream;
  if (aclError code = emu::need_stream("aclrtSetStreamResLimit", handle, &stream)) return code;
  if (aclError code = need_kind("aclrtSetStreamResLimit", kind)) return code;
  std::lock_guard<std::mutex> lock(book().mutex);
  limit(book().streams[stream->id()], kind, value);
  return acl::kOk;
}

EMU_API aclError aclrtResetStreamResLimit(aclrtStream handle) {
  std::shared_ptr<emu::Stream> stream;
  if (aclError code = emu::need_stream("aclrtResetStreamResLimit", handle, &stream)) return code;
  std::lock_guard<std::mutex> lock(book().mutex);
  book().streams.erase(stream->id());
  return acl::kOk;
}

EMU_API aclError aclrtUseStreamResInCurrentThread(aclrtStream handle) {
  std::shared_ptr<emu::Stream> stream;
  if (aclError code = emu::need_stream("aclrtUseStreamResInCurrentThread", handle, &stream)) return code;
  used = stream->id(), uses = true;
  return acl::kOk;
}

EMU_API aclError aclrtUnuseStreamResInCurrentThread(aclrtStream handle) {
  std::shared_ptr<emu::Stream> stream;
  if (aclError code = emu::need_stream("aclrtUnuseStreamResInCurrentThread", handle, &stream)) return code;
  uses = false;
  return acl::kOk;
}

EMU_API aclError aclrtGetResInCurrentThread(int kind, uint32_t* value) {
  if (value == nullptr) return fail(acl::kRtParam, "aclrtGetResInCurrentThread: value is null");
  if (aclError code = emu::need_context("aclrtGetResInCurrentThread")) return code;
  if (aclError code = need_kind("aclrtGetResInCurrentThread", kind)) return code;
  std::lock_guard<std::mutex> lock(book().mutex);
  *value = found(uses ? of_stream(used) : nullptr, emu::current_device(), kind);
  return acl::kOk;
}
