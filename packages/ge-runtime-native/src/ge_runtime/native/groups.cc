// Process groups: HCCL's communicators, for programs that have no torch to make them.
#include "session.h"

static_assert(GEC_ROOT_BYTES == cann::kRootInfoBytes && GEC_NAME_BYTES == cann::kCommNameBytes);

namespace {

int FailGroup(const char* call, cann::HcclResult code) {
  const cann::Api& api = cann::Functions();
  std::string text = std::string(call) + " failed with " + std::to_string(code);
  const char* meaning = api.hccl_error != nullptr ? api.hccl_error(code) : nullptr;
  if (meaning != nullptr && *meaning != '\0') text += std::string(", ") + meaning;
  const char* words = api.recent_error != nullptr ? api.recent_error() : nullptr;
  if (words != nullptr && *words != '\0') text += std::string(": ") + words;
  return cann::Fail(GEC_DEVICE, text);
}

// 0, or the failure that says why there can be no groups. The calling thread uses the session's device afterwards.
int Ready() {
  const cann::Api& api = cann::Functions();
  if (const int failed = cann::TheRunner().Check(cann::TheRunner().generation)) return failed;
  if (api.root_info != nullptr && api.comm_init != nullptr && api.comm_name != nullptr && api.comm_destroy != nullptr) {
    return GEC_OK;
  }
  return cann::Fail(GEC_MISSING, "libhccl.so with HcclGetRootInfo, HcclCommInitRootInfo, HcclGetCommName and HcclCommDestroy");
}

}  // namespace

extern "C" {

int gec_group_root(void* info) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    if (const int failed = Ready()) return failed;
    const cann::HcclResult code = cann::Functions().root_info(info);
    return code == 0 ? GEC_OK : FailGroup("HcclGetRootInfo", code);
  });
}

int gec_group_open(uint32_t ranks, const void* info, uint32_t rank, void** group, char* name) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    *group = nullptr;
    if (const int failed = Ready()) return failed;
    const cann::Api& api = cann::Functions();
    cann::HcclComm made = nullptr;
    cann::HcclResult code = api.comm_init(ranks, info, rank, &made);
    if (code != 0) return FailGroup("HcclCommInitRootInfo", code);
    code = api.comm_name(made, name);
    if (code != 0) {
      const int failed = FailGroup("HcclGetCommName", code);
      api.comm_destroy(made);
      return failed;
    }
    *group = made;
    return GEC_OK;
  });
}

int gec_group_close(void* group) {
  return cann::Guarded([&]() -> int {
    const cann::Using use;
    if (const int failed = Ready()) return failed;
    const cann::HcclResult code = cann::Functions().comm_destroy(group);
    return code == 0 ? GEC_OK : FailGroup("HcclCommDestroy", code);
  });
}

}  // extern "C"
