//! Plans on a device: weights are packed and uploaded, kernels compiled, command lists recorded once; then runs.
//!
//! All checks that the backends rely on are made here, when a plan is loaded: bounds and alignment of views, numbers of
//! operands, access conflicts; and at each run the limits of the grid.

use crate::backend::kernel::Role;
use crate::backend::{Backend, BackendError, BufferId, Caps, Command, KernelId, RecordingId, Stats, View};
use crate::error::{Error, Result, Stage};
use crate::graph::{Graph, OpError};
use crate::plan::host::{self, HostRead};
use crate::plan::lower::{Pack, WeightKey};
use crate::plan::{Bound, Place, Plan, Port, Segment, bind};
use crate::shape::Bindings;
use crate::tensor::{DType, HostTensor};
use half::f16;
use std::collections::HashMap;
use std::sync::Arc;

struct Loaded {
    plan: Plan,
    /// One for each segment on the device, in order.
    recordings: Vec<RecordingId>,
    bound: Bound,
    /// The table of values that change at every step.
    live: View,
    /// Values that the host keeps during a run.
    host: Vec<Option<HostTensor>>,
    kernels: Vec<KernelId>,
    /// Inputs of a plan whose memory is taken when their sizes are known.
    pending: Vec<Option<HostTensor>>,
    /// Shapes of the inputs as last written, in the order of the plan's inputs and unread inputs.
    written: Vec<Option<Vec<usize>>>,
}

/// One graph on one device, with several plans that share weights and states.
pub struct Session {
    backend: Box<dyn Backend>,
    weights: HashMap<WeightKey, View>,
    states: Vec<View>,
    arena: View,
    plans: Vec<Loaded>,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session on {}", self.backend.caps().device)
    }
}

/// Kernels compiled for a plan, by position in [`Plan::kernels`].
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

impl Session {
    /// Loads `plans` of `graph` on `backend`.
    pub fn new(mut backend: Box<dyn Backend>, graph: &Graph, plans: Vec<Plan>) -> Result<Self> {
        let arena_bytes = plans
            .iter()
            .map(|p| p.memory.arena)
            .max()
            .unwrap_or(4)
            .next_multiple_of(16);
        let arena = create(backend.as_mut(), "arena", arena_bytes)?;
        let mut states = Vec::new();
        for (i, state) in plans
            .first()
            .map(|p| p.states.as_slice())
            .unwrap_or_default()
            .iter()
            .enumerate()
        {
            // Plans of one graph may differ in nothing that concerns states.
            if plans
                .iter()
                .any(|p| p.states.get(i).map(|s| s.bytes) != Some(state.bytes))
            {
                return Err(Error::other(
                    Stage::Plan,
                    format!("plans disagree about the size of state \"{}\"", state.name),
                ));
            }
            states.push(create(backend.as_mut(), &state.name, state.bytes)?);
        }
        let mut session = Self {
            backend,
            weights: HashMap::new(),
            states,
            arena,
            plans: Vec::new(),
            bytes: Vec::new(),
        };
        session.upload_weights(graph, &plans)?;
        for plan in plans {
            session.load(plan)?;
        }
        Ok(session)
    }

    fn upload_weights(&mut self, graph: &Graph, plans: &[Plan]) -> Result<()> {
        let mut keys: Vec<&WeightKey> = Vec::new();
        for key in plans.iter().flat_map(|p| &p.weights) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        for key in keys {
            let name = &graph.value(key.value).name;
            let tensor = constant(graph, key)?;
            let bytes = pack(tensor, &key.pack)
                .map_err(|e| Error::other(Stage::Plan, format!("weight \"{name}\": {e}")))?;
            let planned = key.pack.bytes(tensor.shape());
            if planned != Some(bytes.len() as u64) {
                let what = format!(
                    "weight \"{name}\": planned with {planned:?} bytes, packed into {}",
                    bytes.len()
                );
                return Err(Error::other(Stage::Plan, what));
            }
            let view = create(self.backend.as_mut(), name, bytes.len() as u64)?;
            self.backend
                .write(view, &bytes)
                .map_err(|e| Error::device(Stage::Plan, format!("uploading \"{name}\""), e))?;
            self.weights.insert(key.clone(), view);
        }
        Ok(())
    }

