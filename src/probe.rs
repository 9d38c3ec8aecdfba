//! Measures a device: memory bandwidth, arithmetic throughput, launch overhead.
//!
//! The kernels are pairs like all others and run through [`Backend`]. Times come from the device's
//! clock if it has one, else the host's; each is the median of several runs. For a feature that the
//! device lacks, the reason is recorded.
//!
//! Everything is read at least twice, and again while readings differ, because other work on the
//! machine slows a reading down. The fastest one counts.

pub mod store;
#[cfg(test)]
mod tests;

use crate::backend::kernel::image::{ImageKind, Images, Pixel};
use crate::backend::kernel::{Kernel, KernelSpec};
use crate::backend::{
    Backend, BackendError, BufferId, Caps, Command, DeviceKind, KernelId, Launch, PackedDot, TensorCores,
    View,
};
use crate::fmt::quantity;
use crate::kernels::probe::{COPY, DOT, HALF, MATRIX, READ, SINGLE};
use crate::kernels::product_e0m::PLANES;
use crate::num;
use crate::plan::Arithmetic;
use crate::tensor::DType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

/// Peak rates of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Peaks {
    /// Bytes of memory traffic per second.
    pub bytes_per_s: f64,
    /// Operations per second in single precision.
    pub f32_flops_per_s: f64,
    /// Operations per second in half precision; `None` if the device has no such arithmetic.
    pub f16_flops_per_s: Option<f64>,
    /// Operations per second of tensor cores or cooperative matrices; `None` if there are none that
    /// kernels use.
    pub matrix_flops_per_s: Option<f64>,
    /// Operations per second of dot products of 8-bit integers; `None` if the device has no
    /// instruction for them.
    pub int8_ops_per_s: Option<f64>,
    /// Operations per second of 16-bit integers times 8-bit ones; `None` if no kernel of the device
    /// computes with them.
    pub int16_ops_per_s: Option<f64>,
    /// Launch overhead in seconds.
    pub launch_s: f64,
}

impl fmt::Display for Peaks {
    /// For people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (memory, single) = (
            quantity(self.bytes_per_s, "B/s"),
            quantity(self.f32_flops_per_s, "FLOP/s"),
        );
        write!(f, "memory {memory}, f32 {single}")?;
        if let Some(rate) = self.f16_flops_per_s {
            write!(f, ", f16 {}", quantity(rate, "FLOP/s"))?;
        }
        if let Some(rate) = self.matrix_flops_per_s {
            write!(f, ", tensor cores {}", quantity(rate, "FLOP/s"))?;
        }
        if let Some(rate) = self.int8_ops_per_s {
            write!(f, ", int8 {}", quantity(rate, "OP/s"))?;
        }
        if let Some(rate) = self.int16_ops_per_s {
            write!(f, ", int16 {}", quantity(rate, "OP/s"))?;
        }
        write!(f, ", launch {}", quantity(self.launch_s, "s"))
    }
}

impl Peaks {
    /// Operations per second; infinite if not measured.
    pub fn rate(&self, arithmetic: Arithmetic) -> f64 {
        match arithmetic {
            Arithmetic::F32 => self.f32_flops_per_s,
            Arithmetic::F16 => self.f16_flops_per_s.unwrap_or(self.f32_flops_per_s),
            Arithmetic::TensorCores => self.matrix_flops_per_s.unwrap_or(f64::INFINITY),
            Arithmetic::Bytes => self.int8_ops_per_s.unwrap_or(f64::INFINITY),
            Arithmetic::Int16 => self.int16_ops_per_s.unwrap_or(f64::INFINITY),
        }
    }
}

/// The kernels of this module.
pub const KERNELS: &[&Kernel] = &[
    &COPY.kernel,
    &READ.kernel,
    &SINGLE.kernel,
    &HALF.kernel,
    &DOT.kernel,
    &MATRIX.kernel,
];

