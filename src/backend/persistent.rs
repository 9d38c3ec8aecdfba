//! Persistent kernels on CPUs: the kernels of dispatches that follow one another as the stages of one, so that there is one launch for all of them.
//!
//! A driver for CPUs puts its threads to sleep behind each launch and wakes them for the next, which takes longer than a small kernel. Here the
//! work-groups of a launch, one for each core, take the work-groups of a stage from a counter one after another, and go on to the next stage once all
//! of this one are done. A work-group that waits has no work left to take, so it waits only for others that run: whatever number of threads the
//! driver has, and in whatever order they come, none waits for one that has not begun.
//!
//! A stage is the text of its kernel as a function of a work-group's place; names that stages share are renamed. Its work-group is a single work-item,
//! which waits for no other and has local memory for itself: what kernels ask for that are written with vectors of their own.

use super::kernel::{ExpandError, FOLDED, HALF, KernelSpec, Language};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Name of the entry.
pub const ENTRY: &str = "persistent";

/// Words of a counter: no two of them share a line of a cache.
const APART: usize = 32;

/// Bytes of the counters of so many stages, which are 0 before the first launch, and again behind each.
pub fn counter_bytes(stages: usize) -> usize {
    4 * APART * (2 * stages + 1)
}

/// Ends a stage: counts what this work-group did of it, and waits for the others. What they wrote before they counted is there afterwards: fences
/// of the CPU say so on both sides, as atomic operations of OpenCL 1.2 order nothing. Reading plainly leaves the line with those that count.
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

/// What a text defines: its macros, and its functions and types, which need names of their own.
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
    // What is a function on some devices and a macro on others takes no name of its own.
    others.retain(|name| !macros.contains(name));
    (macros, others)
}

/// The kernel may be a stage.
///
/// # Errors
///
/// Those of its text.
pub fn is_stage(spec: &KernelSpec) -> Result<bool, ExpandError> {
    if !spec.images.is_empty() || spec.workgroup != 1 || spec.defines.contains_key(FOLDED) {
        return Ok(false);
    }
    let text = spec.expand(Language::OpenCl)?;
    let counts = ["get_num_groups(", "get_global_size(", "get_global_offset("];
    Ok(!counts.iter().any(|call| text.contains(call)))
}

/// The text in OpenCL C of a persistent kernel with these stages. Its arguments are the operands of all stages, then parameters and grid (`uint4`) of
/// each, then the counters ([`counter_bytes`]). It runs in work-groups of one work-item.
///
/// # Errors
///
/// Those of the stages' texts.
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