    fn view(&self, plan: &Plan, live: View, place: Place) -> Option<View> {
        match place {
            Place::Arena { offset, len, .. } => Some(View {
                buffer: self.arena.buffer,
                offset,
                len: len.next_multiple_of(4),
            }),
            Place::Weight(i) => self.weights.get(plan.weights.get(i)?).copied(),
            Place::State(i) => self.states.get(i).copied(),
            Place::Live => Some(live),
        }
    }

    fn load(&mut self, plan: Plan) -> Result<()> {
        let kernels = compile(self.backend.as_mut(), &plan)?;
        let live = create(self.backend.as_mut(), "live values", plan.live_bytes())?;
        let ports = plan.inputs.len() + plan.unread.len();
        self.plans.push(Loaded {
            recordings: Vec::new(),
            bound: Bound::default(),
            live,
            host: vec![None; plan.host_values()],
            kernels,
            pending: vec![None; ports],
            written: vec![None; ports],
            plan,
        });
        let last = self.plans.len() - 1;
        if self.plans[last].plan.is_open() {
            Ok(())
        } else {
            self.record(last)
        }
    }

    /// Takes memory for an open plan, for values up to `bindings`, and records again what the old memory was bound to.
    fn grow(&mut self, plan: usize, bindings: &Bindings) -> Result<()> {
        let Some(loaded) = self.plans.get_mut(plan) else {
            return Ok(());
        };
        loaded.plan.reserve(bindings)?;
        loaded.bound = Bound::default();
        let bytes = loaded.plan.memory.arena.next_multiple_of(16);
        let mut again = vec![plan];
        if bytes > self.arena.len {
            again = (0..self.plans.len())
                .filter(|i| *i == plan || !self.plans[*i].recordings.is_empty())
                .collect();
        }
        for i in &again {
            for r in std::mem::take(&mut self.plans[*i].recordings) {
                self.backend.release(r);
            }
        }
        if bytes > self.arena.len {
            self.backend.destroy_buffer(self.arena.buffer);
            self.arena = create(self.backend.as_mut(), "arena", bytes)?;
        }
        again.into_iter().try_for_each(|i| self.record(i))
    }

    /// Checks every dispatch of a plan and records its segments.
    fn record(&mut self, index: usize) -> Result<()> {
        let Some(loaded) = self.plans.get(index) else {
            return Ok(());
        };
        let (plan, kernels, live) = (&loaded.plan, &loaded.kernels, loaded.live);
        let caps = self.backend.caps().clone();
        let mut commands = Vec::with_capacity(plan.steps.len());
        for (step, i) in plan.steps.iter().zip(0u32..) {
            let spec = &plan.kernels[step.kernel];
            let wrong = |what: String| {
                Error::other(
                    Stage::Plan,
                    format!(
                        "step {i}, kernel {spec}, nodes \"{}\": {what}",
                        step.nodes.join("\", \"")
                    ),
                )
            };
            let views: Vec<View> = step
                .args
                .iter()
                .map(|p| {
                    self.view(plan, live, *p)
                        .ok_or_else(|| wrong(format!("{p:?} does not exist")))
                })
                .collect::<Result<_>>()?;
            if views.len() != spec.bound().count() {
                return Err(wrong(format!(
                    "{} operands, the kernel binds {}",
                    views.len(),
                    spec.bound().count()
                )));
            }
            for (n, (view, (arg, _))) in views.iter().zip(spec.bound()).enumerate() {
                if !view.offset.is_multiple_of(caps.view_align)
                    || !view.len.is_multiple_of(4)
                    || view.len == 0
                {
                    return Err(wrong(format!(
                        "operand {} at {view:?} is not aligned to {} bytes",
                        arg.name, caps.view_align
                    )));
                }
                if view.len > caps.max_view_bytes {
                    return Err(wrong(format!(
                        "operand {} is {} bytes, the device binds at most {}",
                        arg.name, view.len, caps.max_view_bytes
                    )));
                }
                if view.buffer == self.arena.buffer && view.offset + view.len > self.arena.len {
                    return Err(wrong(format!(
                        "operand {} ends at {}, the arena at {}",
                        arg.name,
                        view.offset + view.len,
                        self.arena.len
                    )));
                }
                for (other, (arg2, _)) in views.iter().zip(spec.bound()).take(n) {
                    let writes = |a: &crate::backend::kernel::Arg| matches!(a.role, Role::Out | Role::InOut);
                    let overlap = other.buffer == view.buffer
                        && other.offset < view.offset + view.len
                        && view.offset < other.offset + other.len;
                    let mixed = other.buffer == view.buffer
                        && (arg.role == Role::Weight) != (arg2.role == Role::Weight);
                    if mixed || overlap && (writes(arg) || writes(arg2)) {
                        return Err(wrong(format!(
                            "operands {} and {} conflict: {view:?} and {other:?}",
                            arg.name, arg2.name
                        )));
                    }
                }
            }
            commands.push(Command::Dispatch {
                kernel: kernels[step.kernel],
                args: views,
                step: i,
                params: step.params.clone(),
            });
        }
        let segments = plan.segments.iter().filter_map(|s| match s {
            Segment::Device(range) => Some(range.clone()),
            Segment::Host(_) => None,
        });
        for range in segments.collect::<Vec<_>>() {
            let part = commands.get(range).unwrap_or_default();
            let recording = self.backend.record(part);
            let recording = recording.map_err(|e| Error::device(Stage::Plan, "recording", e))?;
            self.plans[index].recordings.push(recording);
        }
        Ok(())
    }

