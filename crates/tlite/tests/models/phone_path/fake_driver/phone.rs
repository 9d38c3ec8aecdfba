//! The fake driver as a device with two kernels.

use crate::phone_path::play::Outcome;
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tlite_fake_driver as fake_driver;
use tlite_fake_driver::{Code, Config, Handle, Profile, cl};

/// The fake driver is one for the process.
static TURN: Mutex<()> = Mutex::new(());

pub const SOURCE: &CStr = c"
__kernel void add(__global float *x, float by) { x[get_global_id(0)] += by; }
__kernel void other(__global float *x, float by) { x[get_global_id(0)] -= by; }
";

pub const COUNT: usize = 64;

pub const DEVICE_EXTENSIONS: u32 = 0x1030;
pub const DEVICE_EXTENSIONS_WITH_VERSION: u32 = 0x1060;
pub const DEVICE_NAME: u32 = 0x102b;
pub const DEVICE_VERSION: u32 = 0x102f;
pub const DEVICE_TYPE: u32 = 0x1000;
pub const PROFILING: u64 = 2;
pub const BLOCKING: u32 = 1;

/// Compares, with both sides in the error.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T) -> Outcome {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what}: {wanted:?} wanted, {found:?} found"))
}

pub fn ok(what: &str, code: Code) -> Outcome {
    same(what, code, cl::SUCCESS)
}

/// The device of a configured fake driver. Objects are left to the end of the process.
pub struct Phone {
    pub device: Handle,
    _turn: MutexGuard<'static, ()>,
}

/// A queue with what it works on.
pub struct Work {
    pub context: Handle,
    pub queue: Handle,
    pub program: Handle,
    pub add: Handle,
    pub other: Handle,
    pub x: Handle,
}

impl Phone {
    pub fn new(config: Config) -> Result<Self, String> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        fake_driver::configure(config);
        let (mut platform, mut device) = (null_mut(), null_mut());
        // SAFETY: each place takes one handle.
        let codes = unsafe {
            [
                fake_driver::clGetPlatformIDs(1, &raw mut platform, null_mut()),
                fake_driver::clGetDeviceIDs(platform, u64::from(u32::MAX), 1, &raw mut device, null_mut()),
            ]
        };
        same("platform and device", codes, [cl::SUCCESS; 2])?;
        Ok(Self { device, _turn: turn })
    }

    pub fn of(profile: Profile) -> Result<Self, String> {
        Self::new(crate::phone_path::of(profile))
    }

    /// Bytes of a property.
    pub fn info(&self, name: u32) -> Result<Vec<u8>, Code> {
        let mut bytes = vec![0u8; 1 << 16];
        let mut size = 0;
        // SAFETY: the place has that size.
        let code = unsafe {
            fake_driver::clGetDeviceInfo(
                self.device,
                name,
                bytes.len(),
                bytes.as_mut_ptr().cast(),
                &raw mut size,
            )
        };
        bytes.truncate(size);
        if code == cl::SUCCESS { Ok(bytes) } else { Err(code) }
    }

    pub fn words(&self, name: u32) -> Result<String, String> {
        let bytes = self.info(name).map_err(|code| format!("{name:#x}: {code}"))?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// A context with a list of properties that ends with 0.
    pub fn context(&self, properties: &[isize]) -> (Handle, Code) {
        let mut code = cl::SUCCESS;
        // SAFETY: the list ends with 0, and there is one device.
        let context = unsafe {
            fake_driver::clCreateContext(
                properties.as_ptr(),
                1,
                &raw const self.device,
                null(),
                null_mut(),
                &raw mut code,
            )
        };
        (context, code)
    }

    pub fn queue(&self, context: Handle, properties: &[u64]) -> (Handle, Code) {
        let mut code = cl::SUCCESS;
        // SAFETY: the list ends with 0.
        let queue = unsafe {
            fake_driver::clCreateCommandQueueWithProperties(
                context,
                self.device,
                properties.as_ptr(),
                &raw mut code,
            )
        };
        (queue, code)
    }

    pub fn buffer(&self, context: Handle, bytes: usize) -> (Handle, Code) {
        let mut code = cl::SUCCESS;
        // SAFETY: plain memory takes no pointer.
        let buffer = unsafe { fake_driver::clCreateBuffer(context, 1, bytes, null_mut(), &raw mut code) };
        (buffer, code)
    }

    /// What building a program of this text returns.
    pub fn builds(&self, text: &str) -> Result<Code, String> {
        let (context, code) = self.context(&[0]);
        ok("context", code)?;
        let text = CString::new(text).map_err(|e| e.to_string())?;
        Ok(self.program(context, &text).1)
    }

    /// A program of this text, with what building it returns.
    pub fn program(&self, context: Handle, text: &CStr) -> (Handle, Code) {
        let (strings, mut code) = (text.as_ptr(), cl::SUCCESS);
        // SAFETY: one string with a closing zero.
        unsafe {
            let program =
                fake_driver::clCreateProgramWithSource(context, 1, &raw const strings, null(), &raw mut code);
            let built =
                fake_driver::clBuildProgram(program, 1, &raw const self.device, null(), null(), null_mut());
            (program, if code == cl::SUCCESS { built } else { code })
        }
    }

    /// Two kernels and their operand, which is all zeros.
    pub fn work(&self) -> Result<Work, String> {
        let (context, code) = self.context(&[0]);
        ok("context", code)?;
        let (queue, code) = self.queue(context, &[0]);
        ok("queue", code)?;
        let (x, code) = self.buffer(context, COUNT * 4);
        ok("buffer", code)?;
        let (program, built) = self.program(context, SOURCE);
        let mut made = [cl::SUCCESS; 2];
        // SAFETY: names with a closing zero each.
        let (add, other) = unsafe {
            let add = fake_driver::clCreateKernel(program, c"add".as_ptr(), &raw mut made[0]);
            (
                add,
                fake_driver::clCreateKernel(program, c"other".as_ptr(), &raw mut made[1]),
            )
        };
        same("program", [built, made[0], made[1]], [cl::SUCCESS; 3])?;
        let work = Work {
            context,
            queue,
            program,
            add,
            other,
            x,
        };
        for kernel in [add, other] {
            ok("operand", set(kernel, 0, &work.x))?;
        }
        work.write(&[0.0; COUNT])?;
        Ok(work)
    }
}

