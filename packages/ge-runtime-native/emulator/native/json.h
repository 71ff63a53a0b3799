// Writing JSON, the form in which descriptions travel to the Python side.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

namespace emu::json {

inline std::string text(const std::string& value) {
  std::string out = "\"";
  for (const char c : value) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", u);
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Python's reader knows NaN and Infinity; 17 digits name every double.
inline std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char digits[40];
  std::snprintf(digits, sizeof digits, "%.17g", value);
  return digits;
}

inline std::string hex(const void* data, size_t size) {
  static const char* digits = "0123456789abcdef";
  std::string out = "\"";
  for (size_t i = 0; i < size; ++i) {
    const auto byte = static_cast<const unsigned char*>(data)[i];
    out += digits[byte >> 4];
    out += digits[byte & 15];
  }
  return out + "\"";
}

template <typename Items, typename Write>
std::string list(const Items& items, Write write) {
  std::string out = "[";
  for (const auto& item : items) {
    if (out.size() > 1) out += ',';
    out += write(item);
  }
  return out + "]";
}

}  // namespace emu::json