    /// What the device offers.
    pub fn caps(&self) -> &Caps {
        self.backend.caps()
    }

    /// Running totals of the backend.
    pub fn stats(&self) -> Stats {
        self.backend.stats()
    }

    /// Plan `plan` as loaded.
    pub fn plan(&self, plan: usize) -> Option<&Plan> {
        self.plans.get(plan).map(|l| &l.plan)
    }

    fn loaded(&self, plan: usize) -> Result<&Loaded> {
        self.plans.get(plan).ok_or_else(|| {
            Error::other(
                Stage::Run,
                format!("no plan {plan}; {} are loaded", self.plans.len()),
            )
        })
    }

    fn port_view(&self, loaded: &Loaded, port: &Port) -> Result<View> {
        port.place
            .and_then(|place| self.view(&loaded.plan, loaded.live, place))
            .ok_or_else(|| {
                Error::other(
                    Stage::Run,
                    format!("\"{}\" has no place on the device", port.name),
                )
            })
    }

    /// Writes an input of `plan`, before every run: a step may work in place of it. An input that nothing reads is only
    /// checked. Integers are range-checked to 32 bits, floats become the device's storage type. The run checks the shape.
    pub fn write(&mut self, plan: usize, name: &str, tensor: &HostTensor) -> Result<()> {
        let loaded = self.loaded(plan)?;
        let p = &loaded.plan;
        let Some(at) = p.inputs.iter().chain(&p.unread).position(|p| p.name == name) else {
            let known: Vec<&str> = p
                .inputs
                .iter()
                .chain(&p.unread)
                .map(|p| p.name.as_str())
                .collect();
            return Err(Error::other(
                Stage::Run,
                format!("the model has no input \"{name}\"; it has {}", known.join(", ")),
            ));
        };
        let wrong = |what: String| Error::other(Stage::Run, format!("input \"{name}\": {what}"));
        let port = p
            .inputs
            .get(at)
            .or_else(|| p.unread.get(at - p.inputs.len()))
            .cloned();
        let port = port.ok_or_else(|| wrong("no port".to_owned()))?;
        if port.dtype != tensor.dtype() {
            return Err(wrong(format!(
                "expected elements of type {}, found {}",
                port.dtype,
                tensor.dtype()
            )));
        }
        if port.shape.rank() != tensor.shape().len() {
            return Err(wrong(format!(
                "expected shape {}, found {:?}",
                port.shape,
                tensor.shape()
            )));
        }
        let later = loaded.plan.is_open();
        if port.place.is_some() && !later {
            self.upload(plan, "input", &port, tensor)?;
        }
        let Some(loaded) = self.plans.get_mut(plan) else {
            return Ok(());
        };
        if let Some(slot) = loaded.pending.get_mut(at).filter(|_| later) {
            *slot = Some(tensor.clone());
        }
        if let Some(slot) = port.host.and_then(|i| loaded.host.get_mut(i)) {
            *slot = Some(tensor.clone());
        }
        if let Some(slot) = loaded.written.get_mut(at) {
            match slot {
                Some(shape) => {
                    shape.clear();
                    shape.extend_from_slice(tensor.shape());
                }
                None => *slot = Some(tensor.shape().to_vec()),
            }
        }
        Ok(())
    }

