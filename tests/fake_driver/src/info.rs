//! What platforms and devices say of themselves.

use crate::config::Profile;
use crate::real::real;
use crate::recording::MAX_DISPATCHES;
use crate::state::{after, refused_query, with};
use crate::{Bits, Code, Handle, Uint, cl};
use std::ffi::c_void;

const PLATFORM_VERSION: Uint = 0x901;
const PLATFORM_NAME: Uint = 0x902;
const PLATFORM_VENDOR: Uint = 0x903;
const PLATFORM_EXTENSIONS: Uint = 0x904;
const PLATFORM_EXTENSIONS_WITH_VERSION: Uint = 0x907;
const TYPE: Uint = 0x1000;
const VENDOR_ID: Uint = 0x1001;
const MAX_COMPUTE_UNITS: Uint = 0x1002;
const MAX_WORK_GROUP_SIZE: Uint = 0x1004;
const MAX_WORK_ITEM_SIZES: Uint = 0x1005;
const LOCAL_MEM_SIZE: Uint = 0x1023;
const NAME: Uint = 0x102b;
const VENDOR: Uint = 0x102c;
const DRIVER_VERSION: Uint = 0x102d;
const VERSION: Uint = 0x102f;
const EXTENSIONS: Uint = 0x1030;
const HOST_UNIFIED_MEMORY: Uint = 0x1035;
const IMAGE_MAX_BUFFER_SIZE: Uint = 0x1040;
const IMAGE_PITCH_ALIGNMENT: Uint = 0x104a;
const IMAGE_BASE_ADDRESS_ALIGNMENT: Uint = 0x104b;
const EXTENSIONS_WITH_VERSION: Uint = 0x1060;
/// Numbers that makers gave to queries of their own.
const MAKERS: std::ops::Range<Uint> = 0x4000..0x5000;

const TYPE_DEFAULT: Bits = 1 << 0;
const TYPE_GPU: Bits = 1 << 2;

/// Bytes of an entry of a list of extensions with versions: a number and a name.
const ENTRY: usize = 4 + 64;

/// What a phone's library says.
pub(crate) struct Words {
    platform: &'static str,
    vendor: &'static str,
    maker_id: Uint,
    /// Its memory is the host's.
    unified: bool,
    device: &'static str,
    /// What follows the number of OpenCL's version.
    version: &'static str,
    driver: &'static str,
    units: Uint,
    max_workgroup: usize,
    local_bytes: u64,
    /// Pixels that the rows of an image in a buffer begin at multiples of.
    pub(crate) image_pitch: Uint,
    /// Pixels that such an image itself begins at a multiple of.
    pub(crate) image_base: Uint,
    /// Most pixels of an image of one axis.
    pub(crate) image_pixels: usize,
    /// Extensions that the fake driver has itself.
    own: &'static [&'static str],
    /// Others that the vendor's driver lists. Those that the real driver has too are listed.
    listed: &'static [&'static str],
}

const ADRENO: Words = Words {
    platform: "QUALCOMM Snapdragon(TM)",
    vendor: "QUALCOMM",
    maker_id: 0x5143,
    unified: true,
    // The model is in the version alone, as with Qualcomm's drivers.
    device: "QUALCOMM Adreno(TM)",
    version: "Adreno(TM) 750",
    driver: "QUALCOMM build: fake Compiler E031.45.02.16",
    units: 6,
    max_workgroup: 1024,
    local_bytes: 32 << 10,
    image_pitch: 64,
    image_base: 64,
    image_pixels: 1 << 27,
    own: &[
        "cl_khr_image2d_from_buffer",
        "cl_qcom_perf_hint",
        "cl_qcom_priority_hint",
        "cl_qcom_recordable_queues",
        "cl_qcom_reqd_sub_group_size",
    ],
    listed: &[
        "cl_khr_3d_image_writes",
        "cl_khr_byte_addressable_store",
        "cl_khr_depth_images",
        "cl_khr_fp16",
        "cl_khr_global_int32_base_atomics",
        "cl_khr_global_int32_extended_atomics",
        "cl_khr_local_int32_base_atomics",
        "cl_khr_local_int32_extended_atomics",
        "cl_khr_mipmap_image",
        "cl_khr_srgb_image_writes",
        "cl_khr_subgroups",
    ],
};

