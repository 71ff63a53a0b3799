// Reserved address ranges and physical pieces mapped into them: what expandable segments of an allocator use.
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "memory.h"
#include "state.h"
#include "stream.h"

namespace emu {
namespace {

struct Piece {
  int file;
  size_t bytes;
  int device;
};

struct Ranges {
  std::mutex mutex;
  std::map<void*, size_t> reserved;
};

Ranges& ranges() {
  static auto* made = new Ranges;
  return *made;
}

}  // namespace
}  // namespace emu

using emu::fail;

EMU_API aclError aclrtReserveMemAddress(void** address, size_t bytes, size_t, void*, uint64_t) {
  if (address == nullptr || bytes == 0) return fail(acl::kRtParam, "aclrtReserveMemAddress: null result or zero bytes");
  void* made = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return fail(acl::kRtOutOfMemory, "aclrtReserveMemAddress: no range of %zu bytes", bytes);
  auto& all = emu::ranges();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.reserved[made] = bytes;
  *address = made;
  return acl::kOk;
}

EMU_API aclError aclrtReleaseMemAddress(void* address) {
  auto& all = emu::ranges();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto found = all.reserved.find(address);
  if (found == all.reserved.end()) return fail(acl::kRtParam, "aclrtReleaseMemAddress: %p was not reserved", address);
  munmap(address, found->second);
  all.reserved.erase(found);
  return acl::kOk;
}

EMU_API aclError aclrtMallocPhysical(void** handle, size_t bytes, const void*, uint64_t) {
  if (handle == nullptr || bytes == 0) return fail(acl::kRtParam, "aclrtMallocPhysical: null result or zero bytes");
  if (aclError code = emu::need_context("aclrtMallocPhysical")) return code;
  const int device = emu::current_device();
  if (aclError code = emu::account(device, bytes)) return code;
  const int file = memfd_create("npu-memory", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    if (file >= 0) close(file);
    emu::release(device, bytes);
    return fail(acl::kRtOutOfMemory, "aclrtMallocPhysical: the host has no %zu bytes", bytes);
  }
  *handle = new emu::Piece{file, bytes, device};
  return acl::kOk;
}

EMU_API aclError aclrtFreePhysical(void* handle) {
  if (handle == nullptr) return fail(acl::kRtParam, "aclrtFreePhysical: null handle");
  auto* piece = static_cast<emu::Piece*>(handle);
  close(piece->file);
  emu::release(piece->device, piece->bytes);
  delete piece;
  return acl::kOk;
}

EMU_API aclError aclrtMapMem(void* address, size_t bytes, size_t offset, void* handle, uint64_t) {
  if (handle == nullptr || address == nullptr) return fail(acl::kRtParam, "aclrtMapMem: null address or handle");
  auto* piece = static_cast<emu::Piece*>(handle);
  if (offset > piece->bytes || bytes > piece->bytes - offset)
    return fail(acl::kRtParam, "aclrtMapMem: %zu bytes at %zu of a piece of %zu", bytes, offset, piece->bytes);
  void* made = mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, piece->file,
                    static_cast<off_t>(offset));
  if (made == MAP_FAILED) return fail(acl::kRtParam, "aclrtMapMem: %p cannot be mapped", address);
  emu::enter_block(address, bytes, piece->device, emu::MemoryKind::kDevice);
  return acl::kOk;
}

EMU_API aclError aclrtUnmapMem(void* address) {
  size_t bytes = 0;
  int device = 0;
  if (!emu::drop_block(address, emu::MemoryKind::kDevice, &bytes, &device))
    return fail(acl::kRtParam, "aclrtUnmapMem: nothing is mapped at %p", address);
  emu::drain_device(device);
  mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return acl::kOk;
}