pub fn set<T>(kernel: Handle, index: u32, value: &T) -> Code {
    // SAFETY: the value has its size.
    unsafe { fake_driver::clSetKernelArg(kernel, index, size_of::<T>(), std::ptr::from_ref(value).cast()) }
}

/// Dispatches over `count` elements.
pub fn dispatch(queue: Handle, kernel: Handle, count: usize, event: *mut Handle) -> Code {
    // SAFETY: one axis.
    unsafe {
        fake_driver::clEnqueueNDRangeKernel(
            queue,
            kernel,
            1,
            null(),
            &raw const count,
            null(),
            0,
            null(),
            event,
        )
    }
}

impl Work {
    pub fn write(&self, values: &[f32; COUNT]) -> Outcome {
        let start = values.as_ptr().cast::<c_void>();
        // SAFETY: the array has that size and the call waits.
        let code = unsafe {
            fake_driver::clEnqueueWriteBuffer(
                self.queue,
                self.x,
                BLOCKING,
                0,
                COUNT * 4,
                start,
                0,
                null(),
                null_mut(),
            )
        };
        ok("write", code)
    }

    pub fn read(&self) -> Result<[f32; COUNT], String> {
        let mut values = [0f32; COUNT];
        let start = values.as_mut_ptr().cast::<c_void>();
        // SAFETY: as for writing.
        let code = unsafe {
            fake_driver::clEnqueueReadBuffer(
                self.queue,
                self.x,
                BLOCKING,
                0,
                COUNT * 4,
                start,
                0,
                null(),
                null_mut(),
            )
        };
        ok("read", code)?;
        Ok(values)
    }

    /// `kernel` over all elements, `by` a number.
    pub fn run(&self, kernel: Handle, by: f32) -> Outcome {
        ok("argument", set(kernel, 1, &by))?;
        ok("dispatch", dispatch(self.queue, kernel, COUNT, null_mut()))
    }
}
