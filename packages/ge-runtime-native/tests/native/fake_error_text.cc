// The function with the old C++ ABI in its signature; compiled with _GLIBCXX_USE_CXX11_ABI=0.
#include <cstdlib>
#include <string>

extern "C" char* fake_error_text();

namespace ge {
std::string GEGetErrorMsg() {
  char* text = fake_error_text();
  std::string found(text);
  std::free(text);
  return found;
}
}  // namespace ge