    /// Writes a tensor to the place of a port; `what` says in errors what it is.
    fn upload(&mut self, plan: usize, what: &str, port: &Port, tensor: &HostTensor) -> Result<()> {
        let name = &port.name;
        let wrong = |why: String| Error::other(Stage::Run, format!("{what} \"{name}\": {why}"));
        let mut view = self.port_view(self.loaded(plan)?, port)?;
        let bytes = to_device(tensor, port.device).map_err(wrong)?;
        if bytes.len() as u64 > view.len {
            return Err(wrong(format!(
                "{} bytes, the plan has room for {}",
                bytes.len(),
                view.len
            )));
        }
        view.len = bytes.len() as u64;
        let written = self.backend.write(view, &bytes);
        written.map_err(|e| Error::device(Stage::Run, format!("writing \"{name}\""), e))
    }

    /// The values of all symbols that the shapes of inputs determine, from the tensors written last.
    pub fn bindings(&self, plan: usize) -> Result<Bindings> {
        let loaded = self.loaded(plan)?;
        let ports = loaded.plan.inputs.iter().chain(&loaded.plan.unread);
        let shapes = ports
            .zip(&loaded.written)
            .filter_map(|(p, s)| Some((p, s.as_deref()?)));
        bind::solve(shapes)
    }

    fn bind(&mut self, plan: usize, bindings: &Bindings) -> Result<()> {
        if self.loaded(plan)?.plan.must_grow(bindings) {
            self.grow(plan, bindings)?;
        }
        let Some(loaded) = self.plans.get_mut(plan) else {
            return Err(Error::other(Stage::Run, format!("no plan {plan}")));
        };
        let (p, bound) = (&loaded.plan, &mut loaded.bound);
        p.bind(bindings, bound)?;
        for (port, shape) in p.inputs.iter().chain(&p.unread).zip(&loaded.written) {
            let Some(shape) = shape else { continue };
            bind::check_shape(
                &format_args!("input \"{}\"", port.name),
                &port.shape,
                shape,
                bound.bindings(),
            )?;
        }
        for (i, symbol, part) in &p.defined_by_inputs {
            let value = p
                .inputs
                .get(*i)
                .and_then(|p| p.host)
                .and_then(|h| loaded.host.get(h)?.as_ref());
            let value = value.and_then(|t| host::part(t, *part)).ok_or_else(|| {
                Error::other(
                    Stage::Run,
                    format!("the input that defines {symbol} was not written"),
                )
            })?;
            p.define(symbol, value, bound)?;
        }
        for at in 0..self.loaded(plan)?.pending.len() {
            let Some(loaded) = self.plans.get_mut(plan) else {
                return Ok(());
            };
            let Some(tensor) = loaded.pending[at].take() else {
                continue;
            };
            let port = loaded.plan.inputs.get(at).filter(|p| p.place.is_some()).cloned();
            let Some(port) = port else { continue };
            self.upload(plan, "input", &port, &tensor)?;
        }
        self.refresh(plan)
    }

    /// Checks the grids and writes the table of live values, where they changed.
    fn refresh(&mut self, plan: usize) -> Result<()> {
        let max_grid = self.backend.caps().max_grid;
        let Some(loaded) = self.plans.get_mut(plan) else {
            return Ok(());
        };
        if loaded.bound.take_grids() {
            for (grid, step) in loaded.bound.launch.grids.iter().zip(&loaded.plan.steps) {
                if grid.iter().any(|g| *g > max_grid) {
                    let spec = &loaded.plan.kernels[step.kernel];
                    return Err(Error::other(
                        Stage::Run,
                        format!(
                            "kernel {spec}, nodes \"{}\": grid {grid:?}, the device's limit is {max_grid}",
                            step.nodes.join("\", \"")
                        ),
                    ));
                }
            }
        }
        if loaded.bound.take_live() && !loaded.bound.live.is_empty() {
            let written = self
                .backend
                .write(loaded.live, bytemuck::cast_slice(&loaded.bound.live));
            written.map_err(|e| Error::device(Stage::Run, "writing the live values", e))?;
        }
        Ok(())
    }

