// Cores of chips by the names that GE knows them by, from CANN's platform_config/<name>.ini ([SoCInfo]: cube_core_cnt, or
// ai_core_cnt where the cores are not split; vector_core_cnt). Rows: name, cube, vector. Read by ge_emulator.chips too.
#pragma once

#include <cstdint>

namespace emu {

struct Chip {
  const char* name;
  int64_t cube_cores;
  int64_t vector_cores;
};

// Where each file was seen: Ascend910A and Ascend910B2C in the published sources of CANN's runtime; the others quoted in
// public documents. A chip that is not here has cores that are not known.
constexpr Chip kChips[] = {
    {"Ascend910A", 32, 0},
    {"Ascend910B1", 24, 48},
    {"Ascend910B2", 24, 48},
    {"Ascend910B2C", 24, 48},
    {"Ascend310P3", 8, 7},
};

}  // namespace emu
