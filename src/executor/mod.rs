//! Executes plans on a device: packs and uploads weights, compiles kernels and records command
//! lists once, then runs.
//!
//! All checks that backends rely on are made here. When a plan is loaded: bounds and alignment of
//! views, numbers of operands, access conflicts. At each run: grid limits.

mod load;
mod observe;
mod pack;
mod program;
pub mod random;
mod run;

pub use observe::{Observation, Observed, Room};
pub use program::{Program, copied_bytes, specs};
pub use random::WeightSource;
pub use run::Timing;

use crate::backend::{
    Backend, BackendError, Caps, Command, KernelId, Launch, RecordingId, SharedBackend, Stats, View,
};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::graph::Graph;
use crate::graph::bounds::Bounds;
use crate::num;
use crate::plan::{LaunchState, Plan, Port, Storage, bind};
use crate::shape::Bindings;
use crate::tensor::{DType, HostTensor};
use half::f16;
use load::create;
use pack::{from_device, to_device};
use std::sync::Arc;

struct Loaded {
    /// Shared with the program, until an open plan reserves more memory.
    plan: Arc<Plan>,
    /// One per device segment, in order.
    recordings: Vec<RecordingId>,
    bound: LaunchState,
    /// The table of values that change at every step.
    live: View,
    /// Values that the host keeps during a run.
    host: Vec<Option<HostTensor>>,
    kernels: Arc<[KernelId]>,
    /// Inputs of an open plan, kept until their sizes are known and memory is reserved.
    pending: Vec<Option<HostTensor>>,
    /// Shapes of the inputs as last written, in the order of the plan's inputs and unread inputs.
    written: Vec<Option<Vec<usize>>>,
}

impl Loaded {
    /// The value of a port that is available on the host.
    fn on_host<'a>(&'a self, port: &'a Port) -> Option<&'a HostTensor> {
        let kept = || self.host.get(port.host?)?.as_ref();
        port.constant.as_deref().or_else(kept)
    }

    /// Keeps the shape of the input with this index.
    fn wrote(&mut self, at: usize, shape: &[usize]) {
        if let Some(slot) = self.written.get_mut(at) {
            let kept = slot.get_or_insert_default();
            kept.clear();
            kept.extend_from_slice(shape);
        }
    }
}

/// An input of a plan, with its index among the inputs and the unread inputs, for a tensor of this
/// shape.
fn input_port<'p>(p: &'p Plan, name: &str, shape: &[usize]) -> Result<(usize, &'p Port)> {
    let inputs = || p.inputs.iter().chain(&p.unread);
    let Some((at, port)) = inputs().enumerate().find(|(_, p)| p.name == name) else {
        let known: Vec<&str> = inputs().map(|p| p.name.as_str()).collect();
        let what = format!(
            "the model has no input \"{name}\"; its inputs are {}",
            known.join(", ")
        );
        return Err(Error::other(Stage::Run, what));
    };
    if port.shape.rank() != shape.len() {
        let what = format!("input \"{name}\": expected shape {}, found {shape:?}", port.shape);
        return Err(Error::other(Stage::Run, what).of_kind(ErrorKind::ShapeMismatch));
    }
    Ok((at, port))
}

/// Fails if an input has a value that the plan does not accept.
fn check_values(port: &Port, accepts: Bounds, values: impl Iterator<Item = i128>) -> Result<()> {
    let outside = |(_, v): &(usize, i128)| *v < accepts.low || *v > accepts.high;
    let Some((at, v)) = values.enumerate().find(outside) else {
        return Ok(());
    };
    let what = format!(
        "input \"{}\": element {at} is {v}; expected {} to {}",
        port.name, accepts.low, accepts.high
    );
    Err(Error::other(Stage::Run, what).of_kind(ErrorKind::ShapeMismatch))
}

fn output_port<'p>(p: &'p Plan, name: &str) -> Result<&'p Port> {
    let port = p.output(name);
    port.ok_or_else(|| Error::other(Stage::Run, format!("the model has no output \"{name}\"")))
}