    /// Runs `plan`: segments on the device are queued, nodes on the host wait for the values that they read.
    pub fn run(&mut self, plan: usize, bindings: &Bindings) -> Result<()> {
        self.bind(plan, bindings)?;
        self.walk(plan, &mut |session, recording| {
            let launch = &session.plans[plan].bound.launch;
            session
                .backend
                .submit(recording, launch)
                .map_err(|e| Error::device(Stage::Run, "submitting", e))
        })
    }

    /// Walks through the segments of a plan, which is bound; `submit` gets each recording.
    fn walk(
        &mut self,
        plan: usize,
        submit: &mut dyn FnMut(&mut Self, RecordingId) -> Result<()>,
    ) -> Result<()> {
        let (mut recording, mut segment) = (0, 0);
        loop {
            let Some(next) = self.loaded(plan)?.plan.segments.get(segment).cloned() else {
                return Ok(());
            };
            match next {
                Segment::Device(_) => {
                    self.refresh(plan)?;
                    let id = self.loaded(plan)?.recordings.get(recording).copied();
                    let id = id.ok_or_else(|| Error::other(Stage::Run, "a segment without a recording"))?;
                    submit(self, id)?;
                    recording += 1;
                }
                Segment::Host(i) => self.run_on_host(plan, i)?,
            }
            segment += 1;
        }
    }

    /// Runs one node on the host: reads back what only the device has, evaluates, uploads what kernels read.
    fn run_on_host(&mut self, plan: usize, step: usize) -> Result<()> {
        let Some(step) = self.loaded(plan)?.plan.host.get(step).cloned() else {
            return Ok(());
        };
        let fail = |source: OpError, inputs: &[Option<HostTensor>]| {
            let facts: Vec<String> = inputs
                .iter()
                .map(|t| t.as_ref().map_or_else(|| "-".to_owned(), |t| format!("{t:?}")))
                .collect();
            Error::Node {
                stage: Stage::Run,
                op: step.op.as_ref().map_or("value", |o| o.name()).to_owned(),
                node: step.name.clone(),
                inputs: facts.join(", "),
                source: source.into(),
            }
        };
        let mut inputs = Vec::with_capacity(step.reads.len());
        for read in &step.reads {
            inputs.push(match read {
                None => None,
                Some(read) => Some(self.host_operand(plan, &step.name, read)?),
            });
        }
        let results = match &step.op {
            Some(op) => {
                let operands: Vec<Option<&HostTensor>> = inputs.iter().map(Option::as_ref).collect();
                op.eval(&operands).map_err(|e| fail(e, &inputs))?
            }
            None => inputs.iter().flatten().cloned().collect(),
        };
        if results.len() < step.writes.len() {
            return Err(fail(
                OpError::expected("results", step.writes.len(), results.len()),
                &inputs,
            ));
        }
        for (write, tensor) in step.writes.iter().zip(results) {
            let Some(loaded) = self.plans.get_mut(plan) else {
                return Ok(());
            };
            for (symbol, part) in &write.defines {
                let value = host::part(&tensor, *part).ok_or_else(|| {
                    fail(
                        OpError::expected(
                            format!("result for {symbol}"),
                            format!("{part:?}"),
                            format!("{tensor:?}"),
                        ),
                        &inputs,
                    )
                })?;
                loaded.plan.define(symbol, value, &mut loaded.bound)?;
            }
            let name = format_args!("result \"{}\" of node \"{}\"", write.port.name, step.name);
            bind::check_shape(&name, &write.port.shape, tensor.shape(), loaded.bound.bindings())?;
            let computed =
                step.op.is_some() || matches!(step.reads.first(), Some(Some(HostRead::Dims { .. })));
            if write.port.place.is_some() && computed {
                self.upload(plan, "result", &write.port, &tensor)?;
            }
            let host = self
                .plans
                .get_mut(plan)
                .and_then(|l| l.host.get_mut(write.port.host?));
            if let Some(slot) = host {
                *slot = Some(tensor);
            }
        }
        Ok(())
    }

