//! Checks whether a driver's compiler accepts the inline PTX for tensor cores and packed dot
//! products.

use super::build::{Builder, Tried};
use crate::backend::kernel::CAT;
use crate::backend::{PackedDot, Stats};

const MMA: &str = include_str!("../../../cl/common/mma.cl");
const DOT: &str = include_str!("../../../cl/common/dot.cl");

/// A kernel with the instructions of `common/mma` that some GPUs with inline PTX lack.
const PROBE: &str = "
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void probe(__global uint *x) {
  __local uint4 stage[32];
  uint lid = get_local_id(0), d;
  COPY16(LOCAL_ADDRESS(stage) + lid * 16, x + lid * 4);
  COPIES_COMMIT();
  COPIES_WAIT(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  uint4 v = stage[lid];
  HALVES_SUB(d, v.x, v.y);
  HALVES_MUL(d, d, v.z);
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  MMA(sum, d, v.x, v.y, v.z, v.w, v.x);
  uint pair, b0, b1;
  HALVES_OF(pair, sum[0], sum[1]);
  LOAD_TRANSPOSED(b0, b1, LOCAL_ADDRESS(stage) + lid % 16 * 16);
  x[lid] = as_uint(sum[2]) + as_uint(sum[3]) + pair + b0 + b1;
}
";

/// A kernel that uses the function of `common/dot`.
const DOT_PROBE: &str = "
__kernel void probe(__global int *x) {
  x[0] = dot_one(x[0], as_uint(x[1]), as_uint(x[2]));
}
";

/// The compiler's error for the inline PTX of tensor core kernels; `None` if it accepts it.
pub(super) fn refusal(builder: Builder<'_>, stats: &mut Stats) -> Option<String> {
    refused(builder, "probe of tensor cores", format!("{MMA}{PROBE}"), stats)
}

/// The compiler's error for a packed dot product that the driver lists. Some drivers support the
/// extension only in later versions of the language.
pub(super) fn dot_refusal(builder: Builder<'_>, stats: &mut Stats) -> Option<String> {
    let dot = builder.caps.profile.packed_dot;
    let define = dot
        .define()
        .filter(|_| matches!(dot, PackedDot::Khr | PackedDot::Arm))?;
    let text = format!("{CAT}#define COLS 4\n#define {define} 1\n{DOT}{DOT_PROBE}");
    refused(builder, "probe of packed dot products", text, stats)
}

/// The compiler's error for a program. The answer is stored, and later starts do not ask again.
fn refused(builder: Builder<'_>, name: &str, text: String, stats: &mut Stats) -> Option<String> {
    match builder.tries(name, text) {
        Ok(Tried::Stored) => stats.cached += 1,
        Ok(Tried::Compiled) => stats.compiles += 1,
        Ok(Tried::Refused(why)) => return Some(why),
        Err(why) => return Some(why.to_string()),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A compiler would refuse the probe for a name that it does not know, as a device without the
    /// instructions refuses it.
    #[test]
    fn probe_calls_macros_of_mma() {
        let names = PROBE.split(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
        let is_macro = |name: &&str| name.len() > 2 && name.starts_with(|c: char| c.is_ascii_uppercase());
        let flags = ["CLK_LOCAL_MEM_FENCE"];
        let mut used: Vec<&str> = names.filter(is_macro).filter(|n| !flags.contains(n)).collect();
        assert!(used.len() > 5, "{used:?}");
        used.retain(|name| !MMA.contains(&format!("#define {name}(")));
        assert!(used.is_empty(), "{used:?}");
    }
}
