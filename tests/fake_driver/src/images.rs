//! Images in buffers, checked as strictly as a phone's driver may. Where the real driver makes
//! none, though the phone has them, another image stands for each, to which the bytes of its buffer
//! are copied before every dispatch that is given it.

use crate::info::Words;
use crate::real::real;
use crate::state::{Arg, Memory, before, id, made, with};
use crate::{Bits, Code, Handle, Uint, cl};
use std::ffi::c_void;

const MEM_OBJECT_IMAGE2D: Uint = 0x10f1;
const MEM_OBJECT_IMAGE1D_BUFFER: Uint = 0x10f6;
const MEM_READ_WRITE: Bits = 1;
/// Largest width and height of an image, as on phones.
const MAX_PIXELS: usize = 1 << 14;

/// `cl_image_desc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ImageDesc {
    pub kind: Uint,
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    pub depth: usize,
    pub layers: usize,
    /// Bytes from a row to the next.
    pub row_pitch: usize,
    pub slice_pitch: usize,
    pub levels: Uint,
    pub samples: Uint,
    /// The buffer that it is made from.
    pub object: Handle,
}

/// What stands for an image that the real driver does not make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shadow {
    /// The buffer or sub-buffer whose bytes it shows.
    source: usize,
    /// The buffer that this is a part of, and where: PoCL does not copy from a part of one to an
    /// image.
    whole: usize,
    origin: usize,
    /// A buffer of its own, of an image of one axis.
    copy: Option<usize>,
    image: usize,
    /// Bytes of a row, and from a row of the source to the next.
    row: usize,
    pitch: usize,
    width: usize,
    height: usize,
}

/// Bytes of a pixel of a `cl_image_format`; 0 for those that are not known here.
fn pixel([order, kind]: [Uint; 2]) -> usize {
    // CL_R, CL_RG, CL_RGBA.
    let channels = match order {
        0x10b0 => 1,
        0x10b2 => 2,
        0x10b5 => 4,
        _ => 0,
    };
    // Bytes, then halves and 16-bit integers, then floats and 32-bit integers.
    let bytes = match kind {
        0x10d0 | 0x10d2 | 0x10d7 | 0x10da => 1,
        0x10d1 | 0x10d3 | 0x10d8 | 0x10db | 0x10dd => 2,
        0x10d9 | 0x10dc | 0x10de => 4,
        _ => 0,
    };
    channels * bytes
}

impl ImageDesc {
    fn pitch(&self, pixel: usize) -> usize {
        match self.row_pitch {
            0 => self.width * pixel,
            given => given,
        }
    }

    /// The code with which a phone refuses it in `memory`.
    fn refusal(&self, words: &Words, pixel: usize, memory: Option<Memory>) -> Option<Code> {
        let Some(memory) = memory else {
            return Some(cl::INVALID_MEM_OBJECT);
        };
        if pixel == 0 {
            return Some(cl::IMAGE_FORMAT_NOT_SUPPORTED);
        }
        let pitch = self.pitch(pixel);
        let (rows, width) = match self.kind {
            MEM_OBJECT_IMAGE1D_BUFFER => (1, words.image_pixels),
            MEM_OBJECT_IMAGE2D => (self.height, MAX_PIXELS),
            _ => return Some(cl::INVALID_IMAGE_DESCRIPTOR),
        };
        let whole = self.kind == MEM_OBJECT_IMAGE1D_BUFFER;
        let rows_begin = pitch.is_multiple_of(words.image_pitch as usize * pixel);
        let begins = memory
            .origin
            .is_multiple_of(u64::from(words.image_base) * pixel as u64);
        if pitch < self.width * pixel || (whole && pitch != self.width * pixel) {
            return Some(cl::INVALID_IMAGE_DESCRIPTOR);
        }
        let aligned = rows_begin && begins;
        if !(whole || aligned) {
            return Some(cl::INVALID_IMAGE_DESCRIPTOR);
        }
        let empty = self.width == 0 || rows == 0;
        let over = self.width > width || rows > MAX_PIXELS || (pitch * rows) as u64 > memory.bytes;
        (empty || over).then_some(cl::INVALID_IMAGE_SIZE)
    }
}

/// An image of the real library.
fn real_image(
    context: Handle,
    flags: Bits,
    format: &[Uint; 2],
    desc: &ImageDesc,
    host: *mut c_void,
) -> Result<Handle, Code> {
    let mut code = cl::SUCCESS;
    let (format, desc, place): (*const [Uint; 2], *const ImageDesc, *mut Code) =
        (format, desc, &raw mut code);
    let image = real!(clCreateImage(context: Handle, flags: Bits, format: *const [Uint; 2], desc: *const ImageDesc, host: *mut c_void, place: *mut Code) -> Handle);
    match (image, code) {
        (Some(image), cl::SUCCESS) => Ok(image),
        (Some(_), code) => Err(code),
        (None, _) => Err(cl::MISSING),
    }
}

