//! Reports of plans: steps, memory, synchronization.

use serde::Serialize;
use std::collections::BTreeMap;
use transformer_lite::unstable::backend::{Caps, DeviceKind};
use transformer_lite::unstable::graph::Graph;
use transformer_lite::unstable::plan::NoPadding;
use transformer_lite::unstable::plan::{Condition, Options, Plan, Segment, Shared};

/// The device of a plan.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Device {
    /// Name; `none` for the generic device.
    pub name: String,
    /// Backend.
    pub backend: &'static str,
    /// Kind of processor.
    pub kind: DeviceKind,
    /// Alignment of everything in the arena, in bytes.
    pub view_align: u64,
    /// Largest buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// Memory, in bytes, if known.
    pub memory_bytes: Option<u64>,
}

impl Device {
    pub(super) fn new(caps: &Caps) -> Self {
        Self {
            name: caps.device.clone(),
            backend: caps.backend,
            kind: caps.kind,
            view_align: caps.profile.view_align,
            max_buffer_bytes: caps.max_buffer_bytes,
            memory_bytes: (caps.memory_bytes > 0).then_some(caps.memory_bytes),
        }
    }
}

/// Bytes that each kind of memory reuse saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Gains {
    /// Values that are views of others.
    pub views: u64,
    /// Results that overwrite an operand.
    pub in_place: u64,
    /// Values with disjoint lifetimes that share memory.
    pub packing: u64,
}

/// A padded length; see [`transformer_lite::unstable::plan::Padding`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct PaddingReport {
    /// The symbol.
    pub symbol: String,
    /// Added before rounding up.
    pub beyond: i64,
    /// The multiple.
    pub multiple: i64,
}

/// A part of a plan without synchronization.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct SegmentReport {
    /// `device` or `host`.
    pub place: &'static str,
    /// First step.
    pub first: usize,
    /// Last step, included.
    pub last: usize,
}

/// A dispatch, or a node on the host.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct StepReport {
    /// `device` or `host`.
    pub place: &'static str,
    /// Name of the kernel, or of the operator.
    pub name: String,
    /// Kernel with its specialization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Work-groups on each axis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grid: Option<[String; 3]>,
    /// Why it runs on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Operands that are read back from the device before it.
    #[serde(skip_serializing_if = "is_zero")]
    pub read_backs: usize,
    /// Results that are uploaded after it.
    #[serde(skip_serializing_if = "is_zero")]
    pub uploads: usize,
    /// Names of the model's nodes that it computes.
    pub nodes: Vec<String>,
    /// Name of the planned node.
    pub node: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// A tensor in the arena.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct TensorReport {
    /// Its name.
    pub name: String,
    /// Bytes as an expression.
    pub size: String,
    /// Bytes at the bounds.
    pub bytes: u64,
    /// First byte in the arena.
    pub offset: u64,
    /// First step of its lifetime.
    pub first: usize,
    /// Last step of its lifetime.
    pub last: usize,
    /// The value that it is a view of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub view_of: Option<String>,
    /// The value that it overwrites.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place_of: Option<String>,
}

/// A plan.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct PlanReport {
    /// `prefill`, `decode`, or `run`.
    pub name: &'static str,
    /// Storage type of float activations.
    pub float: String,
    /// Symbols with a fixed value.
    pub fixed: BTreeMap<String, i64>,
    /// Largest values of the other symbols.
    pub bounds: BTreeMap<String, i64>,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// The largest set of activations that live at one time.
    pub arena_lower_bound_bytes: u64,
    /// All activations without reuse of memory.
    pub arena_no_reuse_bytes: u64,
    /// The arena as an expression.
    pub arena_formula: String,
    /// What reuse of memory saves.
    pub gained: Gains,
    /// Number of dispatches.
    pub dispatches: usize,
    /// Number of different kernels.
    pub kernels: usize,
    /// Parts on the device and on the host, in order.
    pub segments: Vec<SegmentReport>,
    /// Values that a run reads back from the device, outputs not counted.
    pub read_backs: usize,
    /// Values that a run uploads, inputs not counted.
    pub uploads: usize,
    /// The padded length.
    pub padding: Option<PaddingReport>,
    /// Why no length can be padded.
    pub padding_refused: Option<String>,
    /// Conditions that each run checks.
    pub conditions: Vec<String>,
    /// All steps in order.
    pub steps: Vec<StepReport>,
    /// All tensors in the arena.
    pub tensors: Vec<TensorReport>,
}

