// Elementwise reductions of the element types that HCCL has.
#include <algorithm>
#include <cstring>

#include "hub.h"

namespace emu::hccl {
namespace {

template <typename T>
T apply(uint32_t op, T a, T b) {
  switch (op) {
    case 0: return static_cast<T>(a + b);
    case 1: return static_cast<T>(a * b);
    case 2: return std::max(a, b);
    default: return std::min(a, b);
  }
}

template <typename T>
void whole(uint32_t op, std::string* into, const std::string& from) {
  for (size_t at = 0; at + sizeof(T) <= into->size(); at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, into->data() + at, sizeof a);
    std::memcpy(&b, from.data() + at, sizeof b);
    a = apply(op, a, b);
    std::memcpy(into->data() + at, &a, sizeof a);
  }
}

float from_bf16(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}

uint16_t to_bf16(float value) {
  uint32_t word;
  std::memcpy(&word, &value, 4);
  if ((word & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((word >> 16) | 0x40);
  return static_cast<uint16_t>((word + 0x7FFF + ((word >> 16) & 1)) >> 16);
}

float from_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 31, fraction = bits & 1023;
  float value;
  if (exponent == 0) {
    value = static_cast<float>(fraction) / 16777216.0f;
    return sign != 0 ? -value : value;
  }
  const uint32_t word = sign | ((exponent == 31 ? 255 : exponent + 112) << 23) | (fraction << 13);
  std::memcpy(&value, &word, 4);
  return value;
}

uint16_t to_half(float value) {  // to nearest, ties to even
  uint32_t word;
  std::memcpy(&word, &value, 4);
  const auto sign = static_cast<uint16_t>((word >> 16) & 0x8000);
  word &= 0x7FFFFFFF;
  if (word > 0x7F800000) return sign | 0x7E00;
  if (word >= 0x477FF000) return sign | 0x7C00;
  if (word < 0x38800000) {  // subnormal: let the addition round
    float shifted;
    std::memcpy(&shifted, &word, 4);
    shifted += 0.5f;
    std::memcpy(&word, &shifted, 4);
    return static_cast<uint16_t>(sign | (word - 0x3F000000));
  }
  return static_cast<uint16_t>(sign | ((word - 0x38000000 + 0xFFF + ((word >> 13) & 1)) >> 13));
}

void narrow(uint32_t op, std::string* into, const std::string& from, float (*wide)(uint16_t), uint16_t (*back)(float)) {
  for (size_t at = 0; at + 2 <= into->size(); at += 2) {
    uint16_t a, b;
    std::memcpy(&a, into->data() + at, 2);
    std::memcpy(&b, from.data() + at, 2);
    a = back(apply(op, wide(a), wide(b)));
    std::memcpy(into->data() + at, &a, 2);
  }
}

}  // namespace

size_t item_size(uint32_t dtype) {
  static const size_t sizes[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2};
  return dtype < 12 ? sizes[dtype] : 0;
}

bool combine(uint32_t dtype, uint32_t op, std::string* into, const std::string& from) {
  if (op > 3 || into->size() != from.size()) return false;
  switch (dtype) {
    case 0: whole<int8_t>(op, into, from); return true;
    case 1: whole<int16_t>(op, into, from); return true;
    case 2: whole<int32_t>(op, into, from); return true;
    case 3: narrow(op, into, from, from_half, to_half); return true;
    case 4: whole<float>(op, into, from); return true;
    case 5: whole<int64_t>(op, into, from); return true;
    case 6: whole<uint64_t>(op, into, from); return true;
    case 7: whole<uint8_t>(op, into, from); return true;
    case 8: whole<uint16_t>(op, into, from); return true;
    case 9: whole<uint32_t>(op, into, from); return true;
    case 10: whole<double>(op, into, from); return true;
    case 11: narrow(op, into, from, from_bf16, to_bf16); return true;
    default: return false;
  }
}

}  // namespace emu::hccl
