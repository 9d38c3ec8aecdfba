//! Whether a driver takes the inline PTX of kernels for matrix units.

use super::driver::{Context, DeviceHandle};
use crate::backend::kernel::MMA;

/// A kernel with every instruction of `common/mma`.
const PROBE: &str = "
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void probe(__global uint *x) {
  __local uint4 stage[32];
  uint lid = get_local_id(0), d;
  COPY16(LOCAL_ADDRESS(stage) + lid * 16, x + lid * 4);
  COPIES_END();
  COPIES_WAIT(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  uint4 v = stage[lid];
  HALVES_SUB(d, v.x, v.y);
  HALVES_MUL(d, d, v.z);
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  MMA(sum, d, v.x, v.y, v.z, v.w, v.x);
  uint pair, b0, b1;
  HALVES_OF(pair, sum[0], sum[1]);
  LOAD_TURNED(b0, b1, LOCAL_ADDRESS(stage) + lid % 16 * 16);
  x[lid] = as_uint(sum[2]) + as_uint(sum[3]) + pair + b0 + b1;
}
";

/// What the compiler says against it; nothing where it takes them.
pub(super) fn refusal(context: &Context, device: DeviceHandle) -> Option<String> {
    let program = match context.program(&format!("{MMA}{PROBE}")) {
        Ok(program) => program,
        Err(code) => return Some(code.to_string()),
    };
    let code = program.build(device).err()?;
    let log = program.build_log(device).unwrap_or_default();
    Some(format!("{code}: {}", log.lines().next().unwrap_or_default()))
}