    fn host_operand(&mut self, plan: usize, node: &str, read: &HostRead) -> Result<HostTensor> {
        let loaded = self.loaded(plan)?;
        let missing = || {
            Error::other(
                Stage::Run,
                format!("node \"{node}\" reads a value that was not written"),
            )
        };
        match read {
            HostRead::Const(t) => Ok(t.as_ref().clone()),
            HostRead::Host(i) => loaded.host.get(*i).and_then(Clone::clone).ok_or_else(missing),
            HostRead::Dims {
                dtype,
                shape,
                elements,
            } => {
                let failed = |e: String| Error::other(Stage::Run, format!("node \"{node}\": {e}"));
                let shape = shape
                    .eval(loaded.bound.bindings())
                    .map_err(|e| failed(e.to_string()))?;
                let values: Option<Vec<i64>> = elements.iter().map(|e| loaded.bound.value(*e)).collect();
                HostTensor::from_ints(*dtype, &shape, &values.ok_or_else(missing)?)
                    .map_err(|e| failed(e.to_string()))
            }
            HostRead::Device(port) => self.download(plan, port),
        }
    }

    /// Runs `plan` and returns for each step its kernel, nodes and device time in nanoseconds; for a node on the host the
    /// time that it took here, with its transfers.
    pub fn profile(&mut self, plan: usize, bindings: &Bindings) -> Result<Vec<(String, Vec<String>, u64)>> {
        self.bind(plan, bindings)?;
        let mut times = Vec::new();
        self.walk(plan, &mut |session, recording| {
            let launch = &session.plans[plan].bound.launch;
            let part = session.backend.profile(recording, launch);
            times.extend(part.map_err(|e| Error::device(Stage::Run, "profiling", e))?);
            Ok(())
        })?;
        let loaded = self.loaded(plan)?;
        let named = loaded.plan.steps.iter().zip(times);
        Ok(named
            .map(|(s, t)| (loaded.plan.kernels[s.kernel].to_string(), s.nodes.clone(), t))
            .collect())
    }

    /// Reads elements `first ..` of a float output of `plan` as `f32`, as many as `out` holds, once queued runs are done.
    /// `first` is even.
    pub fn read_f32(&mut self, plan: usize, name: &str, first: usize, out: &mut [f32]) -> Result<()> {
        let loaded = self.loaded(plan)?;
        let port = loaded
            .plan
            .output(name)
            .ok_or_else(|| Error::other(Stage::Run, format!("no output \"{name}\"")))?
            .clone();
        if let Some(tensor) = port.host.and_then(|i| loaded.host.get(i)?.as_ref()) {
            let wrong = |e: String| Error::other(Stage::Run, format!("output \"{name}\": {e}"));
            let data = tensor.to_f32().map_err(|e| wrong(e.to_string()))?;
            let part = data.get(first..first + out.len());
            out.copy_from_slice(part.ok_or_else(|| wrong(format!("{} elements, too few", data.len())))?);
            return Ok(());
        }
        let view = self.port_view(loaded, &port)?;
        self.read_floats(view, &port, first, out)
    }

    fn read_floats(&mut self, mut view: View, port: &Port, first: usize, out: &mut [f32]) -> Result<()> {
        let name = &port.name;
        let device = port.device;
        let size = if device == DType::F16 { 2 } else { 4 };
        let (start, len) = (first * size, (out.len() * size).next_multiple_of(4));
        if (start + len) as u64 > view.len || !first.is_multiple_of(2) {
            return Err(Error::other(
                Stage::Run,
                format!(
                    "\"{name}\" is {} bytes, {len} asked for from byte {start}",
                    view.len
                ),
            ));
        }
        view.offset += start as u64;
        view.len = len as u64;
        let failed = |e: BackendError| Error::device(Stage::Run, format!("reading \"{name}\""), e);
        match device {
            DType::F32 => self
                .backend
                .read(view, bytemuck::cast_slice_mut(out))
                .map_err(failed)?,
            DType::F16 => {
                self.bytes.resize(len, 0);
                self.backend.read(view, &mut self.bytes).map_err(failed)?;
                for (o, h) in out.iter_mut().zip(self.bytes.chunks_exact(2)) {
                    *o = f16::from_le_bytes([h[0], h[1]]).to_f32();
                }
            }
            other => {
                return Err(Error::other(
                    Stage::Run,
                    format!("\"{name}\" is {other} on the device, not a float"),
                ));
            }
        }
        Ok(())
    }