const MALI: Words = Words {
    platform: "ARM Platform",
    vendor: "ARM",
    maker_id: 0xd800_0000,
    unified: true,
    device: "Mali-G720",
    version: "v1.r49p1-fake",
    driver: "v1.r49p1-fake",
    units: 12,
    max_workgroup: 1024,
    local_bytes: 32 << 10,
    image_pitch: 16,
    image_base: 16,
    image_pixels: 1 << 27,
    own: &["cl_khr_priority_hints"],
    listed: &[
        "cl_khr_3d_image_writes",
        "cl_khr_byte_addressable_store",
        "cl_khr_command_buffer",
        "cl_khr_command_buffer_mutable_dispatch",
        "cl_khr_depth_images",
        "cl_khr_extended_bit_ops",
        "cl_khr_fp16",
        "cl_khr_global_int32_base_atomics",
        "cl_khr_global_int32_extended_atomics",
        "cl_khr_icd",
        "cl_khr_image2d_from_buffer",
        "cl_khr_int64_base_atomics",
        "cl_khr_int64_extended_atomics",
        "cl_khr_integer_dot_product",
        "cl_khr_local_int32_base_atomics",
        "cl_khr_local_int32_extended_atomics",
        "cl_khr_subgroup_ballot",
        "cl_khr_subgroup_clustered_reduce",
        "cl_khr_subgroup_extended_types",
        "cl_khr_subgroup_non_uniform_arithmetic",
        "cl_khr_subgroup_non_uniform_vote",
        "cl_khr_subgroup_shuffle",
        "cl_khr_subgroup_shuffle_relative",
        "cl_khr_subgroups",
        "cl_khr_suggested_local_work_size",
    ],
};

const RADEON: Words = Words {
    platform: "AMD Accelerated Parallel Processing",
    vendor: "Advanced Micro Devices, Inc.",
    maker_id: 0x1002,
    unified: false,
    device: "gfx1100",
    version: "AMD-APP (fake)",
    driver: "fake",
    units: 48,
    max_workgroup: 256,
    local_bytes: 64 << 10,
    image_pitch: 256,
    image_base: 256,
    image_pixels: 1 << 27,
    own: &[],
    listed: &[
        "cl_khr_3d_image_writes",
        "cl_khr_byte_addressable_store",
        "cl_khr_fp16",
        "cl_khr_global_int32_base_atomics",
        "cl_khr_global_int32_extended_atomics",
        "cl_khr_image2d_from_buffer",
        "cl_khr_local_int32_base_atomics",
        "cl_khr_local_int32_extended_atomics",
    ],
};