/// The part of a port's view that holds elements `first ..`, in whole words.
fn part_of(mut view: View, port: &Port, first: usize, count: usize) -> Result<View> {
    let size = port.device.device_bytes();
    let (start, len) = (first * size, (count * size).next_multiple_of(4));
    if (start + len) as u64 > view.len || !start.is_multiple_of(4) {
        let what = format!(
            "\"{}\" has {} bytes, cannot read {len} from byte {start}",
            port.name, view.len
        );
        return Err(Error::other(Stage::Run, what));
    }
    view.offset += start as u64;
    view.len = len as u64;
    Ok(view)
}

/// Runs the plans of a [`Program`] with its own memory: states, arena, tables of live values.
/// Several executors of one program can run in different threads; the device receives their
/// commands one after another.
pub struct Executor {
    program: Arc<Program>,
    backend: SharedBackend,
    states: Vec<View>,
    arena: View,
    counters: Option<View>,
    /// The word in which kernels report invalid data.
    fault: Option<View>,
    /// The plans whose runs may have set `fault` since it was last read.
    faulty: Vec<usize>,
    /// The last run failed.
    is_cut_short: bool,
    plans: Vec<Loaded>,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executor on {}", self.backend.caps().device)
    }
}

impl Executor {
    /// Loads `plans` of `graph` on a backend that is not shared.
    pub fn new(backend: Box<dyn Backend>, graph: &Graph, plans: Vec<Plan>) -> Result<Self> {
        let program = Program::load(
            SharedBackend::new(backend),
            graph,
            plans,
            WeightSource::Files,
            &mut |_, _| {},
        )?;
        Self::of(&Arc::new(program))
    }

    /// Creates another executor of `program` with its own states, whose contents are undefined.
    pub fn of(program: &Arc<Program>) -> Result<Self> {
        let mut backend = program.backend.clone();
        let plans = || program.plans.iter().map(|(p, _)| p);
        let arena_bytes = plans()
            .map(|p| p.memory.arena)
            .max()
            .unwrap_or(4)
            .next_multiple_of(16);
        let arena = create(&mut backend, "arena", arena_bytes)?;
        // From here on, an error drops the executor, which frees its memory.
        let mut executor = Self {
            program: program.clone(),
            backend,
            states: Vec::new(),
            arena,
            counters: None,
            fault: None,
            faulty: Vec::new(),
            is_cut_short: false,
            plans: Vec::new(),
            bytes: Vec::new(),
        };
        let counters = plans().map(|p| p.counters).max().unwrap_or(0);
        if counters > 0 {
            executor.counters = Some(create(&mut executor.backend, "counters", counters * 4)?);
            executor.clear_counters()?;
        }
        if plans().any(|p| !p.faults.is_empty()) {
            executor.fault = Some(create(&mut executor.backend, "fault", 8)?);
            executor.clear_fault()?;
        }
        for (i, state) in plans().next().iter().flat_map(|p| &p.states).enumerate() {
            // Plans of one graph must agree about states.
            if plans().any(|p| p.states.get(i).map(|s| s.bytes) != Some(state.bytes)) {
                return Err(Error::other(
                    Stage::Plan,
                    format!("plans disagree about the size of state \"{}\"", state.name),
                ));
            }
            let view = create(&mut executor.backend, &state.name, state.bytes)?;
            executor.states.push(view);
        }
        for (plan, kernels) in &program.plans {
            executor.load(plan.clone(), kernels.clone())?;
        }
        Ok(executor)
    }

    fn view(&self, plan: &Plan, live: View, storage: Storage) -> Option<View> {
        match storage {
            Storage::Arena { offset, len, .. } => Some(View {
                buffer: self.arena.buffer,
                offset,
                len: len.next_multiple_of(4),
            }),
            Storage::Weight(i) => self.program.weights.get(plan.weights.get(i)?).copied(),
            Storage::State(i) => self.states.get(i).copied(),
            Storage::Live => Some(live),
            Storage::Counters => self.counters,
            Storage::Fault => self.fault,
            Storage::Known { offset, len } => Some(View {
                buffer: live.buffer,
                offset,
                len,
            }),
        }
    }

    fn clear_counters(&mut self) -> Result<()> {
        let Some(view) = self.counters else { return Ok(()) };
        let written = self.backend.write(view, &zeros(view.len)?);
        written.map_err(|e| Error::device(Stage::Run, "clearing counters", e))
    }