    /// Reads a whole output of `plan` in its host type, with the shape of the last run.
    pub fn read(&mut self, plan: usize, name: &str) -> Result<HostTensor> {
        let loaded = self.loaded(plan)?;
        let port = loaded
            .plan
            .output(name)
            .ok_or_else(|| Error::other(Stage::Run, format!("no output \"{name}\"")))?
            .clone();
        if let Some(tensor) = port.host.and_then(|i| loaded.host.get(i)?.clone()) {
            return Ok(tensor);
        }
        self.download(plan, &port)
    }

    /// Reads the tensor at the place of a port, with its shape in the current run.
    fn download(&mut self, plan: usize, port: &Port) -> Result<HostTensor> {
        let loaded = self.loaded(plan)?;
        let tensor_error = |e: String| Error::other(Stage::Run, format!("\"{}\": {e}", port.name));
        let shape = port
            .shape
            .eval(loaded.bound.bindings())
            .map_err(|e| tensor_error(e.to_string()))?;
        let count: usize = shape.iter().product();
        if count == 0 {
            return HostTensor::zeros(port.dtype, &shape).map_err(|e| tensor_error(e.to_string()));
        }
        let view = self.port_view(loaded, port)?;
        if port.device.is_float() {
            let mut data = vec![0f32; count];
            self.read_floats(view, port, 0, &mut data)?;
            return HostTensor::from_floats(port.dtype, &shape, &data)
                .map_err(|e| tensor_error(e.to_string()));
        }
        let mut view = view;
        if (count * 4) as u64 > view.len {
            return Err(tensor_error(format!(
                "{} bytes, {} asked for",
                view.len,
                count * 4
            )));
        }
        view.len = (count * 4) as u64;
        let mut data = vec![0i32; count];
        self.backend
            .read(view, bytemuck::cast_slice_mut(&mut data))
            .map_err(|e| Error::device(Stage::Run, format!("reading \"{}\"", port.name), e))?;
        let wide: Vec<i64> = data.iter().map(|v| i64::from(*v)).collect();
        HostTensor::from_ints(port.dtype, &shape, &wide).map_err(|e| tensor_error(e.to_string()))
    }

    /// Waits until all queued runs are done.
    pub fn wait(&mut self) -> Result<()> {
        self.backend
            .wait()
            .map_err(|e| Error::device(Stage::Run, "waiting", e))
    }

    /// The backend, for tests that look at raw memory.
    pub fn backend(&mut self) -> &mut dyn Backend {
        self.backend.as_mut()
    }

    /// The whole arena, for tests that poison it.
    pub fn arena(&self) -> View {
        self.arena
    }
}

fn create(backend: &mut dyn Backend, label: &str, bytes: u64) -> Result<View> {
    let bytes = bytes.next_multiple_of(4).max(4);
    let limit = backend.caps().max_buffer_bytes;
    let failed = |e| Error::device(Stage::Plan, format!("allocating \"{label}\""), e);
    if bytes > limit {
        return Err(failed(BackendError::OutOfMemory {
            label: label.to_owned(),
            bytes,
            why: format!("the device's largest buffer is {limit}"),
        }));
    }
    let buffer: BufferId = backend.create_buffer(label, bytes).map_err(failed)?;
    Ok(View {
        buffer,
        offset: 0,
        len: bytes,
    })
}

fn constant<'a>(graph: &'a Graph, key: &WeightKey) -> Result<&'a Arc<HostTensor>> {
    let value = graph.value(key.value);
    value
        .fact
        .as_ref()
        .and_then(|f| f.as_const())
        .ok_or_else(|| Error::other(Stage::Plan, format!("\"{}\" is not a constant", value.name)))
}