/// Measurements of a device. [`Probe::not_measured`] explains a rate that is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Probe {
    /// Version of the measurement.
    pub version: u32,
    /// Backend: `opencl`, `wgpu` or `cpu`.
    pub backend: String,
    /// Device.
    pub device: String,
    /// Driver.
    pub driver: String,
    /// Bytes per second, read plus written, of a copy in device memory, by a kernel or by the
    /// driver, whichever is faster.
    pub copy_bytes_per_s: f64,
    /// Bytes per second that a kernel reads from buffers.
    pub read_bytes_per_s: f64,
    /// Bytes per second that a kernel reads through images.
    pub image_bytes_per_s: Option<f64>,
    /// Operations per second in single precision. In all rates a multiply-add counts as two.
    pub f32_flops_per_s: f64,
    /// Operations per second in half precision.
    pub f16_flops_per_s: Option<f64>,
    /// Operations per second of dot products of four pairs of 8-bit integers.
    pub int8_ops_per_s: Option<f64>,
    /// Operations per second of dot products of 16-bit integers with 8-bit ones, as kernels for
    /// processors compute them.
    pub int16_ops_per_s: Option<f64>,
    /// Operations per second of tensor cores or cooperative matrices on halves, in the form that
    /// kernels use.
    pub matrix_flops_per_s: Option<f64>,
    /// Overhead of a command in a recording, in seconds.
    pub launch_s: f64,
    /// Clock of the times: `device` or `host`.
    pub clock: String,
    /// Why something was not measured, by field name.
    pub not_measured: BTreeMap<String, String>,
    /// Rates whose two fastest readings differ by more than a tenth of the faster one, by field
    /// name, with that share. Other work ran on the machine, and the rates may be too low.
    pub unsteady: BTreeMap<String, f64>,
}

/// [`Probe::version`] of this build.
pub const VERSION: u32 = 6;

impl Probe {
    /// The peaks used for lower bounds on run time.
    pub fn peaks(&self) -> Peaks {
        Peaks {
            bytes_per_s: self.copy_bytes_per_s.max(self.read_bytes_per_s),
            f32_flops_per_s: self.f32_flops_per_s,
            f16_flops_per_s: self.f16_flops_per_s,
            matrix_flops_per_s: self.matrix_flops_per_s,
            int8_ops_per_s: self.int8_ops_per_s,
            int16_ops_per_s: self.int16_ops_per_s,
            launch_s: self.launch_s,
        }
    }

    /// What to tell people about [`Probe::unsteady`]; `None` for a steady probe.
    pub fn warning(&self) -> Option<String> {
        let widest = self.unsteady.values().copied().fold(0.0, f64::max);
        (widest > 0.0).then(|| {
            format!(
                "the machine was busy when {} was measured: readings of {} differ by up to {:.0} %, so limits may \
                 be too low; repeat `tlite devices --probe` when it is idle",
                self.device,
                self.unsteady.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
                100.0 * widest
            )
        })
    }

    /// All measured rates by field name.
    fn rates(&mut self) -> impl Iterator<Item = (&'static str, &mut f64)> {
        let always = [
            ("copy_bytes_per_s", Some(&mut self.copy_bytes_per_s)),
            ("read_bytes_per_s", Some(&mut self.read_bytes_per_s)),
            ("image_bytes_per_s", self.image_bytes_per_s.as_mut()),
            ("f32_flops_per_s", Some(&mut self.f32_flops_per_s)),
            ("f16_flops_per_s", self.f16_flops_per_s.as_mut()),
            ("int8_ops_per_s", self.int8_ops_per_s.as_mut()),
            ("int16_ops_per_s", self.int16_ops_per_s.as_mut()),
            ("matrix_flops_per_s", self.matrix_flops_per_s.as_mut()),
        ];
        always.into_iter().filter_map(|(name, rate)| Some((name, rate?)))
    }

    /// The fastest of some readings of each rate, marked unless another one comes close.
    fn fastest(readings: &[Self]) -> Option<Self> {
        let mut all = readings.to_vec();
        let mut found: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (name, rate) in all.iter_mut().flat_map(Self::rates) {
            found.entry(name).or_default().push(*rate);
        }
        let mut best = readings.first()?.clone();
        for (name, rate) in best.rates() {
            let Some(of) = found.get_mut(name) else { continue };
            of.sort_by(|a, b| b.total_cmp(a));
            *rate = of.first().copied().unwrap_or(*rate);
        }
        for (name, of) in found {
            if let [first, second, ..] = of[..]
                && 1.0 - second / first > SPREAD
            {
                best.unsteady.insert(name.to_owned(), 1.0 - second / first);
            }
        }
        best.launch_s = readings.iter().map(|r| r.launch_s).fold(f64::INFINITY, f64::min);
        Some(best)
    }