/// An image that stands for one in a buffer.
fn shadow(
    context: Handle,
    flags: Bits,
    format: &[Uint; 2],
    desc: &ImageDesc,
    memory: Memory,
) -> Result<(Handle, Shadow), Code> {
    let (object, host, pixel) = (desc.object, std::ptr::null_mut::<c_void>(), pixel(*format));
    let row = desc.width * pixel;
    let mut own = ImageDesc {
        row_pitch: 0,
        object: std::ptr::null_mut(),
        ..*desc
    };
    if desc.kind == MEM_OBJECT_IMAGE1D_BUFFER {
        let mut code = cl::SUCCESS;
        let place = &raw mut code;
        let flags = MEM_READ_WRITE;
        let copy = real!(clCreateBuffer(context: Handle, flags: Bits, row: usize, host: *mut c_void, place: *mut Code) -> Handle);
        own.object = copy.filter(|_| code == cl::SUCCESS).ok_or(code)?;
    }
    let image = real_image(context, flags, format, &own, host)?;
    // As long as the image lives.
    let _code = real!(clRetainMemObject(object: Handle) -> Code);
    let shadow = Shadow {
        source: id(object),
        whole: memory.part_of.unwrap_or(id(object)),
        origin: memory.origin as usize,
        copy: (!own.object.is_null()).then(|| id(own.object)),
        image: id(image),
        row,
        pitch: desc.pitch(pixel),
        width: desc.width,
        height: desc.height.max(1),
    };
    Ok((image, shadow))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clCreateImage(
    context: Handle,
    flags: Bits,
    format: *const [Uint; 2],
    desc: *const ImageDesc,
    host: *mut c_void,
    place: *mut Code,
) -> Handle {
    let call = "clCreateImage";
    if format.is_null() || desc.is_null() {
        // SAFETY: the caller's pointer.
        return unsafe {
            made(
                call,
                "",
                std::ptr::null_mut(),
                cl::INVALID_IMAGE_DESCRIPTOR,
                place,
            )
        };
    }
    // SAFETY: the caller's pointers.
    let (format, desc) = unsafe { (*format, *desc) };
    let from_buffer = !desc.object.is_null();
    let memory = with(|s| s.buffers.get(&id(desc.object)).copied());
    let words = format!(
        " type={:x} format={:x} width={} height={} row_pitch={} from_buffer={from_buffer} origin={}",
        desc.kind,
        format[1],
        desc.width,
        desc.height,
        desc.row_pitch,
        memory.map_or(0, |m| m.origin)
    );
    let phone = Words::configured();
    let refused = phone
        .filter(|_| from_buffer)
        .and_then(|words| desc.refusal(words, pixel(format), memory));
    let memory = memory.filter(|_| phone.is_some_and(|w| w.has("cl_khr_image2d_from_buffer")));
    let image = match before(call, None).or(refused) {
        Some(code) => Err(code),
        None => match (real_image(context, flags, &format, &desc, host), memory) {
            (Err(_), Some(memory)) => {
                shadow(context, flags, &format, &desc, memory).map(|(image, shadow)| (image, Some(shadow)))
            }
            (image, _) => image.map(|image| (image, None)),
        },
    };
    let (object, code) = match image {
        Ok((image, shadow)) => {
            with(|s| s.images.insert(id(image), shadow));
            (image, cl::SUCCESS)
        }
        Err(code) => (std::ptr::null_mut(), code),
    };
    // SAFETY: the caller's pointer.
    unsafe { made(call, &words, object, code, place) }
}

/// It is an image.
pub(crate) fn is_image(arg: &Arg) -> bool {
    arg.object()
        .is_some_and(|object| with(|s| s.images.contains_key(&object)))
}

/// Forgets an image that is released.
pub(crate) fn forget(object: Handle) {
    if let Some(Some(shadow)) = with(|s| s.images.remove(&id(object))) {
        for object in [Some(shadow.source), shadow.copy].into_iter().flatten() {
            let object = object as Handle;
            let _code = real!(clReleaseMemObject(object: Handle) -> Code);
        }
    }
}

/// The images that stand for others among what a kernel object is given.
fn shadows(kernel: Handle) -> Vec<Shadow> {
    with(|s| {
        let args = s.kernels.get(&id(kernel)).map(|k| &k.args);
        let objects = args.into_iter().flat_map(|a| a.values()).filter_map(Arg::object);
        objects.filter_map(|o| *s.images.get(&o)?).collect()
    })
}

/// A kernel object is given an image that stands for another.
pub(crate) fn has_shadow(kernel: Handle) -> bool {
    !shadows(kernel).is_empty()
}

/// Has the images that a kernel object is given show what is in their buffers.
pub(crate) fn refresh(queue: Handle, kernel: Handle) -> Result<(), Code> {
    for shadow in shadows(kernel) {
        for y in 0..shadow.height {
            let (source, from, count) = (shadow.whole as Handle, shadow.origin + y * shadow.pitch, 0);
            let (none, event) = (std::ptr::null::<Handle>(), std::ptr::null_mut::<Handle>());
            let code = if let Some(copy) = shadow.copy {
                let (copy, to, bytes) = (copy as Handle, 0usize, shadow.row);
                real!(clEnqueueCopyBuffer(queue: Handle, source: Handle, copy: Handle, from: usize, to: usize, bytes: usize, count: Uint, none: *const Handle, event: *mut Handle) -> Code)
            } else {
                let (image, place, size) =
                    (shadow.image as Handle, [0, y, 0usize], [shadow.width, 1, 1usize]);
                let (place, size) = (place.as_ptr(), size.as_ptr());
                real!(clEnqueueCopyBufferToImage(queue: Handle, source: Handle, image: Handle, from: usize, place: *const usize, size: *const usize, count: Uint, none: *const Handle, event: *mut Handle) -> Code)
            };
            match code.unwrap_or(cl::MISSING) {
                cl::SUCCESS => {}
                code => return Err(code),
            }
        }
    }
    Ok(())
}
