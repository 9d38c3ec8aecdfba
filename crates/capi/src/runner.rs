//! Models of any kind: tensors in, tensors out.

use crate::args::{array, null, object, text};
use crate::error::{c_text, guarded};
use crate::generate::Over;
use crate::model::{TliteLoadOptions, open_options};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, TryLockError};
use transformer_lite::results::Named;
use transformer_lite::unstable::placement::Opened;
use transformer_lite::{
    Cancel, DType, Dim, Error, ErrorKind, Fact, HostTensor, Result, Runner, RunnerOptions, Stage,
};

/// A loaded model of any kind. Only one call at a time may use it, except `tlite_runner_cancel`.
pub struct TliteRunner {
    state: Mutex<State>,
    inputs: Vec<Described>,
    cancel: Cancel,
}

struct State {
    runner: Runner,
    /// Of the last run; before the first one, what is known of them.
    outputs: Vec<Described>,
    tensors: Vec<Named>,
}

/// Element type of a tensor. Types with fewer than 8 bits take a byte for each element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TliteType {
    /// 32-bit float.
    F32 = 0,
    /// 16-bit float.
    F16 = 1,
    /// 64-bit signed integer.
    I64 = 2,
    /// 32-bit signed integer.
    I32 = 3,
    /// 32-bit unsigned integer.
    U32 = 4,
    /// 8-bit unsigned integer.
    U8 = 5,
    /// 8-bit signed integer.
    I8 = 6,
    /// Truth value: a byte that is 0 or 1.
    Bool = 7,
    /// 64-bit float.
    F64 = 8,
    /// bfloat16: the upper half of a 32-bit float.
    Bf16 = 9,
    /// 16-bit signed integer.
    I16 = 10,
    /// 16-bit unsigned integer.
    U16 = 11,
    /// 64-bit unsigned integer.
    U64 = 12,
    /// 4-bit signed integer.
    I4 = 13,
    /// 4-bit unsigned integer.
    U4 = 14,
    /// 2-bit signed integer.
    I2 = 15,
    /// 2-bit unsigned integer.
    U2 = 16,
    /// 8-bit float, `float8e4m3fn` of ONNX.
    F8E4m3 = 17,
    /// 8-bit float, `float8e4m3fnuz` of ONNX.
    F8E4m3Uz = 18,
    /// 8-bit float, `float8e5m2` of ONNX.
    F8E5m2 = 19,
    /// 8-bit float, `float8e5m2fnuz` of ONNX.
    F8E5m2Uz = 20,
    /// A power of two in 8 bits, `float8e8m0` of ONNX.
    F8E8m0 = 21,
    /// 4-bit float, `float4e2m1` of ONNX.
    F4E2m1 = 22,
}

/// The types of the library, and those of C.
pub(crate) const TYPES: [(DType, TliteType); 23] = [
    (DType::F32, TliteType::F32),
    (DType::F16, TliteType::F16),
    (DType::I64, TliteType::I64),
    (DType::I32, TliteType::I32),
    (DType::U32, TliteType::U32),
    (DType::U8, TliteType::U8),
    (DType::I8, TliteType::I8),
    (DType::Bool, TliteType::Bool),
    (DType::F64, TliteType::F64),
    (DType::BF16, TliteType::Bf16),
    (DType::I16, TliteType::I16),
    (DType::U16, TliteType::U16),
    (DType::U64, TliteType::U64),
    (DType::I4, TliteType::I4),
    (DType::U4, TliteType::U4),
    (DType::I2, TliteType::I2),
    (DType::U2, TliteType::U2),
    (DType::F8E4M3, TliteType::F8E4m3),
    (DType::F8E4M3Uz, TliteType::F8E4m3Uz),
    (DType::F8E5M2, TliteType::F8E5m2),
    (DType::F8E5M2Uz, TliteType::F8E5m2Uz),
    (DType::F8E8M0, TliteType::F8E8m0),
    (DType::F4E2M1, TliteType::F4E2m1),
];

/// The library's type for a number from C.
pub(crate) fn dtype(name: &str, number: c_int) -> Result<DType> {
    let found = TYPES.iter().find(|(_, c)| *c as c_int == number);
    found.map(|(dtype, _)| *dtype).ok_or_else(|| {
        let what = format!("{number} is not a type; expected a `tlite_type`, 0 to 22");
        Error::usage(name, what)
    })
}