    /// Records why a rate is not measured.
    fn lacks(&mut self, field: &str, why: &str) {
        self.not_measured.insert(field.to_owned(), why.to_owned());
    }

    /// A rate; if the kernel does not build although the driver should accept it, `None`, and the
    /// reason is recorded.
    fn offered(&mut self, rate: Result<f64, BackendError>, field: &str) -> Result<Option<f64>, BackendError> {
        match rate {
            Err(BackendError::Build { log, .. }) => {
                let first = log.lines().find(|l| !l.trim().is_empty()).unwrap_or_default();
                let why = format!("the driver lists it but cannot compile it: {}", first.trim());
                self.lacks(field, &why);
                Ok(None)
            }
            rate => rate.map(Some),
        }
    }

    /// Whether the probe belongs to this device and this build.
    pub fn is_of(&self, caps: &Caps) -> bool {
        self.version == VERSION
            && self.backend == caps.backend
            && self.device == caps.device
            && self.driver == caps.driver
    }
}

/// Number of runs of each measurement; the median counts.
const RUNS: usize = 5;
/// Maximum number of readings; two are always made.
const READINGS: usize = 4;
/// Share by which the two fastest readings of a rate may differ.
const SPREAD: f64 = 0.1;
/// Number of commands for measuring the overhead of one.
const LAUNCHES: u32 = 256;
/// Maximum number of loop rounds in a kernel; CPU drivers abort longer loops.
const MAX_ROUNDS: u32 = 50_000;
/// Minimum time of an arithmetic run in seconds, so that launch overhead is negligible.
const LONG_ENOUGH: f64 = 0.01;

/// Measures the device. Takes some seconds and at most 3 buffers of 256 MiB, which are freed. If
/// other work runs on the machine, the result is marked in [`Probe::unsteady`]. Fails if a kernel
/// that every device supports is refused, or if memory is short.
pub fn measure(backend: &mut dyn Backend) -> Result<Probe, BackendError> {
    let caps = backend.caps().clone();
    let mut bench = Bench {
        shape: Shape::of(&caps),
        caps,
        backend,
        buffers: Vec::new(),
    };
    let mut readings = vec![bench.reading()?];
    loop {
        readings.push(bench.reading()?);
        match Probe::fastest(&readings) {
            Some(probe) if probe.unsteady.is_empty() || readings.len() == READINGS => return Ok(probe),
            _ => {}
        }
    }
}

/// How the work of a kernel is divided.
struct Shape {
    /// Work-items of a work-group.
    items: u32,
    /// Work-groups.
    groups: u32,
    /// Bytes that are moved.
    bytes: u64,
}

impl Shape {
    fn of(caps: &Caps) -> Self {
        let units = caps.profile.assumed_compute_units().max(1);
        // More than the caches hold, if there is room.
        let wanted = if caps.kind == DeviceKind::Discrete {
            256 << 20
        } else {
            128 << 20
        };
        let memory = if caps.memory_bytes > 0 {
            caps.memory_bytes / 8
        } else {
            u64::MAX
        };
        let most = caps.profile.max_view_bytes.min(caps.max_buffer_bytes).min(memory);
        let (items, groups) = match caps.profile.divides_work() {
            true => (1, units.saturating_mul(8)),
            false => (256.min(caps.profile.max_workgroup), units.saturating_mul(16)),
        };
        Self {
            items,
            groups: groups.clamp(1, caps.profile.max_grid),
            bytes: wanted.min(most) / 4096 * 4096,
        }
    }

    fn work_items(&self) -> u32 {
        self.items.saturating_mul(self.groups)
    }

    /// A kernel of the probe without defines.
    fn plain(&self, kernel: &'static Kernel) -> KernelSpec {
        spec(kernel, self.items, &[])
    }

    /// A kernel that reads everything through an image, of the kind that plans use, else the first
    /// that the device has.
    fn read_image(&self, images: &Images) -> Option<KernelSpec> {
        let mut kinds = images.reads.into_iter().chain(ImageKind::ALL);
        let fits = |kind: &ImageKind| images.shape(*kind, Pixel::Words, self.bytes).is_some();
        let kind = kinds.find(fits)?;
        Some(KernelSpec {
            images: BTreeMap::from([(0, kind)]),
            ..self.plain(&READ)
        })
    }

