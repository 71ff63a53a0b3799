// Scopes of super kernels (aclsk*). Nothing is fused here: a scope is checked for its end, and launches stay as they are.
#include <mutex>
#include <string>
#include <vector>

#include "state.h"

namespace {

struct Scopes {
  std::mutex mutex;
  std::vector<std::string> open;
};

Scopes& scopes() {
  static auto* made = new Scopes;
  return *made;
}

}  // namespace

EMU_API aclError aclskScopeBegin(const char* name) {
  auto& all = scopes();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.open.emplace_back(name == nullptr ? "" : name);
  return acl::kOk;
}

EMU_API aclError aclskScopeEnd(const char* name) {
  auto& all = scopes();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.open.empty()) return emu::fail(acl::kRtParam, "aclskScopeEnd: no scope is open");
  if (name != nullptr && all.open.back() != name)
    return emu::fail(acl::kRtParam, "aclskScopeEnd: '%s' ends, '%s' is open", name, all.open.back().c_str());
  all.open.pop_back();
  return acl::kOk;
}

// Would fuse the tasks of a captured graph; its options are the caller's to check.
EMU_API aclError aclskOptimize(void* graph) {
  return graph == nullptr ? emu::fail(acl::kRtParam, "aclskOptimize: graph is null") : acl::kOk;
}