impl Words {
    /// Those of the configured phone.
    pub(crate) fn configured() -> Option<&'static Self> {
        with(|s| s.config.profile).map(|profile| match profile {
            Profile::Adreno => &ADRENO,
            Profile::Mali => &MALI,
            Profile::Radeon => &RADEON,
        })
    }

    pub(crate) fn has(&self, extension: &str) -> bool {
        self.own.contains(&extension)
    }

    /// The extensions to list where the driver lists `real`.
    fn extensions(&self, real: &str) -> String {
        let known = |name: &&&str| real.split_whitespace().any(|r| r == **name);
        let mut all: Vec<&str> = self.listed.iter().filter(known).copied().collect();
        all.extend(self.own);
        all.sort_unstable();
        all.join(" ")
    }

    /// The same as entries with versions.
    fn versioned(&self, real: &[u8]) -> Vec<u8> {
        let listed = |entry: &&[u8]| {
            let name = text(&entry[4..]);
            self.listed.contains(&name.as_str())
        };
        let mut all: Vec<u8> = real
            .chunks_exact(ENTRY)
            .filter(listed)
            .flatten()
            .copied()
            .collect();
        for name in self.own {
            let mut entry = [0; ENTRY];
            // Version 1.0.0.
            entry[..4].copy_from_slice(&(1u32 << 22).to_ne_bytes());
            entry[4..4 + name.len()].copy_from_slice(name.as_bytes());
            all.extend(entry);
        }
        all
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// `OpenCL 3.0` of `OpenCL 3.0 PoCL ...`: no more is promised than there is.
fn number(version: &str) -> String {
    version.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Answers a query.
///
/// # Safety
///
/// `value` is null or takes `size` bytes, `size_ret` is null or takes a size.
pub(crate) unsafe fn answer(bytes: &[u8], size: usize, value: *mut c_void, size_ret: *mut usize) -> Code {
    if !value.is_null() {
        if size < bytes.len() {
            return cl::INVALID_VALUE;
        }
        // SAFETY: as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>(), bytes.len()) };
    }
    if !size_ret.is_null() {
        // SAFETY: as the caller promises.
        unsafe { *size_ret = bytes.len() };
    }
    cl::SUCCESS
}

fn with_end(text: impl Into<String>) -> Vec<u8> {
    let mut bytes = text.into().into_bytes();
    bytes.push(0);
    bytes
}

type Query<'a> = &'a dyn Fn(usize, *mut c_void, *mut usize) -> Code;

/// The real answer to a query.
fn asked(query: Query<'_>) -> Result<Vec<u8>, Code> {
    let mut size = 0;
    match query(0, std::ptr::null_mut(), &mut size) {
        cl::SUCCESS => {}
        code => return Err(code),
    }
    let mut bytes = vec![0u8; size];
    match query(size, bytes.as_mut_ptr().cast(), std::ptr::null_mut()) {
        cl::SUCCESS => Ok(bytes),
        code => Err(code),
    }
}

/// Answers a query by a phone's own words, where it has some, else as the real library does.
///
/// # Safety
///
/// As for [`answer`].
unsafe fn own_or_real(
    own: Option<Result<Option<Vec<u8>>, Code>>,
    real: Query<'_>,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> Code {
    match own {
        // SAFETY: as the caller promises.
        Some(Ok(Some(bytes))) => unsafe { answer(&bytes, size, value, size_ret) },
        Some(Err(code)) => code,
        Some(Ok(None)) | None => real(size, value, size_ret),
    }
}

/// The one platform of a phone, or all platforms.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetPlatformIDs(entries: Uint, platforms: *mut Handle, count: *mut Uint) -> Code {
    let call = "clGetPlatformIDs";
    let code = refused_query(call).unwrap_or_else(|| {
        let code = real!(clGetPlatformIDs(entries: Uint, platforms: *mut Handle, count: *mut Uint) -> Code);
        code.unwrap_or(cl::MISSING)
    });
    if code == cl::SUCCESS && Words::configured().is_some() && !count.is_null() {
        // SAFETY: the real library has just written there.
        unsafe { *count = (*count).min(1) };
    }
    after(call, "", code)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetPlatformInfo(
    platform: Handle,
    name: Uint,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> Code {
    let query = |size: usize, value: *mut c_void, size_ret: *mut usize| {
        let code = real!(clGetPlatformInfo(platform: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize) -> Code);
        code.unwrap_or(cl::MISSING)
    };
    let call = "clGetPlatformInfo";
    let refused = refused_query(call).map(Err);
    let own = refused.or_else(|| Words::configured().map(|w| platform_words(w, name, &query)));
    // SAFETY: the caller's pointers.
    let code = unsafe { own_or_real(own, &query, size, value, size_ret) };
    after(call, &format!(" name={name:#x}"), code)
}

/// A platform's own answer; `None` where it is the real one.
fn platform_words(words: &Words, name: Uint, real: Query<'_>) -> Result<Option<Vec<u8>>, Code> {
    Ok(Some(match name {
        PLATFORM_NAME => with_end(words.platform),
        PLATFORM_VENDOR => with_end(words.vendor),
        PLATFORM_VERSION => with_end(format!("{} {}", number(&text(&asked(real)?)), words.driver)),
        PLATFORM_EXTENSIONS => with_end(words.extensions(&text(&asked(real)?))),
        PLATFORM_EXTENSIONS_WITH_VERSION => words.versioned(&asked(real)?),
        _ => return Ok(None),
    }))
}

/// The one device of a phone, a GPU, which may be there twice; or all devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetDeviceIDs(
    platform: Handle,
    kind: Bits,
    entries: Uint,
    devices: *mut Handle,
    count: *mut Uint,
) -> Code {
    if let Some(code) = with(|s| s.config.no_device) {
        if !count.is_null() {
            // SAFETY: the caller's place for a number.
            unsafe { *count = 0 };
        }
        with(|s| s.log_fault("clGetDeviceIDs", code));
        return after("clGetDeviceIDs", &format!(" type={kind:#x}"), code);
    }
    if let Some(code) = refused_query("clGetDeviceIDs") {
        return after("clGetDeviceIDs", &format!(" type={kind:#x}"), code);
    }
    let phone = Words::configured().is_some();
    let wanted = kind;
    let kind = if phone { Bits::from(Uint::MAX) } else { kind };
    let code = if phone && wanted & (TYPE_GPU | TYPE_DEFAULT) == 0 {
        cl::DEVICE_NOT_FOUND
    } else {
        let code = real!(clGetDeviceIDs(platform: Handle, kind: Bits, entries: Uint, devices: *mut Handle, count: *mut Uint) -> Code);
        code.unwrap_or(cl::MISSING)
    };
    if code == cl::SUCCESS && phone {
        let twice = with(|s| s.config.twice);
        if !count.is_null() {
            // SAFETY: the real library has just written there.
            unsafe { *count = (*count).min(1) << u32::from(twice) };
        }
        if twice && entries > 1 && !devices.is_null() {
            // SAFETY: there is room for so many, and the real library has just written the first.
            unsafe { *devices.add(1) = *devices };
        }
    }
    after("clGetDeviceIDs", &format!(" type={wanted:#x}"), code)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetDeviceInfo(
    device: Handle,
    name: Uint,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> Code {
    let query = |size: usize, value: *mut c_void, size_ret: *mut usize| {
        let code = real!(clGetDeviceInfo(device: Handle, name: Uint, size: usize, value: *mut c_void, size_ret: *mut usize) -> Code);
        code.unwrap_or(cl::MISSING)
    };
    let call = "clGetDeviceInfo";
    let refused = refused_query(call).map(Err);
    let own = refused.or_else(|| Words::configured().map(|w| device_words(w, name, &query)));
    // SAFETY: the caller's pointers.
    let code = unsafe { own_or_real(own, &query, size, value, size_ret) };
    after(call, &format!(" name={name:#x}"), code)
}

/// A device's own answer; `None` where it is the real one.
fn device_words(words: &Words, name: Uint, real: Query<'_>) -> Result<Option<Vec<u8>>, Code> {
    let size = |bytes: &[u8]| bytes.first_chunk().map_or(0, |b| usize::from_ne_bytes(*b));
    Ok(Some(match name {
        NAME => with_end(words.device),
        VENDOR => with_end(words.vendor),
        VENDOR_ID => words.maker_id.to_ne_bytes().to_vec(),
        TYPE => TYPE_GPU.to_ne_bytes().to_vec(),
        VERSION => {
            let version = with(|s| s.config.version.clone());
            let version = version.as_deref().unwrap_or(words.version);
            with_end(format!("{} {version}", number(&text(&asked(real)?))))
        }
        DRIVER_VERSION => with_end(words.driver),
        EXTENSIONS => with_end(words.extensions(&text(&asked(real)?))),
        EXTENSIONS_WITH_VERSION => words.versioned(&asked(real)?),
        HOST_UNIFIED_MEMORY => Uint::from(words.unified).to_ne_bytes().to_vec(),
        MAX_COMPUTE_UNITS => words.units.to_ne_bytes().to_vec(),
        MAX_WORK_GROUP_SIZE => size(&asked(real)?)
            .min(words.max_workgroup)
            .to_ne_bytes()
            .to_vec(),
        MAX_WORK_ITEM_SIZES => {
            let sizes = asked(real)?;
            let axes = sizes.chunks_exact(size_of::<usize>());
            axes.flat_map(|axis| size(axis).min(words.max_workgroup).to_ne_bytes())
                .collect()
        }
        LOCAL_MEM_SIZE => {
            let bytes = asked(real)?.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
            bytes.min(words.local_bytes).to_ne_bytes().to_vec()
        }
        IMAGE_PITCH_ALIGNMENT => words.image_pitch.to_ne_bytes().to_vec(),
        IMAGE_BASE_ADDRESS_ALIGNMENT => words.image_base.to_ne_bytes().to_vec(),
        IMAGE_MAX_BUFFER_SIZE => size(&asked(real)?).min(words.image_pixels).to_ne_bytes().to_vec(),
        cl::DEVICE_RECORDABLE_QUEUE_MAX_SIZE if words.has("cl_qcom_recordable_queues") => {
            MAX_DISPATCHES.to_ne_bytes().to_vec()
        }
        // Of extensions that are not listed.
        _ if MAKERS.contains(&name) => return Err(cl::INVALID_VALUE),
        _ => return Ok(None),
    }))
}

/// Largest work-group of the device that is played.
pub(crate) fn max_workgroup() -> usize {
    Words::configured().map_or(usize::MAX, |w| w.max_workgroup)
}
