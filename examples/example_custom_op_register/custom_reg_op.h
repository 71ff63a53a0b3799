// The prototype of the new operator, as the operator's own project has it.
#include "graph/operator_reg.h"

namespace ge {
/**
 * @brief y = x * scale + shift, where shift may be left out.
 */
REG_OP(ScaleShift)
    .INPUT(x, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .OPTIONAL_INPUT(shift, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .OUTPUT(y, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16}))
    .ATTR(scale, Float, 1.0)
    .OP_END_FACTORY_REG(ScaleShift)
}  // namespace ge
