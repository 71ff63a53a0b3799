// Allocation and copies.
#include "memory.h"

#include <sys/mman.h>

#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "bridge.h"
#include "capture.h"
#include "state.h"
#include "stream.h"

namespace emu {
namespace {

struct Block {
  size_t bytes;
  int device;
  MemoryKind kind;
};

struct Book {
  std::shared_mutex mutex;
  std::map<uintptr_t, Block> blocks;
  std::map<int, size_t> used;
};

Book& book() {
  static auto* made = new Book;
  return *made;
}

uintptr_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

size_t whole_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

void* map_pages(size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

}  // namespace

size_t room_at(const void* address, MemoryKind kind) {
  auto& b = book();
  std::shared_lock<std::shared_mutex> lock(b.mutex);
  auto after = b.blocks.upper_bound(number(address));
  if (after == b.blocks.begin()) return 0;
  auto& [start, block] = *--after;
  if (block.kind != kind || number(address) >= start + block.bytes) return 0;
  // Blocks mapped side by side into one reserved range count as one piece.
  size_t end = start + block.bytes;
  for (auto next = std::next(after); next != b.blocks.end() && next->first == end && next->second.kind == kind; ++next)
    end += next->second.bytes;
  return end - number(address);
}

aclError need_device(const char* call, const char* what, const void* address, size_t bytes) {
  if (bytes == 0) return acl::kOk;
  const size_t room = room_at(address, MemoryKind::kDevice);
  if (room >= bytes) return acl::kOk;
  if (room == 0) return fail(acl::kRtParam, "%s: %s %p is not device memory (freed, or of the host)", call, what, address);
  return fail(acl::kRtParam, "%s: %s %p has %zu bytes up to the end of its block, %zu are needed", call, what, address,
              room, bytes);
}

aclError account(int device, size_t bytes) {
  auto& b = book();
  std::unique_lock<std::shared_mutex> lock(b.mutex);
  size_t& used = b.used[device];
  if (bytes > settings().memory || used > settings().memory - bytes)
    return fail(acl::kRtOutOfMemory, "device %d is out of memory: %zu bytes asked, %zu of %zu in use", device, bytes,
                used, settings().memory);
  used += bytes;
  return acl::kOk;
}

void release(int device, size_t bytes) {
  auto& b = book();
  std::unique_lock<std::shared_mutex> lock(b.mutex);
  b.used[device] -= bytes;
}

void enter_block(void* address, size_t bytes, int device, MemoryKind kind) {
  auto& b = book();
  std::unique_lock<std::shared_mutex> lock(b.mutex);
  b.blocks[number(address)] = {bytes, device, kind};
}

bool drop_block(void* address, MemoryKind kind, size_t* bytes, int* device) {
  auto& b = book();
  std::unique_lock<std::shared_mutex> lock(b.mutex);
  auto found = b.blocks.find(number(address));
  if (found == b.blocks.end() || found->second.kind != kind) return false;
  *bytes = found->second.bytes;
  *device = found->second.device;
  b.blocks.erase(found);
  return true;
}

namespace {

aclError allocate(const char* call, void** address, size_t bytes) {
  if (address == nullptr || bytes == 0) return fail(acl::kRtParam, "%s: null result or zero bytes", call);
  if (aclError code = need_context(call)) return code;
  const int device = current_device();
  const size_t whole = whole_pages(bytes);
  if (whole < bytes) return fail(acl::kRtOutOfMemory, "%s: %zu bytes", call, bytes);
  if (aclError code = account(device, whole)) return code;
  void* made = map_pages(whole);
  if (made == nullptr) {
    release(device, whole);
    return fail(acl::kRtOutOfMemory, "%s: the host has no %zu bytes", call, bytes);
  }
  if (settings().fill) std::memset(made, 0xA5, whole);
  enter_block(made, whole, device, MemoryKind::kDevice);
  *address = made;
  return acl::kOk;
}

// Whether an address may stand on that side of a copy.
aclError check_side(const char* call, const char* what, const void* address, size_t bytes, bool on_device) {
  if (on_device) return need_device(call, what, address, bytes);
  if (address == nullptr) return fail(acl::kRtParam, "%s: %s is null", call, what);
  if (room_at(address, MemoryKind::kDevice) > 0)
    return fail(acl::kRtParam, "%s: %s %p is device memory, the kind of copy says host", call, what, address);
  return acl::kOk;
}

aclError check_copy(const char* call, void* to, size_t room, const void* from, size_t bytes, int kind) {
  if (bytes > room) return fail(acl::kRtParam, "%s: %zu bytes into room for %zu", call, bytes, room);
  if (kind < 0 || kind > 7) return fail(acl::kRtParam, "%s: unknown kind of copy %d", call, kind);
  if (bytes == 0) return acl::kOk;
  if (kind > acl::kDeviceToDevice) {
    if (to == nullptr || from == nullptr) return fail(acl::kRtParam, "%s: null address", call);
    return acl::kOk;  // 4: decided by the addresses; any address will do here
  }
  const bool to_device = kind == acl::kHostToDevice || kind == acl::kDeviceToDevice;
  const bool from_device = kind == acl::kDeviceToHost || kind == acl::kDeviceToDevice;
  if (aclError code = check_side(call, "target", to, bytes, to_device)) return code;
  return check_side(call, "source", from, bytes, from_device);
}

bool pageable(const void* address) {
  return room_at(address, MemoryKind::kDevice) == 0 && room_at(address, MemoryKind::kPinned) == 0;
}

}  // namespace
}  // namespace emu

using emu::fail;

EMU_API aclError aclrtMalloc(void** address, size_t bytes, int) { return emu::allocate("aclrtMalloc", address, bytes); }

EMU_API aclError aclrtMallocAlign32(void** address, size_t bytes, int) {
  return emu::allocate("aclrtMallocAlign32", address, bytes);
}

EMU_API aclError aclrtFree(void* address) {
  size_t bytes = 0;
  int device = 0;
  if (!emu::drop_block(address, emu::MemoryKind::kDevice, &bytes, &device))
    return fail(acl::kRtParam, "aclrtFree: %p is not a block of device memory (freed twice?)", address);
  emu::drain_device(device);  // work under way may still use it: real aclrtFree waits too
  munmap(address, bytes);
  emu::release(device, bytes);
  return acl::kOk;
}

EMU_API aclError aclrtMallocHost(void** address, size_t bytes) {
  if (address == nullptr || bytes == 0) return fail(acl::kRtParam, "aclrtMallocHost: null result or zero bytes");
  const size_t whole = emu::whole_pages(bytes);
  void* made = emu::map_pages(whole);
  if (made == nullptr) return fail(acl::kRtOutOfMemory, "aclrtMallocHost: the host has no %zu bytes", bytes);
  emu::enter_block(made, whole, -1, emu::MemoryKind::kPinned);
  *address = made;
  return acl::kOk;
}

EMU_API aclError aclrtMallocHostWithCfg(void** address, uint64_t bytes, void*) { return aclrtMallocHost(address, bytes); }

EMU_API aclError aclrtFreeHost(void* address) {
  size_t bytes = 0;
  int device = 0;
  if (!emu::drop_block(address, emu::MemoryKind::kPinned, &bytes, &device))
    return fail(acl::kRtParam, "aclrtFreeHost: %p was not allocated by aclrtMallocHost", address);
  emu::drain_all();
  munmap(address, bytes);
  return acl::kOk;
}

EMU_API aclError aclrtGetMemInfo(int, size_t* free_bytes, size_t* total) {
  if (free_bytes == nullptr || total == nullptr) return fail(acl::kRtParam, "aclrtGetMemInfo: null result");
  if (aclError code = emu::need_context("aclrtGetMemInfo")) return code;
  auto& b = emu::book();
  std::shared_lock<std::shared_mutex> lock(b.mutex);
  auto found = b.used.find(emu::current_device());
  *total = emu::settings().memory;
  *free_bytes = *total - (found == b.used.end() ? 0 : found->second);
  return acl::kOk;
}

EMU_API aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, int kind) {
  if (aclError code = emu::refuse_in_capture("aclrtMemcpy", nullptr)) return code;
  if (aclError code = emu::check_copy("aclrtMemcpy", to, room, from, bytes, kind)) return code;
  std::memmove(to, from, bytes);
  return acl::kOk;
}