/// A tensor's elements in device form: floats as `f16` or `f32`, everything else as 32-bit integers. The length is that of
/// an even number of elements.
fn to_device(t: &HostTensor, device: DType) -> Result<Vec<u8>, String> {
    let mut bytes = match device {
        DType::F32 => bytemuck::cast_slice(&t.to_f32().map_err(|e| e.to_string())?).to_vec(),
        DType::F16 => floats_to_halves(&t.to_f32().map_err(|e| e.to_string())?),
        DType::U32 => t.bytes().map_err(|e| e.to_string())?.to_vec(),
        _ => {
            let mut out = Vec::with_capacity(t.len() * 4);
            for v in t.to_i64().map_err(|e| e.to_string())? {
                let v = i32::try_from(v)
                    .map_err(|_| format!("{v} does not fit the 32 bits of integers on a device"))?;
                out.extend_from_slice(&v.to_le_bytes());
            }
            out
        }
    };
    bytes.resize(bytes.len().next_multiple_of(8).max(8), 0);
    Ok(bytes)
}

/// Halves of `data`; values beyond the range of a half become its largest.
fn floats_to_halves(data: &[f32]) -> Vec<u8> {
    let max = f16::MAX.to_f32();
    data.iter()
        .flat_map(|v| f16::from_f32(v.clamp(-max, max)).to_le_bytes())
        .collect()
}

/// The bytes of a constant in the form `pack`.
fn pack(t: &HostTensor, pack: &Pack) -> Result<Vec<u8>, String> {
    let (last, rows) = match t.shape().split_last() {
        Some((last, before)) => (*last, before.iter().product::<usize>()),
        None => (1, 1),
    };
    match pack {
        Pack::Plain { dtype } => to_device(t, *dtype),
        Pack::Rows { dtype, first, count } => {
            let mut shape = t.shape().to_vec();
            let axis = shape.first_mut().ok_or("a tensor without axes has no rows")?;
            let size = t.byte_len().checked_div(*axis).unwrap_or(0);
            let bytes = t
                .bytes()
                .map_err(|e| e.to_string())?
                .get(first * size..(first + count) * size)
                .ok_or("rows outside the tensor")?;
            *axis = *count;
            let part = HostTensor::from_bytes(t.dtype(), &shape, bytes).map_err(|e| e.to_string())?;
            to_device(&part, *dtype)
        }
        Pack::Columns {
            dtype: DType::U32,
            transpose: false,
            first,
            count,
            stride,
            panel,
        } => {
            // Items of 4 bytes: words of codes `[rows, columns]`, or pairs of halves `[rows, columns, 2]`.
            let rows = t.shape().first().copied().unwrap_or(1).max(1);
            let bytes = t.bytes().map_err(|e| e.to_string())?;
            let columns = bytes.len() / 4 / rows;
            let mut out = vec![0u8; (rows * stride * 4).next_multiple_of(8)];
            for (r, from) in bytes.chunks_exact(columns * 4).enumerate() {
                let part = from
                    .get(first * 4..(first + count) * 4)
                    .ok_or("columns outside the tensor")?;
                for (i, piece) in part.chunks(panel * 4).enumerate() {
                    let at = (i * rows + r) * panel * 4;
                    out.get_mut(at..at + piece.len())
                        .ok_or("panels outside the packed form")?
                        .copy_from_slice(piece);
                }
            }
            Ok(out)
        }
        Pack::Columns {
            dtype,
            transpose,
            first,
            count,
            stride,
            panel,
        } => {
            if panel != stride {
                return Err("floats are packed in one panel".to_owned());
            }
            let data = t.to_f32().map_err(|e| e.to_string())?;
            // Logical rows and the strides of a logical (row, column).
            let (depth, row_step, column_step) = if *transpose {
                (last, 1, last)
            } else {
                (rows, last, 1)
            };
            let size = if *dtype == DType::F16 { 2 } else { 4 };
            let mut out = vec![0u8; (depth * stride * size).next_multiple_of(8)];
            let max = f16::MAX.to_f32();
            for (r, row) in out.chunks_exact_mut(stride * size).take(depth).enumerate() {
                for (c, item) in row.chunks_exact_mut(size).take(*count).enumerate() {
                    let v = *data
                        .get(r * row_step + (first + c) * column_step)
                        .ok_or("columns outside the tensor")?;
                    if *dtype == DType::F16 {
                        item.copy_from_slice(&f16::from_f32(v.clamp(-max, max)).to_le_bytes());
                    } else {
                        item.copy_from_slice(&v.to_le_bytes());
                    }
                }
            }
            Ok(out)
        }
    }
}
