//! What executors share: plans, the weights on the device, compiled kernels.

use super::load::create;
use super::pack::{already_packed, pack};
use super::random::{self, Numbers, WeightSource};
use crate::backend::kernel::KernelSpec;
use crate::backend::{Backend, Caps, KernelId, ReplayMode, SharedBackend, Stats, View};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::graph::{Graph, ValueId};
use crate::limits;
use crate::lower::{Pack, WeightKey};
use crate::plan::Plan;
use crate::quota::Quota;
use crate::tensor::HostTensor;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Plans of one graph on one device, with uploaded weights and compiled kernels. Each
/// [`Executor`](super::Executor) of it has its own states, arena and recordings, but no weights and
/// no kernels. The weights are freed with the last owner.
pub struct Program {
    pub(super) backend: SharedBackend,
    /// The quota under which the program was loaded; it applies to each run.
    pub(super) quota: Option<Quota>,
    pub(super) weights: HashMap<WeightKey, View>,
    /// The program that owns shared weights.
    lender: Option<Arc<Self>>,
    /// The plans with their kernels, by position in [`Plan::kernels`].
    pub(super) plans: Vec<(Arc<Plan>, Arc<[KernelId]>)>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Program of {} plans on {}",
            self.plans.len(),
            self.caps().device
        )
    }
}

impl Program {
    /// Uploads the weights of `plans` of `graph`, or generates them, and compiles the kernels.
    /// `on_progress` is called with the number of finished and all items.
    pub fn load(
        backend: SharedBackend,
        graph: &Graph,
        plans: Vec<Plan>,
        weights: WeightSource,
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        Self::load_beside(backend, graph, plans, weights, None, on_progress)
    }

    /// Like [`Program::load`], sharing the weights of `lender`, which has other plans of `graph` on
    /// the same device.
    pub(crate) fn load_beside(
        backend: SharedBackend,
        graph: &Graph,
        plans: Vec<Plan>,
        weights: WeightSource,
        lender: Option<Arc<Self>>,
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let mut program = Self {
            backend,
            quota: Quota::current(),
            weights: HashMap::new(),
            lender,
            plans: Vec::with_capacity(plans.len()),
        };
        for key in plans.iter().flat_map(|p| &p.weights) {
            if let Some(view) = program.lent(key) {
                program.weights.insert(key.clone(), view);
            } else if !program.weights.contains_key(key) {
                limits::check(Stage::Plan)?;
                program.upload(graph, key, weights)?;
            }
        }
        let specs = specs(&plans);
        program
            .backend
            .compile_ahead(&specs, &mut |ready| on_progress(ready, specs.len()));
        for plan in plans {
            limits::check(Stage::Plan)?;
            let kernels = compile(&mut program.backend, &plan)?;
            program.plans.push((Arc::new(plan), kernels.into()));
        }
        Ok(program)
    }

    /// A weight that the other program has uploaded.
    fn lent(&self, key: &WeightKey) -> Option<View> {
        self.lender.as_ref()?.weights.get(key).copied()
    }

    pub fn caps(&self) -> &Caps {
        self.backend.caps()
    }

    /// Running totals of the backend, over all its users.
    pub fn stats(&self) -> Stats {
        self.backend.stats()
    }

    pub fn replay_mode(&self) -> ReplayMode {
        self.backend.replay_mode()
    }

    pub fn refuses_images(&self) -> bool {
        self.backend.refuses_images()
    }

    /// The specialised kernels of all plans, without duplicates.
    pub fn kernels(&self) -> Vec<&KernelSpec> {
        specs(self.plans.iter().map(|(plan, _)| plan.as_ref()))
    }

    pub fn plans(&self) -> usize {
        self.plans.len()
    }

    /// The plan with this index.
    pub fn plan(&self, plan: usize) -> Option<&Plan> {
        self.plans.get(plan).map(|(p, _)| p.as_ref())
    }