    fn clear_fault(&mut self) -> Result<()> {
        let Some(view) = self.fault else { return Ok(()) };
        let written = self.backend.write(view, &zeros(view.len)?);
        written.map_err(|e| Error::device(Stage::Run, "clearing the fault", e))
    }

    /// Fails if a run since the last check met invalid data. Its results are then meaningless.
    fn check_fault(&mut self) -> Result<()> {
        let Some(view) = self.fault.filter(|_| !self.faulty.is_empty()) else {
            return Ok(());
        };
        let mut word = [0u8; 4];
        let read = self.backend.read(View { len: 4, ..view }, &mut word);
        read.map_err(|e| Error::device(Stage::Run, "reading the fault", e))?;
        let Some(at) = u32::from_le_bytes(word).checked_sub(1) else {
            self.faulty.clear();
            return Ok(());
        };
        let named = || match self.faulty.as_slice() {
            [plan] => {
                let faults = &self.loaded(*plan).ok()?.plan.faults;
                faults.get(usize::try_from(at).ok()?).cloned()
            }
            _ => None,
        };
        let what =
            named().unwrap_or_else(|| "one of the last runs read an index outside its axis".to_owned());
        self.faulty.clear();
        self.clear_fault()?;
        Err(Error::other(Stage::Run, what).of_kind(ErrorKind::ShapeMismatch))
    }

    pub fn caps(&self) -> &Caps {
        self.backend.caps()
    }

    /// The program that it shares with other executors.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Running totals of the backend.
    pub fn stats(&self) -> Stats {
        self.backend.stats()
    }

    /// The loaded plan with this index.
    pub fn plan(&self, plan: usize) -> Option<&Plan> {
        self.plans.get(plan).map(|l| l.plan.as_ref())
    }

    fn loaded(&self, plan: usize) -> Result<&Loaded> {
        let count = self.plans.len();
        self.plans.get(plan).ok_or_else(|| no_plan(plan, count))
    }

    fn port_view(&self, loaded: &Loaded, port: &Port) -> Result<View> {
        port.storage
            .and_then(|storage| self.view(&loaded.plan, loaded.live, storage))
            .ok_or_else(|| {
                Error::other(
                    Stage::Run,
                    format!("\"{}\" is not stored on the device", port.name),
                )
            })
    }

    /// Writes an input of `plan`. Required before every run, since a step may overwrite it. An
    /// input that nothing reads is only checked. Fails if a reader of the input would reject one of
    /// its integers. Floats are converted to the device's storage type. The run checks the shape.
    pub fn write(&mut self, plan: usize, name: &str, tensor: &HostTensor) -> Result<()> {
        let p = Arc::clone(&self.loaded(plan)?.plan);
        let (at, port) = input_port(&p, name, tensor.shape())?;
        if port.dtype != tensor.dtype() {
            let what = format!(
                "input \"{name}\": expected elements of type {}, found {}",
                port.dtype,
                tensor.dtype()
            );
            return Err(Error::other(Stage::Run, what).of_kind(ErrorKind::ShapeMismatch));
        }
        if let (Some(accepts), true) = (port.accepts, port.storage.is_some()) {
            let values = tensor.to_i128();
            let values = values.map_err(|e| Error::caused(Stage::Run, format!("input \"{name}\""), e))?;
            check_values(port, accepts, values.into_iter())?;
        }
        let later = p.is_open();
        if port.storage.is_some() && !later {
            self.upload(plan, "input", port, tensor)?;
        }
        let loaded = loaded_mut(&mut self.plans, plan)?;
        if let Some(slot) = loaded.pending.get_mut(at).filter(|_| later) {
            *slot = Some(tensor.clone());
        }
        if let Some(slot) = port.host.and_then(|i| loaded.host.get_mut(i)) {
            *slot = Some(tensor.clone());
        }
        loaded.wrote(at, tensor.shape());
        Ok(())
    }