/// Describes an input or output. Pointers belong to the runner.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TliteTensorInfo {
    /// Name, in UTF-8.
    pub name: *const c_char,
    /// Element type.
    pub element_type: TliteType,
    /// If not 0, a run may leave out this input, which has a default.
    pub optional: c_int,
    /// Number of axes; -1 if the model does not state it.
    pub rank: isize,
    /// `rank` sizes, outermost axis first; -1 for a size that depends on the inputs of a run.
    pub shape: *const i64,
    /// `rank` strings: sizes, or names and formulas such as "batch" and "2*height".
    pub axes: *const *const c_char,
}

/// A tensor that a run reads.
#[repr(C)]
pub struct TliteTensor {
    /// Name of the input, in UTF-8.
    pub name: *const c_char,
    /// Elements in row-major order, little-endian. They are copied.
    pub data: *const c_void,
    /// Size of `data` in bytes. It must match the shape and the element type.
    pub bytes: usize,
    /// `rank` sizes, outermost axis first. NULL for a scalar, whose rank is 0.
    pub shape: *const usize,
    /// Number of axes.
    pub rank: usize,
    /// A `tlite_type`: the type of the elements.
    pub element_type: c_int,
}

/// The memory that a [`TliteTensorInfo`] points to.
struct Described {
    name: CString,
    dtype: TliteType,
    optional: bool,
    shape: Option<Vec<i64>>,
    _texts: Vec<CString>,
    axes: Vec<*const c_char>,
}

impl Described {
    fn new(name: &str, dtype: DType, dims: Option<&[Dim]>, optional: bool) -> Result<Self> {
        let of_c = TYPES.iter().find(|(rust, _)| *rust == dtype);
        let (_, of_c) = of_c.ok_or_else(|| Error::internal(Stage::Run, format!("C has no type {dtype}")))?;
        let size = |dim: &Dim| dim.as_const().unwrap_or(-1);
        let texts: Vec<CString> = dims
            .unwrap_or_default()
            .iter()
            .map(|dim| c_text(&dim.to_string()))
            .collect();
        Ok(Self {
            name: c_text(name),
            dtype: *of_c,
            optional,
            shape: dims.map(|dims| dims.iter().map(size).collect()),
            axes: texts.iter().map(|text| text.as_ptr()).collect(),
            _texts: texts,
        })
    }

    fn of((name, fact): (&str, &Fact), optional: bool) -> Result<Self> {
        Self::new(name, fact.dtype, Some(&fact.shape.0), optional)
    }

    fn info(&self) -> TliteTensorInfo {
        let rank = self.shape.as_ref().map(|shape| shape.len().cast_signed());
        TliteTensorInfo {
            name: self.name.as_ptr(),
            element_type: self.dtype,
            optional: c_int::from(self.optional),
            rank: rank.unwrap_or(-1),
            shape: self.shape.as_ref().map_or(std::ptr::null(), Vec::as_ptr),
            axes: self.axes.as_ptr(),
        }
    }
}

impl TliteRunner {
    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        self.state.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => {
                Error::usage("runner", "is in use by another call").of_kind(ErrorKind::Busy)
            }
            TryLockError::Poisoned(_) => {
                let what = "the runner is unusable after an internal error; free it";
                Error::other(Stage::Run, what)
            }
        })
    }
}

