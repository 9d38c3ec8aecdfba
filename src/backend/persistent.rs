//! Persistent kernels on CPUs: kernels of consecutive dispatches become the stages of one kernel,
//! so that one launch runs them all.
//!
//! A CPU driver puts its threads to sleep after each launch and wakes them for the next, which
//! takes longer than a small kernel. Here the work-groups of one launch, one per core, take the
//! work-groups of a stage from a counter, and move on to the next stage once all of them are done.
//! A work-group that waits has no work left to take, so it waits only for others that already run.
//! There is no deadlock, whatever the number of the driver's threads and the order in which they
//! start.
//!
//! A stage is its kernel's text as a function of the work-group's position; names shared by stages
//! are renamed. Its work-group is a single work-item with local memory of its own, as in kernels
//! that use explicit vectors.

use super::kernel::{ExpandError, FOLDED, HALF, KernelSpec, Language};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Name of the entry point.
pub const ENTRY: &str = "persistent";

/// Words per counter, so that no two counters share a cache line.
const APART: usize = 32;

/// Bytes of the counters of this many stages. They must be 0 before the first launch, and are 0
/// again after each one.
pub fn counter_bytes(stages: usize) -> usize {
    4 * APART * (2 * stages + 1)
}

/// Ends a stage: counts what this work-group has done and waits for the others. CPU fences on both
/// sides make earlier writes visible, because OpenCL 1.2 atomics order nothing. The plain read
/// leaves the cache line with the threads that count.
const TAKE: &str = "
#if defined(__x86_64__)
#define WAIT __builtin_ia32_pause()
#else
#define WAIT
#endif
static void meet(volatile __global uint *done, uint mine, uint all) {
  __sync_synchronize();
  if (mine > 0) atomic_add(done, mine);
  while (*done < all) WAIT;
  __sync_synchronize();
}
";

/// What a text defines: its macros, and its functions and types, which must be renamed.
fn defined(text: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let word = |text: &str| text.find(|c| !is_part(c)).unwrap_or(text.len());
    let (mut macros, mut others) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("#define ") {
            macros.insert(rest.get(..word(rest)).unwrap_or(rest));
        } else if let Some(head) = line
            .strip_prefix("inline ")
            .and_then(|rest| rest.split('(').next())
        {
            others.extend(head.rsplit([' ', '*']).next());
        } else if line.starts_with("typedef ") {
            let head = line.split("__attribute__").next().unwrap_or(line);
            let head = head.trim_end_matches(|c| !is_part(c));
            others.extend(head.rsplit(|c| !is_part(c)).next());
        }
    }
    // A name that is a function on some devices and a macro on others is not renamed.
    others.retain(|name| !macros.contains(name));
    (macros, others)
}

/// Whether the kernel can be a stage.
///
/// # Errors
///
/// Its text cannot be expanded.
pub fn is_stage(spec: &KernelSpec) -> Result<bool, ExpandError> {
    if !spec.images.is_empty() || spec.workgroup != 1 || spec.defines.contains_key(FOLDED) {
        return Ok(false);
    }
    let text = spec.expand(Language::OpenClC)?;
    let counts = ["get_num_groups(", "get_global_size(", "get_global_offset("];
    Ok(!counts.iter().any(|call| text.contains(call)))
}

/// The OpenCL C text of a persistent kernel with these stages. Its arguments are the operands of
/// all stages, then the parameters and grid (`uint4`) of each, then the counters
/// ([`counter_bytes`]). It runs in work-groups of one work-item.
///
/// # Errors
///
/// The text of a stage cannot be expanded.
pub fn text(stages: &[&KernelSpec]) -> Result<String, ExpandError> {
    let mut out = format!("{HALF}{TAKE}");
    out.push_str("#define __local\n#define barrier(flags)\n");
    out.push_str(
        "#define get_group_id(axis) ((axis) == 0 ? group_at.x : (axis) == 1 ? group_at.y : group_at.z)\n",
    );
    out.push_str("#define get_global_id(axis) get_group_id(axis)\n");
    let (mut operands, mut values, mut calls) = (Vec::new(), Vec::new(), String::new());
    for (i, spec) in stages.iter().enumerate() {
        let body = spec.expand_stage(&format!("stage{i}"))?;
        let (macros, own) = defined(&body);
        for n in &own {
            let _ = writeln!(out, "#define {n} {n}_{i}");
        }
        out.push_str(&body);
        for n in macros.iter().chain(&own) {
            let _ = writeln!(out, "#undef {n}");
        }
        let mut given = String::new();
        for operand in spec.signature_cl("") {
            let (ty, n) = operand.split_at(operand.rfind(['*', ' ']).map_or(0, |at| at + 1));
            let _ = write!(given, "o{i}_{n}, ");
            operands.push(format!("{ty}o{i}_{n}"));
        }
        values.push(format!("const Params_{i} p{i}, const uint4 grid{i}"));
        let (taken, done) = (2 * i * APART, (2 * i + 1) * APART);
        let _ = write!(
            calls,
            "  all = grid{i}.x * grid{i}.y * grid{i}.z;
  mine = 0;
  for (uint i = atomic_inc(counters + {taken}); i < all; i = atomic_inc(counters + {taken})) {{
    uint4 at = (uint4)(i % grid{i}.x, i / grid{i}.x % grid{i}.y, i / grid{i}.x / grid{i}.y, 0);
    stage{i}({given}p{i}, at);
    mine++;
  }}
  meet(counters + {done}, mine, all);
"
        );
    }
    operands.extend(values);
    let last = 2 * stages.len() * APART;
    let _ = write!(
        out,
        "#undef __local
#undef barrier
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void {ENTRY}({}, volatile __global uint *counters) {{
  uint all, mine;
{calls}  if (atomic_inc(counters + {last}) + 1 < get_num_groups(0)) return;
  for (uint i = 0; i <= {last}; i += {APART}) counters[i] = 0;
}}
",
        operands.join(", ")
    );
    Ok(out)
}