fn condition(c: &Condition) -> String {
    let sign = if c.equal { "==" } else { ">=" };
    format!("{} {sign} 0, else {}", c.dim, c.meaning)
}

impl PlanReport {
    pub(super) fn new(name: &'static str, options: &Options, plan: &Plan, graph: &Graph) -> Self {
        let numbers = |b: &transformer_lite::unstable::shape::Bindings| {
            b.iter().map(|(s, v)| (s.to_string(), v)).collect()
        };
        let memory = &plan.memory;
        let (mut steps, mut segments) = (Vec::new(), Vec::new());
        for segment in &plan.segments {
            let first = steps.len();
            let place = match segment {
                Segment::Device(range) => {
                    steps.extend(range.clone().filter_map(|i| dispatch(plan, graph, i)));
                    "device"
                }
                Segment::Host(i) => {
                    steps.extend(plan.host.get(*i).map(on_host));
                    "host"
                }
            };
            if steps.len() > first {
                segments.push(SegmentReport {
                    place,
                    first,
                    last: steps.len() - 1,
                });
            }
        }
        Self {
            name,
            float: options.float.to_string(),
            fixed: numbers(&options.fixed),
            bounds: numbers(&options.bounds),
            arena_bytes: memory.arena,
            arena_lower_bound_bytes: memory.lower_bound,
            arena_no_reuse_bytes: memory.without_reuse,
            arena_formula: memory.formula.clone(),
            gained: Gains {
                views: memory.gained_by_views,
                in_place: memory.gained_in_place,
                packing: memory.gained_by_packing,
            },
            dispatches: plan.steps.len(),
            kernels: plan.kernels.len(),
            segments,
            read_backs: steps.iter().map(|s| s.read_backs).sum(),
            uploads: steps.iter().map(|s| s.uploads).sum(),
            padding: plan.padding.as_ref().ok().map(|p| PaddingReport {
                symbol: p.symbol.to_string(),
                beyond: p.beyond,
                multiple: p.multiple,
            }),
            padding_refused: match &plan.padding {
                Ok(_) | Err(NoPadding::NotAsked) => None,
                Err(e) => Some(e.to_string()),
            },
            conditions: plan.conditions().iter().map(condition).collect(),
            steps,
            tensors: tensors(plan),
        }
    }

    /// Names of the model's nodes that run.
    pub fn running(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().flat_map(|s| s.nodes.iter().map(String::as_str))
    }
}

fn dispatch(plan: &Plan, graph: &Graph, i: usize) -> Option<StepReport> {
    let step = plan.steps.get(i)?;
    let spec = plan.kernels.get(step.kernel)?;
    Some(StepReport {
        place: "device",
        name: spec.kernel.name.to_owned(),
        kernel: Some(spec.to_string()),
        grid: plan.grid(i).map(|g| g.map(ToString::to_string)),
        why: None,
        read_backs: 0,
        uploads: 0,
        nodes: step.nodes.clone(),
        node: graph.node(step.node).map_or(String::new(), |n| n.name.clone()),
    })
}

fn on_host(step: &transformer_lite::unstable::plan::HostStep) -> StepReport {
    StepReport {
        place: "host",
        name: step.work.name().to_owned(),
        kernel: None,
        grid: None,
        why: Some(step.why.to_string()),
        read_backs: step.read_backs(),
        uploads: step.uploads(),
        nodes: step.nodes.clone(),
        node: step.name.clone(),
    }
}

fn tensors(plan: &Plan) -> Vec<TensorReport> {
    let all = plan.tensors.iter().map(|t| {
        let (view_of, in_place_of) = match &t.shared {
            Some(Shared::View(of)) => (Some(of.clone()), None),
            Some(Shared::InPlace(of)) => (None, Some(of.clone())),
            None => (None, None),
        };
        TensorReport {
            name: t.name.clone(),
            size: t.size.to_string(),
            bytes: t.bytes,
            offset: t.offset,
            first: t.first,
            last: t.last,
            view_of,
            in_place_of,
        }
    });
    all.collect()
}