/// Loads a model of any kind: an ONNX file, or a folder with `model.onnx`. `options` may be NULL;
/// it says where to run, what may be consumed, and where kernels are cached. Its members `context`,
/// `kv`, `padding`, `act` and `on_progress` are for language models and must have their defaults.
/// Returns a runner, to be freed with `tlite_runner_free`, or NULL on failure.
///
/// The files of the model stay mapped, as described at `tlite_model_load`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_runner_load(
    path: *const c_char,
    options: *const TliteLoadOptions,
) -> *mut TliteRunner {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: as the caller promises.
        let (path, (place, limits)) = unsafe { (Path::new(text("path", path)?), open_options(options)?) };
        let file = match path.is_dir() {
            true => path.join("model.onnx"),
            false => path.to_owned(),
        };
        transformer_lite::unstable::files::kind::check_file("path", &file)?;
        let options = RunnerOptions {
            limits,
            ..RunnerOptions::default()
        };
        let backend = match place.open()? {
            Opened::Device(backend) => Some(backend),
            Opened::Reference { .. } => None,
        };
        let notes = place.notes(backend.as_deref().map(|b| b.caps()));
        let runner = Runner::load(&file, backend, &options)?;
        for note in notes.iter().chain(runner.notes()) {
            log::warn!("{note}");
        }
        let named = runner.inputs().map(|input| Described::of(input, false));
        let unranked = runner
            .unranked()
            .map(|(name, dtype)| Described::new(name, dtype, None, false));
        let defaults = runner.defaults().map(|input| Described::of(input, true));
        let inputs = named.chain(unranked).chain(defaults).collect::<Result<_>>()?;
        let outputs = runner.outputs().map(|output| Described::of(output, false));
        let outputs = outputs.collect::<Result<_>>()?;
        let state = State {
            runner,
            outputs,
            tensors: Vec::new(),
        };
        Ok(Box::into_raw(Box::new(TliteRunner {
            state: Mutex::new(state),
            inputs,
            cancel: Cancel::default(),
        })))
    })
}

/// Frees a runner. NULL is allowed.
///
/// `runner` is NULL or from `tlite_runner_load`, is not freed yet, and no other call is using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_runner_free(runner: *mut TliteRunner) {
    guarded((), || {
        if !runner.is_null() {
            // SAFETY: the pointer is from `Box::into_raw` and is returned once.
            drop(unsafe { Box::from_raw(runner) });
        }
        Ok(())
    });
}

/// Writes a description to a caller's place.
///
/// # Safety
///
/// `info` is NULL or points to a struct.
unsafe fn describe(list: &[Described], index: usize, info: *mut TliteTensorInfo) -> Result<c_int> {
    let found = list.get(index).ok_or_else(|| {
        let what = format!("{index} is out of range; the number is {}", list.len());
        Error::usage("index", what)
    })?;
    if info.is_null() {
        return Err(null("info"));
    }
    // SAFETY: it is not NULL, the rest is as the caller promises.
    unsafe { info.write(found.info()) };
    Ok(0)
}

/// The number of inputs, 0 for NULL. Those that a run needs come first. Initializers that the model
/// also lists as inputs are optional.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_runner_input_count(runner: *const TliteRunner) -> usize {
    // SAFETY: as the caller promises.
    guarded(0, || Ok(unsafe { object("runner", runner) }?.inputs.len()))
}

/// Describes the input `index`, counted from 0, in `info`, whose pointers are valid until the
/// runner is freed. Returns 0, or -1 for an index out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_runner_input(
    runner: *const TliteRunner,
    index: usize,
    info: *mut TliteTensorInfo,
) -> c_int {
    // SAFETY: as the caller promises.
    guarded(-1, || unsafe {
        describe(&object("runner", runner)?.inputs, index, info)
    })
}

/// The number of outputs of the last run; before the first run, of outputs whose shapes the model
/// states. 0 if another call is using the runner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_runner_output_count(runner: *const TliteRunner) -> usize {
    guarded(0, || {
        // SAFETY: as the caller promises.
        let runner = unsafe { object("runner", runner) }?;
        Ok(runner.lock()?.outputs.len())
    })
}

/// Describes the output `index`, counted from 0, in `info`; after a run, with the sizes of that
/// run. The pointers are valid until the next run or until the runner is freed. Returns 0, or -1 on
/// failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_runner_output(
    runner: *const TliteRunner,
    index: usize,
    info: *mut TliteTensorInfo,
) -> c_int {
    // SAFETY: as the caller promises.
    guarded(-1, || unsafe {
        describe(&object("runner", runner)?.lock()?.outputs, index, info)
    })
}

