// The one function of CANN that hands out a std::string: it was compiled with the old C++ ABI of libstdc++, so this
// file is too (see CMakeLists.txt), and gives the text on as plain characters.
#include <cstdlib>
#include <cstring>
#include <string>

static_assert(sizeof(std::string) == 8, "compile this file with _GLIBCXX_USE_CXX11_ABI=0");

extern "C" __attribute__((visibility("hidden"))) char* gec_old_error_text(void* function) {
  try {
    std::string text = reinterpret_cast<std::string (*)()>(function)();
    return strdup(text.c_str());
  } catch (...) {
    return nullptr;  // an error's text, and no error of its own
  }
}