    fn half(&self, caps: &Caps) -> Option<KernelSpec> {
        if by_ptx(caps) {
            return Some(spec(&HALF, self.items, &[("PTX", 1)]));
        }
        caps.profile.f16_math.then(|| self.plain(&HALF))
    }

    fn dot(&self, caps: &Caps) -> Option<KernelSpec> {
        let form = match caps.profile.packed_dot {
            PackedDot::None => return None,
            other => other.define().map(|define| (define, 1)),
        };
        Some(spec(&DOT, self.items, form.as_slice()))
    }

    /// Only kernels for processors compute with 16-bit integers.
    fn int16(&self, caps: &Caps) -> Option<KernelSpec> {
        let is_native = caps.profile.packed_dot == PackedDot::Native;
        is_native.then(|| spec(&DOT, self.items, &[(PLANES, 2)]))
    }
}

/// Whether arithmetic that OpenCL C cannot express is written in PTX.
fn by_ptx(caps: &Caps) -> bool {
    caps.profile.tensor_cores == Some(TensorCores::Ptx)
}

fn matrix(caps: &Caps) -> Option<KernelSpec> {
    let items = match caps.profile.tensor_cores? {
        TensorCores::Ptx => 256,
        TensorCores::CooperativeMatrix => 32,
    };
    Some(spec(&MATRIX, items, &[]))
}

/// The kernels that measure a device.
pub fn specs(caps: &Caps) -> Vec<KernelSpec> {
    let shape = Shape::of(caps);
    let always = [shape.plain(&COPY), shape.plain(&READ), shape.plain(&SINGLE)];
    let offered = [
        shape.read_image(&caps.profile.images),
        shape.half(caps),
        shape.dot(caps),
        shape.int16(caps),
        matrix(caps),
    ];
    always.into_iter().chain(offered.into_iter().flatten()).collect()
}

struct Bench<'a> {
    backend: &'a mut dyn Backend,
    caps: Caps,
    shape: Shape,
    buffers: Vec<BufferId>,
}

/// The median of some times.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn spec(kernel: &'static Kernel, items: u32, defines: &[(&'static str, i64)]) -> KernelSpec {
    let operands = kernel.args.iter().map(|a| {
        let dtype = if a.ty.has_accessors() {
            DType::F32
        } else {
            DType::U32
        };
        Some(dtype)
    });
    KernelSpec {
        kernel,
        workgroup: items,
        defines: defines.iter().copied().collect(),
        operands: operands.collect(),
        in_place: None,
        epilogue: None,
        images: BTreeMap::new(),
    }
}

/// A command that runs a kernel once.
struct One<'a> {
    kernel: KernelId,
    args: &'a [View],
    params: Vec<u8>,
    groups: u32,
}

#[expect(clippy::cast_precision_loss, reason = "rates are estimates")]
fn float(n: u64) -> f64 {
    n as f64
}