/// The tensor of a caller, copied.
///
/// # Safety
///
/// As for [`tlite_runner_run`].
unsafe fn tensor(given: &TliteTensor) -> Result<Named> {
    // SAFETY: as the caller promises.
    let (name, shape, bytes) = unsafe {
        let name = text("name", given.name)?;
        let shape = array(name, given.shape, given.rank)?;
        (name, shape, array(name, given.data.cast::<u8>(), given.bytes)?)
    };
    let dtype = dtype(name, given.element_type)?;
    let tensor = HostTensor::from_bytes(dtype, shape, bytes);
    let tensor = tensor.map_err(|e| Error::usage(name, e.to_string()).of_kind(ErrorKind::ShapeMismatch))?;
    let wrong = match dtype.int_range().filter(|_| dtype.bits() < 8) {
        _ if dtype == DType::Bool => bytes.iter().find(|b| **b > 1).map(|b| i128::from(*b)),
        Some((low, high)) => bytes
            .iter()
            .map(|b| {
                if low < 0 {
                    i128::from(b.cast_signed())
                } else {
                    i128::from(*b)
                }
            })
            .find(|value| !(low..=high).contains(value)),
        None => None,
    };
    match wrong {
        Some(value) => Err(Error::usage(
            name,
            format!("{value} is not a value of type {dtype}"),
        )),
        None => Ok((name.to_owned(), tensor)),
    }
}

/// Runs the model with `count` tensors in any order, one for each input that has no default, and
/// keeps its outputs until the next run; read them with `tlite_runner_read`. Returns 0, or -1 on
/// failure, after which there are no outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_runner_run(
    runner: *const TliteRunner,
    inputs: *const TliteTensor,
    count: usize,
) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let runner = unsafe { object("runner", runner) }?;
        let mut state = runner.lock()?;
        state.outputs.clear();
        state.tensors.clear();
        // SAFETY: as the caller promises.
        let given = unsafe {
            let given = array("inputs", inputs, count)?;
            given.iter().map(|t| tensor(t)).collect::<Result<Vec<_>>>()?
        };
        // A cancellation ends with the run, however the run ends.
        let _over = Over(&runner.cancel);
        let tensors = state.runner.run(&given, &runner.cancel)?;
        let described = tensors.iter().map(|(name, tensor)| {
            let dims: Vec<Dim> = tensor.shape().iter().map(|n| Dim::from_usize(*n)).collect();
            Described::new(name, tensor.dtype(), Some(&dims), false)
        });
        state.outputs = described.collect::<Result<_>>()?;
        state.tensors = tensors;
        Ok(0)
    })
}

/// Stops the current run, or the next one if there is none. May be called from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_runner_cancel(runner: *const TliteRunner) {
    guarded((), || {
        // SAFETY: as the caller promises.
        unsafe { object("runner", runner) }?.cancel.cancel();
        Ok(())
    });
}

/// Copies the output `name` of the last run to `data`, in row-major order. `element_type` is its
/// `tlite_type`, and `bytes` the size of `data`; both must be those of the output. Returns 0, or -1
/// on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlite_runner_read(
    runner: *const TliteRunner,
    name: *const c_char,
    element_type: c_int,
    data: *mut c_void,
    bytes: usize,
) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promises.
        let (runner, name) = unsafe { (object("runner", runner)?, text("name", name)?) };
        let state = runner.lock()?;
        let dtype = dtype(name, element_type)?;
        let Some((_, tensor)) = state.tensors.iter().find(|(n, _)| n == name) else {
            let names: Vec<&str> = state.tensors.iter().map(|(n, _)| n.as_str()).collect();
            let what = match names.as_slice() {
                [] => format!("there is no output {name}: run the model first"),
                names => format!("there is no output {name}; expected {}", names.join(", ")),
            };
            return Err(Error::usage("name", what));
        };
        let source = tensor.bytes().map_err(|e| Error::internal(Stage::Run, e))?;
        if (dtype, bytes) != (tensor.dtype(), source.len()) {
            let what = format!(
                "the output is {}{:?} of {} bytes, but the buffer is for {dtype} and has {bytes} bytes",
                tensor.dtype(),
                tensor.shape(),
                source.len()
            );
            return Err(Error::usage(name, what).of_kind(ErrorKind::ShapeMismatch));
        }
        if data.is_null() && bytes > 0 {
            return Err(null("data"));
        }
        // SAFETY: the buffer has this many bytes, as the caller promises, and it is not NULL unless
        // nothing is copied.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), data.cast::<u8>(), bytes) };
        Ok(0)
    })
}