    /// Writes an input of integers like [`Executor::write`], in its declared type. Allocates
    /// nothing after the first call, unless the host reads the input, the plan is open, or the
    /// device stores the input in 64 bits.
    pub fn write_i32(&mut self, plan: usize, name: &str, shape: &[usize], data: &[i32]) -> Result<()> {
        let p = Arc::clone(&self.loaded(plan)?.plan);
        let (at, port) = input_port(&p, name, shape)?;
        let fits = shape.iter().product::<usize>() == data.len();
        if port.host.is_some() || port.device != DType::I32 || p.is_open() || !fits {
            let data: Vec<i64> = data.iter().map(|v| i64::from(*v)).collect();
            let tensor = HostTensor::from_ints(port.dtype, shape, &data);
            let tensor = tensor.map_err(|e| Error::caused(Stage::Run, format!("input \"{name}\""), e))?;
            return self.write(plan, name, &tensor);
        }
        if port.storage.is_some() && !data.is_empty() {
            if let Some(accepts) = port.accepts.or_else(|| Bounds::of(port.dtype)) {
                check_values(port, accepts, data.iter().map(|v| i128::from(*v)))?;
            }
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.clear();
            bytes.extend_from_slice(bytemuck::cast_slice(data));
            pack::pad(&mut bytes, port.device);
            let stored = self.store(plan, "input", port, &bytes);
            self.bytes = bytes;
            stored?;
        }
        loaded_mut(&mut self.plans, plan)?.wrote(at, shape);
        Ok(())
    }

    /// Writes a tensor to the location of a port; `what` names it in errors.
    fn upload(&mut self, plan: usize, what: &str, port: &Port, tensor: &HostTensor) -> Result<()> {
        // A tensor without elements may have no memory of its own.
        if tensor.is_empty() {
            return Ok(());
        }
        let wrong = |why: String| Error::other(Stage::Run, format!("{what} \"{}\": {why}", port.name));
        let bytes = to_device(tensor, port.device).map_err(wrong)?;
        self.store(plan, what, port, &bytes)
    }

    /// Writes bytes in device form to the location of a port; `what` names it in errors.
    fn store(&mut self, plan: usize, what: &str, port: &Port, bytes: &[u8]) -> Result<()> {
        let name = &port.name;
        let mut view = self.port_view(self.loaded(plan)?, port)?;
        if bytes.len() as u64 > view.len {
            let why = format!("found {} bytes, expected at most {}", bytes.len(), view.len);
            return Err(Error::other(Stage::Run, format!("{what} \"{name}\": {why}")));
        }
        view.len = bytes.len() as u64;
        let written = self.backend.write(view, bytes);
        written.map_err(|e| Error::device(Stage::Run, format!("writing \"{name}\""), e))
    }

    /// The values of all symbols that the input shapes determine, from the tensors written last.
    pub fn bindings(&self, plan: usize) -> Result<Bindings> {
        let loaded = self.loaded(plan)?;
        let ports = loaded.plan.inputs.iter().chain(&loaded.plan.unread);
        let shapes = ports
            .zip(&loaded.written)
            .filter_map(|(p, s)| Some((p.name.as_str(), &p.shape, s.as_deref()?)));
        bind::solve(shapes)
    }

    /// Reads elements `first ..` of a float output of `plan` as `f32` after all queued runs, as
    /// many as `out` holds. `first` must be even.
    pub fn read_f32(&mut self, plan: usize, name: &str, first: usize, out: &mut [f32]) -> Result<()> {
        self.check_fault()?;
        let p = Arc::clone(&self.loaded(plan)?.plan);
        let port = output_port(&p, name)?;
        let loaded = self.loaded(plan)?;
        if let Some(tensor) = loaded.on_host(port) {
            let wrong = |e: String| Error::other(Stage::Run, format!("output \"{name}\": {e}"));
            let data = tensor.to_f32().map_err(|e| wrong(e.to_string()))?;
            let part = data.get(first..first + out.len());
            out.copy_from_slice(
                part.ok_or_else(|| wrong(format!("the output has only {} elements", data.len())))?,
            );
            return Ok(());
        }
        let view = self.port_view(loaded, port)?;
        self.read_floats(view, port, first, out)
    }

