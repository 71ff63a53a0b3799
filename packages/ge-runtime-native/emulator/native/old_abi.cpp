// ge::GEGetErrorMsg returns std::string in its old layout; this file alone is compiled with it.
#include <string>

extern "C" const char* TairEmulatorTakeError();

namespace ge {
__attribute__((visibility("default"))) std::string GEGetErrorMsg() { return TairEmulatorTakeError(); }
}  // namespace ge