EMU_API aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, int kind, aclrtStream handle) {
  if (aclError code = emu::check_copy("aclrtMemcpyAsync", to, room, from, bytes, kind)) return code;
  std::shared_ptr<emu::Stream> stream;
  if (aclError code = emu::need_stream("aclrtMemcpyAsync", handle, &stream)) return code;
  const bool waits = kind <= acl::kDeviceToHost && (emu::pageable(to) || emu::pageable(from));
  if (waits && emu::recording_of(stream) == nullptr) {  // pageable memory may be gone when the queue gets there
    if (aclError code = stream->wait(-1, acl::kRtStreamTimeout)) return code;
    std::memmove(to, from, bytes);
    return acl::kOk;
  }
  return emu::submit(handle, "copy", [=] { return std::memmove(to, from, bytes), acl::kOk; });
}

EMU_API aclError aclrtMemcpyAsyncWithCondition(void* to, size_t room, const void* from, size_t bytes, int kind,
                                               aclrtStream handle) {
  return aclrtMemcpyAsync(to, room, from, bytes, kind, handle);
}

EMU_API aclError aclrtMemset(void* address, size_t room, int32_t value, size_t bytes) {
  if (bytes > room) return fail(acl::kRtParam, "aclrtMemset: %zu bytes into room for %zu", bytes, room);
  if (aclError code = emu::refuse_in_capture("aclrtMemset", nullptr)) return code;
  if (aclError code = emu::need_device("aclrtMemset", "target", address, bytes)) return code;
  std::memset(address, value, bytes);
  return acl::kOk;
}