    /// Reads elements `first ..` of an output of `plan` that holds indices, after all queued runs,
    /// as many as `out` holds. An error for a negative one.
    pub fn read_indices(&mut self, plan: usize, name: &str, first: usize, out: &mut [u32]) -> Result<()> {
        self.check_fault()?;
        let p = Arc::clone(&self.loaded(plan)?.plan);
        let port = output_port(&p, name)?;
        let wrong = |what: String| Error::other(Stage::Run, format!("output \"{name}\": {what}"));
        let loaded = self.loaded(plan)?;
        if let Some(tensor) = loaded.on_host(port) {
            let data = tensor.to_i64().map_err(|e| wrong(e.to_string()))?;
            let part = data.get(first..first + out.len());
            let part = part.ok_or_else(|| wrong(format!("the output has only {} elements", data.len())))?;
            for (o, v) in out.iter_mut().zip(part) {
                *o = u32::try_from(*v).map_err(|_| wrong(format!("{v} is not an index")))?;
            }
            return Ok(());
        }
        if port.device != DType::I32 {
            return Err(wrong(format!("expected integers, found {}", port.device)));
        }
        let view = part_of(self.port_view(loaded, port)?, port, first, out.len())?;
        let read = self.backend.read(view, bytemuck::cast_slice_mut(out));
        read.map_err(|e| Error::device(Stage::Run, format!("reading \"{name}\""), e))?;
        match bytemuck::cast_slice::<u32, i32>(out).iter().find(|v| **v < 0) {
            Some(v) => Err(wrong(format!("{v} is not an index"))),
            None => Ok(()),
        }
    }

    fn read_floats(&mut self, view: View, port: &Port, first: usize, out: &mut [f32]) -> Result<()> {
        let name = &port.name;
        let device = port.device;
        let view = part_of(view, port, first, out.len())?;
        let failed = |e: BackendError| Error::device(Stage::Run, format!("reading \"{name}\""), e);
        match device {
            DType::F32 => self
                .backend
                .read(view, bytemuck::cast_slice_mut(out))
                .map_err(failed)?,
            DType::F16 => {
                self.bytes.resize((2 * out.len()).next_multiple_of(4), 0);
                self.backend.read(view, &mut self.bytes).map_err(failed)?;
                for (o, h) in out.iter_mut().zip(self.bytes.chunks_exact(2)) {
                    *o = f16::from_le_bytes([h[0], h[1]]).to_f32();
                }
            }
            other => {
                return Err(Error::other(
                    Stage::Run,
                    format!("\"{name}\" has type {other} on the device, expected a float"),
                ));
            }
        }
        Ok(())
    }

    /// Reads a whole output of `plan` in its host type, with the shape of the last run.
    pub fn read(&mut self, plan: usize, name: &str) -> Result<HostTensor> {
        self.check_fault()?;
        let p = Arc::clone(&self.loaded(plan)?.plan);
        let port = output_port(&p, name)?;
        if let Some(tensor) = self.loaded(plan)?.on_host(port) {
            return Ok(tensor.clone());
        }
        self.download(plan, port)
    }