    fn upload(&mut self, graph: &Graph, key: &WeightKey, weights: WeightSource) -> Result<()> {
        let name = key.names(graph).join("\", \"");
        let tensors = key.values.iter().map(|v| constant(graph, *v));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        if let WeightSource::Random(seed) = weights
            && tensors.iter().all(|t| t.is_absent())
        {
            return self.make_up(graph, key, &name, seed);
        }
        if let Some(view) = self.share(&tensors, &key.pack) {
            self.weights.insert(key.clone(), view);
            return Ok(());
        }
        let bytes = pack(&tensors, &key.pack).map_err(|e| {
            let kind = if tensors.iter().any(|t| t.is_absent()) {
                ErrorKind::MissingInput
            } else {
                ErrorKind::Other
            };
            Error::other(Stage::Plan, format!("weight \"{name}\": {e}")).of_kind(kind)
        })?;
        let planned = key.bytes(graph);
        if planned != Some(bytes.len() as u64) {
            let what = format!(
                "weight \"{name}\": expected {planned:?} bytes, packed into {}",
                bytes.len()
            );
            return Err(Error::other(Stage::Plan, what));
        }
        let view = create(&mut self.backend, &name, bytes.len() as u64)?;
        self.weights.insert(key.clone(), view);
        let written = self.backend.write(view, &bytes);
        written.map_err(|e| Error::device(Stage::Plan, format!("uploading \"{name}\""), e))
    }

    /// The bytes of tensors that are stored in the packed form, if the device reads them in place.
    fn share(&mut self, tensors: &[&HostTensor], pack: &Pack) -> Option<View> {
        let (source, range) = already_packed(tensors, pack)?;
        let len = range.len() as u64;
        let buffer = self.backend.share_buffer(source, range)?;
        Some(View {
            buffer,
            offset: 0,
            len,
        })
    }

    /// Generates the weight `key` on the device.
    fn make_up(&mut self, graph: &Graph, key: &WeightKey, name: &str, seed: u32) -> Result<()> {
        let unknown = || Error::other(Stage::Plan, format!("weight \"{name}\": its size is unknown"));
        let view = create(&mut self.backend, name, key.bytes(graph).ok_or_else(unknown)?)?;
        self.weights.insert(key.clone(), view);
        let own = crc32fast::hash(format!("{name} {:?}", key.pack).as_bytes());
        let filled = random::fill(&mut self.backend, view, Numbers::of(graph, key), seed ^ own);
        filled.map_err(|e| Error::device(Stage::Plan, format!("generating random weight \"{name}\""), e))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for (key, view) in &self.weights {
            if self.lent(key).is_none() {
                self.backend.destroy_buffer(view.buffer);
            }
        }
    }
}

/// The specialised kernels of plans, without duplicates.
pub fn specs<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> Vec<&'a KernelSpec> {
    let mut seen = HashSet::new();
    let all = plans.into_iter().flat_map(|p| &p.kernels);
    all.filter(|s| seen.insert(*s)).collect()
}

/// Bytes of the weights of `plans` that a native device must copy, because its kernels cannot read
/// them as they are stored.
pub fn copied_bytes(graph: &Graph, plans: &[Plan], caps: &Caps) -> u64 {
    let align = usize::try_from(caps.profile.view_align).unwrap_or(1);
    let is_shared = |key: &WeightKey| {
        let tensors: Result<Vec<_>> = key.values.iter().map(|v| constant(graph, *v)).collect();
        let found = tensors.ok().and_then(|tensors| {
            let (source, range) = already_packed(&tensors, &key.pack)?;
            source.bytes().get(range)
        });
        found.is_some_and(|bytes| bytes.as_ptr().align_offset(align) == 0)
    };
    let keys: HashSet<&WeightKey> = plans.iter().flat_map(|p| &p.weights).collect();
    let copied = keys.into_iter().filter(|key| !is_shared(key));
    copied.fold(0, |sum, key| sum.saturating_add(key.bytes(graph).unwrap_or(0)))
}

fn compile(backend: &mut dyn Backend, plan: &Plan) -> Result<Vec<KernelId>> {
    let mut ids = Vec::with_capacity(plan.kernels.len());
    for (i, spec) in plan.kernels.iter().enumerate() {
        let id = backend.compile(spec).map_err(|e| {
            let nodes = plan
                .steps
                .iter()
                .find(|s| s.kernel == i)
                .map(|s| s.nodes.join("\", \""))
                .unwrap_or_default();
            Error::device(Stage::Plan, format!("kernel {spec} for nodes \"{nodes}\""), e)
        })?;
        ids.push(id);
    }
    Ok(ids)
}

fn constant(graph: &Graph, value: ValueId) -> Result<&HostTensor> {
    let value = graph.value(value);
    value
        .fact
        .as_ref()
        .and_then(|f| f.as_const())
        .map(Arc::as_ref)
        .ok_or_else(|| Error::other(Stage::Plan, format!("\"{}\" is not a constant", value.name)))
}