EMU_API aclError aclrtMemsetAsync(void* address, size_t room, int32_t value, size_t bytes, aclrtStream stream) {
  if (bytes > room) return fail(acl::kRtParam, "aclrtMemsetAsync: %zu bytes into room for %zu", bytes, room);
  if (aclError code = emu::need_device("aclrtMemsetAsync", "target", address, bytes)) return code;
  return emu::submit(stream, "fill", [=] { return std::memset(address, value, bytes), acl::kOk; });
}

EMU_API aclError aclrtHostRegister(void* address, uint64_t bytes, int, void** device_address) {
  if (address == nullptr || bytes == 0) return fail(acl::kRtParam, "aclrtHostRegister: null address or zero bytes");
  emu::enter_block(address, bytes, -1, emu::MemoryKind::kPinned);
  if (device_address != nullptr) *device_address = address;
  return acl::kOk;
}

EMU_API aclError aclrtHostUnregister(void* address) {
  size_t bytes = 0;
  int device = 0;
  if (emu::drop_block(address, emu::MemoryKind::kPinned, &bytes, &device)) return acl::kOk;
  return fail(acl::kRtParam, "aclrtHostUnregister: %p was not registered", address);
}

EMU_API aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t device, int32_t peer) {
  if (can == nullptr) return fail(acl::kRtParam, "aclrtDeviceCanAccessPeer: null result");
  *can = device != peer;  // all devices of one process share its memory
  return acl::kOk;
}

EMU_API aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return acl::kOk; }
EMU_API aclError aclrtDeviceDisablePeerAccess(int32_t) { return acl::kOk; }
EMU_API aclError aclrtDeviceGetBareTgid(int32_t* pid) { return pid == nullptr ? acl::kRtParam : (*pid = 0, acl::kOk); }