    /// Reads the tensor at the location of a port, with its shape in the current run.
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
        let mut view = self.port_view(loaded, port)?;
        let size = port.device.device_bytes();
        let len = (count * size).next_multiple_of(4);
        if len as u64 > view.len {
            return Err(tensor_error(format!("found {} bytes, expected {len}", view.len)));
        }
        view.len = len as u64;
        let mut bytes = vec![0; len];
        let read = self.backend.read(view, &mut bytes);
        read.map_err(|e| Error::device(Stage::Run, format!("reading \"{}\"", port.name), e))?;
        from_device(&bytes, port.dtype, port.device, &shape).map_err(tensor_error)
    }

    fn state(&self, index: usize, bytes: usize) -> Result<View> {
        let state = self.states.get(index).copied();
        let mut view = state.ok_or_else(|| {
            Error::other(
                Stage::Run,
                format!(
                    "state {index} does not exist; states of the model: {}",
                    self.states.len()
                ),
            )
        })?;
        if bytes as u64 > view.len {
            let what = format!(
                "state {index} has {} bytes, fewer than the {bytes} requested",
                view.len
            );
            return Err(Error::other(Stage::Run, what));
        }
        view.len = (bytes as u64).next_multiple_of(4);
        Ok(view)
    }

    /// Reads the first bytes of state `index` in device form after all queued runs, as many as
    /// `out` holds.
    pub fn read_state(&mut self, index: usize, out: &mut [u8]) -> Result<()> {
        self.check_fault()?;
        let view = self.state(index, out.len())?;
        if out.is_empty() {
            return Ok(());
        }
        self.bytes.resize(out.len().next_multiple_of(4), 0);
        let read = self.backend.read(view, &mut self.bytes);
        read.map_err(|e| Error::device(Stage::Run, format!("reading state {index}"), e))?;
        out.copy_from_slice(num::part(&self.bytes, ..out.len())?);
        Ok(())
    }

    /// Writes the first bytes of state `index` in device form. The bytes after them become
    /// undefined.
    pub fn write_state(&mut self, index: usize, bytes: &[u8]) -> Result<()> {
        let view = self.state(index, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let mut whole = bytes.to_vec();
        whole.resize(bytes.len().next_multiple_of(4), 0);
        let written = self.backend.write(view, &whole);
        written.map_err(|e| Error::device(Stage::Run, format!("writing state {index}"), e))
    }

    /// Copies parts of all states over others, in order: `[from, to]` among parts with `rows` rows
    /// each.
    pub fn copy_parts(&mut self, pairs: &[[u32; 2]], rows: i64) -> Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        let slots = self.plan(0).map(|p| p.states.as_slice()).unwrap_or_default();
        let mut commands = Vec::with_capacity(slots.len() * pairs.len());
        for (index, (slot, whole)) in slots.iter().zip(&self.states).enumerate() {
            let parts = (slot.rows / rows.max(1)).unsigned_abs();
            let bytes = slot.bytes.checked_div(parts).unwrap_or(0);
            for pair in pairs {
                let [src, dst] = pair.map(|part| View {
                    offset: whole.offset + u64::from(part) * bytes,
                    len: bytes,
                    ..*whole
                });
                if pair[0] == pair[1] || pair.iter().any(|part| u64::from(*part) >= parts) {
                    let what = format!("parts {pair:?} of state {index}, which has {parts}");
                    return Err(Error::internal(Stage::Run, what));
                }
                commands.push(Command::Copy { src, dst });
            }
        }
        let failed = |e| Error::device(Stage::Run, "copying rows of states", e);
        let recording = self.backend.record(&commands).map_err(failed)?;
        let submitted = self.backend.submit(recording, &Launch::default());
        self.backend.release(recording);
        submitted.map_err(failed)
    }

    /// Waits until all queued runs are done.
    pub fn wait(&mut self) -> Result<()> {
        self.backend
            .wait()
            .map_err(|e| Error::device(Stage::Run, "waiting", e))
    }

    /// The backend, for tests that inspect raw memory.
    pub fn backend(&mut self) -> &mut dyn Backend {
        &mut self.backend
    }

    /// The whole arena, for tests that poison it.
    pub fn arena(&self) -> View {
        self.arena
    }
}

fn loaded_mut(plans: &mut [Loaded], plan: usize) -> Result<&mut Loaded> {
    let count = plans.len();
    plans.get_mut(plan).ok_or_else(|| no_plan(plan, count))
}

fn no_plan(plan: usize, count: usize) -> Error {
    Error::other(
        Stage::Run,
        format!("plan {plan} does not exist; loaded plans: {count}"),
    )
}

impl Drop for Executor {
    fn drop(&mut self) {
        // The driver may still use queued memory.
        if let Err(e) = self.backend.wait() {
            log::warn!("error while closing an executor: {e}");
        }
        for plan in &self.plans {
            for recording in &plan.recordings {
                self.backend.release(*recording);
            }
        }
        let live = self.plans.iter().map(|p| &p.live);
        for view in self
            .states
            .iter()
            .chain(live)
            .chain([&self.arena])
            .chain(&self.counters)
            .chain(&self.fault)
        {
            self.backend.destroy_buffer(view.buffer);
        }
    }
}

/// Bytes for the contents of a buffer of `len` bytes.
fn zeros(len: u64) -> Result<Vec<u8>> {
    Ok(vec![0; num::exact(len, "the length of a buffer")?])
}