impl Bench<'_> {
    fn buffer(&mut self, label: &str, bytes: u64) -> Result<View, BackendError> {
        let buffer = self.backend.create_buffer(label, bytes)?;
        self.buffers.push(buffer);
        Ok(View {
            buffer,
            offset: 0,
            len: bytes,
        })
    }

    /// Seconds of one submission of `commands`, and whether the device's clock measured them.
    fn seconds(
        &mut self,
        commands: &[Command],
        launch: &Launch,
        by_device: bool,
    ) -> Result<f64, BackendError> {
        let recording = self.backend.record(commands)?;
        let mut times = Vec::with_capacity(RUNS);
        let mut timed = || -> Result<(), BackendError> {
            for run in 0..=RUNS {
                let seconds = if by_device {
                    let times = self.backend.profile(recording, launch)?;
                    float(times.iter().sum::<u64>()) / 1e9
                } else {
                    let start = Instant::now();
                    self.backend.submit(recording, launch)?;
                    self.backend.wait()?;
                    start.elapsed().as_secs_f64()
                };
                // The first run is a warm-up.
                if run > 0 {
                    times.push(seconds);
                }
            }
            Ok(())
        };
        let done = timed();
        self.backend.release(recording);
        done?;
        let middle = median(&mut times);
        if by_device && middle <= 0.0 {
            // Some drivers report no times for copies.
            return self.seconds(commands, launch, false);
        }
        Ok(middle.max(1e-9))
    }

    fn run(&mut self, one: One<'_>) -> Result<f64, BackendError> {
        let command = Command::Dispatch {
            kernel: one.kernel,
            args: one.args.to_vec(),
            step: 0,
            params: 0..num::exact(one.params.len(), "the length of parameters")?,
        };
        let launch = Launch {
            params: one.params,
            grids: vec![[one.groups, 1, 1]],
        };
        let by_device = self.caps.profiling;
        self.seconds(&[command], &launch, by_device)
    }

    /// Bytes per second of a kernel that reads or copies a buffer.
    fn walk(&mut self, spec: &KernelSpec, x: View, y: View) -> Result<f64, BackendError> {
        let shape = &self.shape;
        let (groups, all) = (shape.groups, shape.work_items());
        let vectors: u32 = num::exact(shape.bytes / 16, "the size of a buffer")?;
        let each = vectors.div_ceil(all);
        let moved = if spec.kernel.name == COPY.name { 2 } else { 1 };
        let id = self.backend.compile(spec)?;
        let params = [vectors, each, all]
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect();
        let time = self.run(One {
            kernel: id,
            args: &[x, y],
            params,
            groups,
        })?;
        Ok(float(u64::from(vectors) * 16 * moved) / time)
    }

    /// Bytes per second through an image; the inner error is the reason why it was not measured.
    fn read_image(&mut self, x: View, y: View) -> Result<Result<f64, &'static str>, BackendError> {
        let Some(spec) = self.shape.read_image(&self.caps.profile.images) else {
            return Ok(Err(
                "not supported: the device cannot create images of that size over parts of buffers",
            ));
        };
        let before = self.backend.stats().images;
        let rate = self.walk(&spec, x, y)?;
        if self.backend.stats().images == before {
            return Ok(Err(
                "the driver reports support for images over buffers but failed to create one",
            ));
        }
        Ok(Ok(rate))
    }

    /// Operations per second of a kernel that performs `operations` per round of a work-item, or of
    /// a warp of them.
    fn rate(
        &mut self,
        spec: &KernelSpec,
        y: View,
        operations: u64,
        params: &[[u8; 4]],
    ) -> Result<f64, BackendError> {
        let kernel = self.backend.compile(spec)?;
        let groups = self.shape.groups;
        let mut rounds = 64u32;
        loop {
            let mut bytes = rounds.to_le_bytes().to_vec();
            bytes.extend(params.iter().flatten());
            let time = self.run(One {
                kernel,
                args: &[y],
                params: bytes,
                groups,
            })?;
            if time >= LONG_ENOUGH || rounds == MAX_ROUNDS {
                let all = u64::from(rounds) * operations * u64::from(groups);
                return Ok(float(all) / time);
            }
            let more = (1.5 * LONG_ENOUGH / time).clamp(2.0, 64.0);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "from 128 on, and bounded"
            )]
            let longer = (f64::from(rounds) * more) as u32;
            rounds = longer.min(MAX_ROUNDS);
        }
    }

    /// Seconds per additional command in a recording.
    fn launch(&mut self, x: View, y: View) -> Result<f64, BackendError> {
        let kernel = self.backend.compile(&spec(&COPY, 64, &[]))?;
        let params: Vec<u8> = [64u32, 1, 64].iter().flat_map(|n| n.to_le_bytes()).collect();
        let len = num::exact(params.len(), "the length of parameters")?;
        let mut times = [0.0; 2];
        for (time, count) in times.iter_mut().zip([1, LAUNCHES]) {
            let commands: Vec<Command> = (0..count)
                .map(|step| Command::Dispatch {
                    kernel,
                    args: vec![x, y],
                    step,
                    params: 0..len,
                })
                .collect();
            let launch = Launch {
                params: params.clone(),
                grids: vec![[1, 1, 1]; count as usize],
            };
            *time = self.seconds(&commands, &launch, false)?;
        }
        let [one, many] = times;
        Ok((many - one).max(0.0) / f64::from(LAUNCHES - 1))
    }

    /// Measures everything once, and frees what that takes.
    fn reading(&mut self) -> Result<Probe, BackendError> {
        let probe = self.probe();
        for buffer in std::mem::take(&mut self.buffers) {
            self.backend.destroy_buffer(buffer);
        }
        probe
    }

    fn probe(&mut self) -> Result<Probe, BackendError> {
        let bytes = self.shape.bytes;
        let (x, y) = (self.buffer("probe x", bytes)?, self.buffer("probe y", bytes)?);
        // Memory that was never written is a single page of zeros to a CPU's operating system, and
        // reading it would measure a cache.
        let fill = Command::Fill { dst: x, byte: 1 };
        self.seconds(&[fill], &Launch::default(), false)?;
        let by_driver = {
            let command = Command::Copy { src: x, dst: y };
            let by_device = self.caps.profiling;
            2.0 * float(bytes) / self.seconds(&[command], &Launch::default(), by_device)?
        };
        let copied = self.walk(&self.shape.plain(&COPY), x, y)?;
        let mut probe = Probe {
            version: VERSION,
            backend: self.caps.backend.to_owned(),
            device: self.caps.device.clone(),
            driver: self.caps.driver.clone(),
            copy_bytes_per_s: copied.max(by_driver),
            read_bytes_per_s: self.walk(&self.shape.plain(&READ), x, y)?,
            image_bytes_per_s: None,
            f32_flops_per_s: f64::NAN,
            f16_flops_per_s: None,
            int8_ops_per_s: None,
            int16_ops_per_s: None,
            matrix_flops_per_s: None,
            launch_s: f64::NAN,
            clock: if self.caps.profiling { "device" } else { "host" }.to_owned(),
            not_measured: BTreeMap::new(),
            unsteady: BTreeMap::new(),
        };
        match self.read_image(x, y)? {
            Ok(rate) => probe.image_bytes_per_s = Some(rate),
            Err(why) => probe.lacks("image_bytes_per_s", why),
        }
        probe.launch_s = self.launch(x, y)?;
        self.measure_arithmetic(&mut probe, y)?;
        Ok(probe)
    }

    fn measure_arithmetic(&mut self, probe: &mut Probe, y: View) -> Result<(), BackendError> {
        let items = u64::from(self.shape.items);
        let floats = [0.999f32.to_le_bytes(), 0.001f32.to_le_bytes()];
        // Eight chains of vectors.
        let lanes: u64 = if self.caps.profile.divides_work() { 16 } else { 4 };
        let operations = 2 * 8 * lanes * items;
        probe.f32_flops_per_s = self.rate(&self.shape.plain(&SINGLE), y, operations, &floats)?;
        match self.shape.half(&self.caps) {
            None => probe.lacks(
                "f16_flops_per_s",
                "not supported: the device has no half arithmetic",
            ),
            Some(spec) => {
                let rate = self.rate(&spec, y, operations, &floats);
                probe.f16_flops_per_s = probe.offered(rate, "f16_flops_per_s")?;
            }
        }
        // Eight chains of dot products of four pairs; native kernels multiply sixteen columns, four
        // steps each.
        let factor = [0x0102_0301u32.to_le_bytes()];
        let vector = match self.caps.profile.packed_dot {
            PackedDot::Native => 16 * 4,
            _ => 1,
        };
        let operations = 8 * 8 * vector * items;
        match self.shape.dot(&self.caps) {
            None => probe.lacks(
                "int8_ops_per_s",
                "not supported: the driver lists no packed dot product",
            ),
            Some(spec) => {
                let rate = self.rate(&spec, y, operations, &factor);
                probe.int8_ops_per_s = probe.offered(rate, "int8_ops_per_s")?;
            }
        }
        match self.shape.int16(&self.caps) {
            None => probe.lacks("int16_ops_per_s", "not used: no kernel of the device needs it"),
            Some(spec) => {
                let rate = self.rate(&spec, y, operations, &factor);
                probe.int16_ops_per_s = probe.offered(rate, "int16_ops_per_s")?;
            }
        }
        match matrix(&self.caps) {
            None => probe.lacks(
                "matrix_flops_per_s",
                "not supported: no tensor cores or cooperative matrices that kernels can use",
            ),
            Some(spec) => {
                // Four chains of matrix multiplications, 16 x 8 x 16 in OpenCL C and 16 x 16 x 16
                // in WGSL, per 32 work-items.
                let product = match by_ptx(&self.caps) {
                    true => 16 * 8 * 16,
                    false => 16 * 16 * 16,
                };
                let operations = 2 * 4 * product * u64::from(spec.workgroup / 32);
                let rate = self.rate(&spec, y, operations, &floats);
                probe.matrix_flops_per_s = probe.offered(rate, "matrix_flops_per_s")?;
            }
        }
        Ok(())
    }
}
